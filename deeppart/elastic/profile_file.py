"""The profile of a job in its persistent directory: ``deeppart-profile.json``.

Rank 0 of a job, which has the directory, writes it, atomically; who reads it needs no lock. What it says bears on
advice alone, so a job that cannot write it goes on.
"""

from __future__ import annotations

import json
from pathlib import Path

from deeppart.errors import ConfigError, CorruptFileError, FormatError, StorageError
from deeppart.part.json_text import parse_json
from deeppart.storage.files import UNUSABLE, read_file, write_file

from .profile import PROFILE_NAME, Profile

_MOST_BYTES = 4 << 20


def write_profile(directory: Path, profile: Profile) -> None:
    """Put a profile in the place of that which is there.

    Args:
        directory: the persistent directory.

    Raises:
        StorageError: the operating system refused.
    """
    write_file(directory / PROFILE_NAME, json.dumps(profile.document(), indent=1).encode() + b"\n")


def read_profile(directory: Path) -> Profile | None:
    """The profile of a directory; None if there is none.

    Args:
        directory: the persistent directory.

    Raises:
        FormatError: the file is damaged, or of another version.
        StorageError: it cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from deeppart.elastic.profile import Profile
        >>> from deeppart.elastic.profile_file import read_profile, write_profile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write_profile(Path(directory), Profile(largest_batch=128))
        ...     read_profile(Path(directory)).largest_batch
        128
    """
    path = directory / PROFILE_NAME
    try:
        return Profile.from_document(parse_json(read_file(path, _MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (StorageError, FormatError):
        raise
    except (*UNUSABLE, ConfigError) as error:
        raise CorruptFileError(
            "the profile of a job cannot be used", found=f"{type(error).__name__}: {error}", where=str(path),
            todo="remove it: the next run of the job measures again",
        ) from error  # fmt: skip
