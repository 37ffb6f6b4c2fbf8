"""What is promised of files that a part refers to, when their directory cannot be looked into."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from deeppart import access
from deeppart.errors import StorageError
from deeppart.model import Attempt
from deeppart.storage.node import NodeLevel


def test_an_error_of_the_system_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange of copies goes on after a StorageError; after anything else this rank leaves the others waiting."""

    def refused(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(path))

    lineage = "0" * 32
    level = NodeLevel(tmp_path, lineage, "partner", "1" * 32)
    monkeypatch.setattr(access, "exists", refused)
    with pytest.raises(StorageError, match="cannot look for a file that a part refers to"):
        level.adopt_bases(Attempt(lineage, "1" * 32, 0, 5, 2), ["base-0"])
