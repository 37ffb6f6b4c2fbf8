"""The look at what a repair has put in place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deeppart.offline.inspect.node_files import lineage_on_nodes, verify_nodes
from deeppart.offline.inspect.reach import Reach
from deeppart.offline.inspect.repair_results import Results, is_base
from tests.unit.cli_support import flip, part_path, save_incrementally, step_dir


@pytest.mark.parametrize("level", ["persistent", "node"])
def test_each_thing_that_can_be_wrong(tmp_path: Path, level: str) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local)
    steps = root if level == "persistent" else node
    path = part_path(steps, 3)
    (base,) = step_dir(steps, 3).glob("base-*")
    reach = Reach(root, verify_nodes([local], lineage_on_nodes(root), None), [], None)
    results = Results(reach, None)
    assert results.problem(path) is None and results.problem(base) is None
    sound, of_base = path.read_bytes(), base.read_bytes()

    flip(path, 5000)
    assert "digest" in (results.problem(path) or "") and results.problem(base) is None
    shutil.copy(part_path(steps, 2), path)
    assert "another attempt" in (results.problem(path) or "")
    path.write_bytes(sound)

    base.unlink()
    base.write_bytes(of_base)
    flip(base, 4_000_000)
    assert "digest" in (results.problem(path) or "") and "digest" in (results.problem(base) or ""), "chunks in it"
    base.unlink()
    assert results.problem(path) is not None and results.problem(base) is not None and not is_base(base)
    base.write_bytes(sound)
    assert results.problem(base) is not None and not is_base(base)
    base.write_bytes(of_base)
    assert results.problem(path) is None and is_base(base)
