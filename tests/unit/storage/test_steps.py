"""Step directories: their names, and what is left in them or beside them."""

from __future__ import annotations

from pathlib import Path

import deeppart
from deeppart.part import step_name
from deeppart.storage import PosixStore, list_steps
from tests.unit.one_rank import config, leave_behind, persistent_steps, state


def test_a_leftover_step_number_may_be_used_again(memory: Path) -> None:
    leave_behind(memory)
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        for step in (2, 3):
            ck.checkpoint(state(step * 10), step).wait(timeout=200)
    assert persistent_steps(memory) == [1, 2, 3]
    assert [deeppart.load(memory / "p", step)["step"] for step in (1, 2, 3)] == [1, 20, 30]


def test_files_of_others_are_never_removed(memory: Path) -> None:
    leave_behind(memory)
    foreign = []
    for root in (memory / "p", next((memory / "l").iterdir())):
        for directory in [root / step_name(key) for key in list_steps(PosixStore(root))]:
            if directory.is_dir():
                for name in ("notes.txt", "part-1.dpp", ".hidden", "manifest.bak", "part-00000-of-00001.dpp.old"):
                    (directory / name).write_text("mine")
                    foreign.append(directory / name)
                (directory / "subdirectory").mkdir()
                (directory / "subdirectory" / "part-00000-of-00001.dpp").write_text("mine")
                foreign.append(directory / "subdirectory" / "part-00000-of-00001.dpp")
        (root / "other").write_text("mine")
        foreign.append(root / "other")
    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        for step in (10, 11):
            pending = ck.checkpoint(state(step), step)
            pending.wait("local", timeout=200)
            pending.wait("persistent", timeout=200)
    assert [path for path in foreign if path.read_text() != "mine"] == [], "left alone"
    ours = [path for path in memory.rglob("*") if path.is_file() and path not in foreign]
    steps = {path.parent.name for path in ours if path.parent.name.startswith("step-")}
    (name,) = steps
    assert name.startswith("step-000000000011-"), "\n".join(map(str, ours))
    with deeppart.Checkpointer(config(memory)) as ck:
        live = state(0)
        assert ck.restore(live) == 11
