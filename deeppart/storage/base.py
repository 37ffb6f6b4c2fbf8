"""The protocol of a storage level."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from deeppart.model import Attempt
from deeppart.storage.files import DurableFile


class Level(Protocol):
    """A place where the parts of a step are stored.

    Attributes:
        name: one of ``model.LEVELS``.
        root: directory that holds the step directories.

    Example:
        >>> from pathlib import Path
        >>> from deeppart.storage.node import NodeLevel  # or a level of your own
        >>> from deeppart.testing import LEVEL_CHECKS
        >>> for number, check in enumerate(LEVEL_CHECKS):
        ...     check(NodeLevel(Path(f"disk-{number}").absolute(), "a" * 32, "local", "b" * 32))
    """

    name: str
    root: Path

    def open_part(self, attempt: Attempt, rank: int) -> DurableFile:
        """Begin a part file.

        Raises:
            StorageError: it cannot be created.
        """

    def part_path(self, attempt: Attempt, rank: int) -> Path:
        """The path of a part of this attempt."""
