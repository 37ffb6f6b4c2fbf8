"""What of a checkpoint is exported, and how its leaves are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.errors import StateError, StructureMismatchError
from deeppart.extension.export.content import Content
from deeppart.offline.find import with_checkpoint
from deeppart.offline.reading import OpenCheckpoint
from deeppart.testing.states import Box
from tests.unit.interop.making import saved


def looked_at(root: Path, look: Callable[[Content], Any], **options: Any) -> Any:
    def use(chosen: Any) -> Any:
        with ExitStack() as files:
            checkpoint = OpenCheckpoint(files, chosen.directory, chosen.manifest, 0, signing=None)
            return look(Content(checkpoint, **options))

    return with_checkpoint(root, None, use, None)


def test_containers_by_their_paths(tmp_path: Path) -> None:
    state = {"m": Box({"a/b": {"x": torch.ones(1)}, "l": [{"y": torch.ones(2)}]}), "n": 5}
    root = saved(tmp_path / "ckpt", state)
    for path, leaves in (("m", 2), ("m/a~1b", 1), ("/m/l/", 1), ("m/l/0", 1)):
        assert looked_at(root, lambda content: len(content.leaves), inner=path) == leaves
    for path in ("n", "m/x", "m/l/1", "m/l/0/y", "none"):
        with pytest.raises(StructureMismatchError, match="no such container"):
            looked_at(root, id, inner=path)


def test_a_few_bytes_that_would_be_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.ones(10)
    root = saved(tmp_path / "ckpt", {"a": base, "wide": base[:1].expand(5000)})
    looked_at(root, Content.refuse_repeats)
    monkeypatch.setattr("deeppart.offline.reading.BATCH_BYTES", 1000)
    with pytest.raises(StateError, match="repeats its few bytes"):
        looked_at(root, Content.refuse_repeats)
