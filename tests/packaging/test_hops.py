"""How many modules a tensor passes through on its way out and back, counted where the system calls are made.

A hop is a step from one module to the next. docs/architecture.md shows the ways; the queue between two threads is a
step within ``save/pipeline.py``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import deeppart

ROOT = Path(deeppart.__file__).parent
ARCHITECTURE = (ROOT.parent / "docs/architecture.md").read_text()
#: Around every call, or at the bottom of every thread: they are on no way.
HELPERS = frozenset({"_threads.py", "errors.py", "save/stages.py", "save/workers.py"})
MOST = {"local bytes": 8, "manifest": 13, "restore": 8}


def modules() -> Iterator[str]:
    """The modules of the library on the stack, outermost first."""
    frame: FrameType | None = sys._getframe(2)
    found = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            found.append(str(path.relative_to(ROOT)))
        frame = frame.f_back
    return (name for name in reversed(found) if name not in HELPERS)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...], int]]:
    """(system call, modules on the way to it, bytes) of every write and read from now on."""
    calls: list[tuple[str, tuple[str, ...], int]] = []

    def record(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def recording(*arguments: Any) -> Any:
            done = original(*arguments)
            way = list(modules())
            calls.append((name, tuple(way[:1] + [b for a, b in pairwise(way) if a != b]), int(done or 0)))
            return done

        return recording

    for name in ("write", "pwrite", "preadv", "pread"):
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    return calls


def named_in_architecture(title: str) -> list[str]:
    """The modules of the way that the document shows under a title."""
    (found,) = re.findall(rf"^- {title} \((\d+) hops\):\s(.+?)$", ARCHITECTURE, flags=re.MULTILINE)
    count, way = found
    names: list[str] = re.findall(r"`([\w/]+\.py)`", way)
    assert len(names) - 1 == int(count) <= MOST[title]
    return names


def test_as_many_as_the_document_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = deeppart.Config(str(tmp_path / "p"), local_dir=str(tmp_path / "n"), compression="none")
    state = {"w": torch.randn(1_000_000)}
    with deeppart.Checkpointer(config) as checkpointer:
        with monkeypatch.context() as patch:
            calls = recorded(patch)
            checkpointer.checkpoint(state, 1).wait(timeout=60)
        writes = [(way, nbytes) for name, way, nbytes in calls if "write" in name and way]
        (local, *_) = [
            way for way, nbytes in writes if nbytes >= 1 << 20 and "save/write.py" in way and "part/writer.py" in way
        ]
        (manifest, *_) = [way for way, _ in writes if "save/complete.py" in way]
        training = ["checkpointer.py", "session/saves.py"]  # what follows is in the background
        assert [*training, *local] == named_in_architecture("local bytes")
        assert [*training, *manifest] == named_in_architecture("manifest")
        with monkeypatch.context() as patch:
            calls = recorded(patch)
            checkpointer.restore(state)
        reads = [way for _, way, nbytes in calls if nbytes and "recovery/load_part.py" in way]
        assert list(reads[-1]) == named_in_architecture("restore")
