"""The sources of settings beside arguments: ``DEEPPART_*`` variables, ``deeppart.toml`` and machine files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart.config.checks import AUTO, refusal
from deeppart.config.misspelt import no_such_setting
from deeppart.errors import ConfigError
from deeppart.model.units import read_bytes, read_rate, read_seconds

ENVIRONMENT_PREFIX = "DEEPPART_"
#: No setting of a checkpointer: the file by which a training is told to end (deeppart.elastic.told).
STOP_FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}STOP_FILE"
#: No setting either: print the library's own frames in tracebacks.
TRACEBACK_VARIABLE = f"{ENVIRONMENT_PREFIX}TRACEBACK"
CONFIG_FILE = "deeppart.toml"
#: Nobody writes so much by hand; a machine file has two kilobytes.
_MOST_TOML_BYTES = 1 << 20


def configured(known: Collection[str]) -> dict[str, Any]:
    """The settings of the file and of the environment; the environment wins.

    Args:
        known: the settings that there are.

    Raises:
        ConfigError: a setting that does not exist, or a value that cannot be read.
    """
    found: dict[str, Any] = {}
    for source, values in (
        (CONFIG_FILE, _found_file()),
        (f"{ENVIRONMENT_PREFIX}* environment variables", _read_environment(os.environ)),
    ):
        for name in sorted(values.keys() - known):
            raise no_such_setting(name, known, source)
        found |= values
    return found


def stop_file() -> str | None:
    """The file by which somebody tells this job to end, if one is named."""
    return os.environ.get(STOP_FILE_VARIABLE) or None


def shows_all_frames() -> bool:
    """True if errors that nobody catches are to be printed whole, on every rank."""
    return bool(os.environ.get(TRACEBACK_VARIABLE))


def _found_file() -> dict[str, Any]:
    """``deeppart.toml`` in the working directory, unless a stranger has put it there."""
    path = Path(CONFIG_FILE)
    if not path.is_file():
        return {}
    try:
        access.check_found(path)
    except OSError as error:
        raise ConfigError(f"{path} is not used", **{"found": str(error), **access.answers(error)}) from error
    return _read_file(path)


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}", found=str(error), where=str(path.absolute()), todo="correct or remove the file"
        ) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML, has a number that Python refuses to read, or is too long or too deeply nested.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_TOML_BYTES + 1)
    if len(data) > _MOST_TOML_BYTES:
        raise ValueError(f"the file is longer than {_MOST_TOML_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("the file is nested too deeply") from error


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {
        "every": lambda text: text if text == AUTO else _read_counts(text),
        "keep": _read_counts,
        "flush_bandwidth": _read_size,
        "scrub_bandwidth": _read_size,
        "kappa": _read_size,
        "timeout": float,
        "node_size": int,
        "encode_threads": int,
        "incremental": _read_switch,
        "replicated": _read_modes,
        "parity_group": int,
        "parity_tolerate": int,
        "exclude": lambda text: text.split(","),
        "sign_key_file": lambda text: text.split(os.pathsep),
    }
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in (STOP_FILE_VARIABLE, TRACEBACK_VARIABLE):
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        try:
            values[name] = None if text == "" else readers.get(name, str)(text)
        except ValueError as error:
            raise ConfigError(
                f"cannot read the environment variable {variable}", found=repr(text), expected=str(error)
            ) from error
    return {name: value for name, value in values.items() if value is not None}


def _read_counts(text: str) -> dict[str, int]:
    """``local=1,persistent=4`` -> dict."""
    counts = {}
    for item in text.split(","):
        level, separator, count = item.partition("=")
        if not separator or not count.strip().isdigit():
            raise ValueError('LEVEL=COUNT, comma separated; every may be "auto"')
        counts[level.strip()] = int(count)
    return counts


def _read_modes(text: str) -> str | dict[str, str]:
    """``replay/*=none,best/*=rank0`` -> dict; a mode alone as it is."""
    if "=" not in text:
        return text
    modes = {}
    for item in text.split(","):
        pattern, separator, mode = item.rpartition("=")
        if not separator or not pattern.strip():
            raise ValueError("a mode, or GLOB=MODE, comma separated")
        modes[pattern.strip()] = mode.strip()
    return modes


def _read_switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _read_size(text: str) -> float:
    return read_bytes(text.strip().removesuffix("/s"))


def kappa_of(machine: object) -> float:
    """Bytes that a rank copies in the time that one more tensor takes, by a machine file.

    Raises:
        ConfigError: there is no such file, or it does not say.
    """
    if not isinstance(machine, (str, os.PathLike)):
        raise refusal("machine", machine, "the name of a file that `deeppart-sim calibrate` has written")
    path = Path(machine)
    if not path.is_file():
        raise refusal("machine", str(machine), "a file that `deeppart-sim calibrate` has written; there is none")
    memory = _read_file(path).get("memory", {})
    try:
        return read_seconds(memory["tensor"]) * read_rate(memory["copy"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise refusal("machine", str(path), f"a table [memory] with `tensor` and `copy` ({error})") from error
