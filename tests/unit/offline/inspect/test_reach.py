"""What a repair can draw from, and what a place requires."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError
from deeppart.offline.inspect.node_files import NodeFiles, lineage_on_nodes, verify_nodes
from deeppart.offline.inspect.reach import Reach, header_of, kept_in
from tests.unit.cli_support import call_json, part_path, save, save_incrementally, step_dir

NO_NODES = NodeFiles((), (), 0, 0, ())


def test_a_place_tells_the_checkpoint_and_not_what_lies_there(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local)
    (node,) = local.iterdir()
    for level in (root, node):
        shutil.copy(part_path(level, 1), part_path(level, 2))
    nodes = verify_nodes([local], lineage_on_nodes(root), None)
    reach = Reach(root, nodes, [part_path(root, 2)], None)
    for level in (root, node):
        assert reach.attempt_of(part_path(level, 2), 1).step == 2
    header = header_of(part_path(root, 2))
    assert header is not None and header.attempt.step == 1
    with pytest.raises(CorruptFileError, match="nothing tells"):
        reach.attempt_of(tmp_path / "x" / "part-00000-of-00001.dpp", 1)


def test_a_part_on_a_node_without_its_base_and_without_a_manifest(tmp_path: Path) -> None:
    """Nothing but its own header tells what it is."""
    root, local = tmp_path / "p", tmp_path / "l"
    three = step_dir(save_incrementally(root, local), 3)
    shutil.rmtree(step_dir(root, 3))
    (base,) = three.glob("base-*")
    base.unlink()
    document = call_json("verify", root, "--all", "--local", local, "--repair")
    assert [each["repaired"] for each in document["repairs"]] == [True] and base.is_file()


def test_what_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / ".part-00000-of-00001.dpp.kept-0a1b2c3d"
    for path in (kept, tmp_path / "part-00000-of-00001.dpp"):
        path.touch()
    assert kept_in(tmp_path) == [kept] and kept_in(tmp_path / "none") == []


def test_copies_of_what_is_not_known(tmp_path: Path) -> None:
    save(tmp_path / "p", 1)
    save(tmp_path / "q", 1)
    header = header_of(part_path(tmp_path / "q", 1))
    assert header is not None and Reach(tmp_path / "p", NO_NODES, [], None).copies(header.attempt, 0) == []
