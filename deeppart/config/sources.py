"""The sources of settings besides arguments: ``DEEPPART_*`` variables and ``deeppart.toml``.

A name that is no setting is refused, and the error names the one that was most likely meant.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart.config.checks import AUTO, LEAST_SECRET_BYTES, MOST_SECRET_BYTES
from deeppart.errors import ConfigError
from deeppart.model import meant, read_bytes

ENVIRONMENT_PREFIX = "DEEPPART_"
#: Variables that are no settings: the file that asks a training to end (deeppart.elastic.stop_request); the file with
#: the secret that authenticates ranks without MPI; print the library's own frames in tracebacks; the directory and the
#: number of the epoch that an agent gives its ranks (deeppart.progress).
STOP_FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}STOP_FILE"
SECRET_FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}SECRET_FILE"
TRACEBACK_VARIABLE = f"{ENVIRONMENT_PREFIX}TRACEBACK"
AGENT_VARIABLES = tuple(f"{ENVIRONMENT_PREFIX}{name}" for name in ("AGENT", "RUN", "EPOCH", "WHY"))
_NO_SETTINGS = (STOP_FILE_VARIABLE, SECRET_FILE_VARIABLE, TRACEBACK_VARIABLE, *AGENT_VARIABLES)
CONFIG_FILE = "deeppart.toml"
#: Longest file that is read.
_MOST_TOML_BYTES = 1 << 20
#: The directories above a key file must be the user's or root's, or shared with a sticky bit.
_MAKE = "(umask 077 && head -c 32 /dev/urandom > FILE)"

#: Advice if other users may have written a ``deeppart.toml``.
_OTHERS_HAND = {
    "expected": "a file, and a directory, of this user or root that nobody else may write to",
    "todo": "if the file is yours, make it and its directory your own (chown, chmod go-w), or say the same in "
    "DEEPPART_* variables and remove it; otherwise remove it, or work in a directory of your own",
}


def configured(known: Mapping[str, Callable[[str], Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of the file and of the environment, which takes precedence; and setting -> file it is from.

    ``known``: setting -> reader of its text in an environment variable.
    """
    file, environment = _found_file(), _read_environment(known)
    for source, values in ((CONFIG_FILE, file), (f"{ENVIRONMENT_PREFIX}* environment variables", environment)):
        for name in sorted(values.keys() - known.keys()):
            raise no_such_setting(name, known, source)
    of_file = [name for name in file if name not in environment]
    return file | environment, {name: str(Path(CONFIG_FILE).absolute()) for name in of_file}


def stop_file() -> str | None:
    """The file that asks this job to end, if one is named."""
    return os.environ.get(STOP_FILE_VARIABLE) or None


def shows_all_frames() -> bool:
    """True if uncaught errors are printed with all frames, on every rank."""
    return bool(os.environ.get(TRACEBACK_VARIABLE))


def secret_of_ranks() -> bytes | None:
    """The secret that authenticates ranks without MPI, if a file is named."""
    name = os.environ.get(SECRET_FILE_VARIABLE)
    return read_secret(Path(name).absolute()) if name else None


def _found_file() -> dict[str, Any]:
    """``deeppart.toml`` in the working directory, unless other users may have written it."""
    path = Path(CONFIG_FILE)
    if not path.is_file():
        return {}
    try:
        descriptor = access.open_beside_user(path)
    except OSError as error:
        answers = {"found": str(error), "where": str(path.absolute()), **access.answers(error)}
        if isinstance(error, access.NotRegularError):
            answers["todo"] = "put the file itself there, or use DEEPPART_* variables"
        if isinstance(error, access.ForeignAccessError):
            answers |= _OTHERS_HAND
        raise ConfigError(f"{path} is not used", **answers) from None
    try:
        return _read_toml(descriptor)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}", found=str(error), where=str(path.absolute()), todo="correct or remove the file"
        ) from None


def _read_toml(descriptor: int) -> dict[str, Any]:
    with open(descriptor, "rb") as file:
        data = file.read(_MOST_TOML_BYTES + 1)
    if len(data) > _MOST_TOML_BYTES:
        raise ValueError(f"the file is longer than {_MOST_TOML_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("the file is nested too deeply") from error


def _read_environment(readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NO_SETTINGS:
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        try:
            values[name] = None if text == "" else readers.get(name, str)(text)
        except ValueError as error:
            raise ConfigError(
                f"cannot read the environment variable {variable}", found=repr(text), expected=str(error)
            ) from error
    return {name: value for name, value in values.items() if value is not None}


def read_every(text: str) -> str | dict[str, int]:
    """``auto``, or counts."""
    return text if text == AUTO else read_counts(text)


def read_globs(text: str) -> list[str]:
    """``best/*,replay/*`` -> list."""
    return text.split(",")


def read_paths(text: str) -> list[str]:
    """Paths as in ``PATH`` -> list."""
    return text.split(os.pathsep)


def read_counts(text: str) -> dict[str, int]:
    """``local=1,persistent=4`` -> dict."""
    counts = {}
    for item in text.split(","):
        level, separator, count = item.partition("=")
        if not separator or not count.strip().isdigit():
            raise ValueError('LEVEL=COUNT, comma separated; every may be "auto"')
        counts[level.strip()] = int(count)
    return counts


def read_modes(text: str) -> str | dict[str, str]:
    """``replay/*=none,best/*=rank0`` -> dict; a single mode is returned unchanged."""
    if "=" not in text:
        return text
    modes = {}
    for item in text.split(","):
        pattern, separator, mode = item.rpartition("=")
        if not separator or not pattern.strip():
            raise ValueError("a mode, or GLOB=MODE, comma separated")
        modes[pattern.strip()] = mode.strip()
    return modes


def read_switch(text: str) -> bool:
    """``true`` or ``false``."""
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def read_size(text: str) -> float:
    """``1.5G`` or ``1.5G/s`` -> bytes."""
    return read_bytes(text.strip().removesuffix("/s"))


def read_secret(path: Path) -> bytes:
    """The content of a key file that no other user can have written."""
    try:
        descriptor = access.open_file(access.Root(path.parent, access.Rules(node=True)).path / path.name)
    except access.ForeignAccessError as error:
        expected = access.answers(error).get("expected")
        todo = f"put the key into a directory of your own, such as your home directory: {_MAKE}"
        raise ConfigError("a key file is not used", expected=expected, found=str(error), todo=todo) from error
    except OSError as error:
        found = f"{error.strerror}: {path}"
        todo = f"name a regular file, not a link, with {LEAST_SECRET_BYTES} random bytes: {_MAKE}"
        raise ConfigError("a key file cannot be opened", found=found, where=str(path), todo=todo) from error
    try:
        return _checked_secret(descriptor, path)
    except OSError as error:
        raise ConfigError("a key file cannot be read", found=str(error.strerror), where=str(path)) from error
    finally:
        os.close(descriptor)


def _checked_secret(descriptor: int, path: Path) -> bytes:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise ConfigError(
            "a key file is not used",
            expected=f"owned by this user (uid {os.geteuid()})",
            found=f"owned by uid {status.st_uid}",
            where=str(path),
            todo=f"make a copy of your own, or a new key: {_MAKE}",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            "a key file is not used: others may read or change it",
            expected="mode 0600 or 0400",
            found=f"mode {mode:04o}",
            where=str(path),
            todo=f"chmod 600 {path}; if others had access to it, make a new key: {_MAKE}",
        )
    secret = b""
    while len(secret) <= MOST_SECRET_BYTES and (more := os.read(descriptor, MOST_SECRET_BYTES + 1 - len(secret))):
        secret += more
    if not LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise ConfigError(
            "a key file has an impossible length",
            expected=f"{LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes",
            found=f"{len(secret)} bytes" if len(secret) <= MOST_SECRET_BYTES else "more",
            where=str(path),
            todo=_MAKE,
        )
    return secret


def no_such_setting(name: str, known: Collection[str], where: str | None = None) -> ConfigError:
    """The error for a setting that does not exist."""
    close = meant(name, known)
    todo = f"write {close}=..." if close else "remove it; docs/configuration.md describes all settings"
    expected = f"one of {', '.join(sorted(known))}"
    return ConfigError(f"there is no setting {name!r}", expected=expected, where=where, todo=todo)
