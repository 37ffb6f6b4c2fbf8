"""Key files: what checkpoints are signed with, read so that nobody else can have had a hand in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from deeppart import access
from deeppart.errors import ConfigError
from deeppart.part import Signing
from deeppart.part.signing import LEAST_SECRET_BYTES, MOST_SECRET_BYTES

#: What is taken for ``sign_key_file``: one file, or several, of which the first signs and all verify; None for no keys.
KeyFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None

#: The directories on the way must be the user's own or root's, or shared with a sticky bit.
_WAY = access.node_place("private")
_MAKE = "(umask 077 && head -c 32 /dev/urandom > FILE)"


def read_key_files(files: KeyFiles) -> Signing | None:
    """The keys of ``sign_key_file``; None without any.

    Raises:
        ConfigError: a file is missing, too short or too long, not regular, owned by another user, or others may read it
            or put another one in its place.
    """
    if files is None:
        return None
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    return Signing([_secret(Path(each).absolute()) for each in paths]) if paths else None


def _secret(path: Path) -> bytes:
    try:
        with access.open_folder(path.parent, _WAY) as folder:
            descriptor = folder.open(path.name)
    except access.ForeignAccessError as error:
        expected = access.answers(error).get("expected")
        todo = f"put the key into a directory of your own, such as your home directory: {_MAKE}"
        raise ConfigError("a key file is not used", expected=expected, found=str(error), todo=todo) from error
    except OSError as error:
        found = f"{error.strerror}: {path}"
        todo = f"name a regular file, not a link, with {LEAST_SECRET_BYTES} random bytes: {_MAKE}"
        raise ConfigError("a key file cannot be opened", found=found, where=str(path), todo=todo) from error
    try:
        return _checked(descriptor, path)
    except OSError as error:
        raise ConfigError("a key file cannot be read", found=str(error.strerror), where=str(path)) from error
    finally:
        os.close(descriptor)


def _checked(descriptor: int, path: Path) -> bytes:
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
