"""Where the part of a rank goes."""

from __future__ import annotations

from pathlib import Path

from deeppart.model import Attempt
from deeppart.save.rank_storage import RankStorage
from deeppart.storage.node import NodeLevel
from deeppart.storage.persistent import PersistentLevel


def test_each_level_has_a_path_and_without_a_local_level_there_is_one(tmp_path: Path) -> None:
    attempt = Attempt("a" * 32, "b" * 32, 0, 5, 3)
    local, persistent = NodeLevel(tmp_path / "local", "a" * 32, "local", "b" * 32), PersistentLevel(tmp_path / "ckpt")
    both, one = RankStorage(2, local, persistent), RankStorage(2, None, persistent)
    assert both.part_path("local", attempt) == local.part_path(attempt, 2)
    assert both.part_path("persistent", attempt) == persistent.part_path(attempt, 2) != both.part_path("local", attempt)
    assert one.part_path("local", attempt) == one.part_path("persistent", attempt)
