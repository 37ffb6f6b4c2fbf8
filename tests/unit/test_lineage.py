"""The name of a checkpoint directory, and copies of directories that had the same one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartWarning, StorageError
from deeppart.levels import lineage
from deeppart.levels.lineage import LOCK_NAME
from tests.unit import cli_support


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def life(directory: Path, name: str, *save: float) -> tuple[int | None, float]:
    """Restore, and save some steps; what was restored."""
    local = str(directory / "local")
    with deeppart.Checkpointer(config(directory / name, local_dir=local, keep={"local": 3})) as ck:
        live = {"w": torch.zeros(100_000)}
        restored = ck.restore(live)
        for value in save:
            ck.checkpoint({"w": torch.full((100_000,), value)}, (restored or 0) + 1).wait(timeout=20)
    return restored, float(live["w"][-1])


def copied(directory: Path, way: str) -> None:
    """A run is branched."""
    if way in ("cp -a", "cp -al"):
        subprocess.run(["cp", way[3:], directory / "a", directory / "b"], check=True)
    else:
        shutil.copytree(directory / "a", directory / "b")
    if way == "without its record":
        (directory / "b" / "deeppart.json").unlink()


@pytest.mark.parametrize("way", ["cp -r", "cp -a", "without its record"])
def test_a_copy_of_a_directory_is_one_of_its_own(way: str, tmp_path: Path) -> None:
    """It keeps its steps, and has parts on nodes of its own."""
    life(tmp_path, "a", 1.0)
    copied(tmp_path, way)
    assert life(tmp_path, "a", 2.0) == (1, 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert life(tmp_path, "b", 20.0) == (1, 1.0)
    told = [str(each.message) for each in caught]
    assert len(told) == (way != "without its record") and all("is a copy of" in text for text in told)
    assert life(tmp_path, "a") == (2, 2.0) and life(tmp_path, "b") == (2, 20.0), "and nothing more is said"
    assert len(list((tmp_path / "local").iterdir())) == 2


def moved(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.with_name("elsewhere").rename(root)


def opened_to_the_group(root: Path) -> None:
    for path in root.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)


def record_brought_back(root: Path) -> None:
    record = (root / "deeppart.json").read_bytes()
    (root / "deeppart.json").unlink()
    (root / "deeppart.json").write_bytes(record)


def lock_file_removed(root: Path) -> None:
    (root / LOCK_NAME).unlink()


def lock_file_of_an_earlier_version(root: Path) -> None:
    record = json.loads((root / LOCK_NAME).read_bytes())
    del record["place"]
    (root / LOCK_NAME).write_text(json.dumps(record))
    record_brought_back(root)


@pytest.mark.parametrize(
    "change",
    [moved, opened_to_the_group, record_brought_back, lock_file_removed, lock_file_of_an_earlier_version],
)
def test_what_is_no_copy(change: Callable[[Path], None], tmp_path: Path) -> None:
    """Parts on nodes that are nowhere else are found."""
    local = config(tmp_path / "a", local_dir=str(tmp_path / "local"), every={"persistent": 2})
    with deeppart.Checkpointer(local) as ck:
        for step in (1, 2, 3):
            ck.checkpoint({"x": torch.full((10,), step)}, step).wait("local", timeout=20)
    change(tmp_path / "a")
    live = {"x": torch.zeros(10, dtype=torch.int64)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with deeppart.Checkpointer(local) as ck:
            assert ck.restore(live) == 3


@pytest.mark.parametrize("moved_to", ["elsewhere", "another file system"])
def test_a_directory_that_was_moved(moved_to: str, tmp_path: Path, memory: Path) -> None:
    """By renaming, its parts on nodes are found. By copying and removing, it may as well be a copy: it is told."""
    local = str(tmp_path / "local")
    settings = {"local_dir": local, "every": {"persistent": 2}, "keep": {"local": 3}}
    with deeppart.Checkpointer(config(tmp_path / "a", **settings)) as ck:
        for step in (1, 2):
            ck.checkpoint({"x": torch.full((10,), step)}, step).wait("local", timeout=20)
    target = tmp_path / "b" if moved_to == "elsewhere" else memory / "b"
    shutil.move(tmp_path / "a", target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(target, **settings)) as ck:
            restored = ck.restore({"x": torch.zeros(10, dtype=torch.int64)})
    told = [str(each.message) for each in caught if "is a copy of" in str(each.message)]
    assert (restored, len(told)) == ((2, 0) if moved_to == "elsewhere" else (1, 1))


HERE = lineage.Place("/p", lock=3, record=4, changed_ns=100, filesystem=7)


@pytest.mark.parametrize(
    ("before", "names", "copy"),
    [
        (HERE, 1, False),
        (replace(HERE, changed_ns=99), 1, False),  # chmod
        (replace(HERE, changed_ns=99, record=5), 1, False),  # the record was brought back
        (replace(HERE, changed_ns=99, record=5, lock=6), 1, True),
        (replace(HERE, changed_ns=99, filesystem=8), 1, True),  # both empty before: the numbers are the same
        (replace(HERE, record=5, lock=6, filesystem=8), 1, False),  # nobody can set that time: numbers that vary
        (replace(HERE, path="/elsewhere"), 1, False),
        (None, 1, False),
        (None, 2, True),
    ],
)
def test_what_a_copy_is_told_by(before: lineage.Place | None, names: int, copy: bool) -> None:
    assert lineage._is_copy("ab" * 16, before, HERE, names) == copy


def test_the_original_is_seen_where_numbers_are_the_same(tmp_path: Path) -> None:
    """On file systems that say nothing of themselves."""
    life(tmp_path, "a", 1.0)
    copied(tmp_path, "cp -r")
    (name, record) = (json.loads((tmp_path / "a" / "deeppart.json").read_bytes())["lineage"], tmp_path / "b")
    here = lineage.Place(str(record), 3, 4, 100, 0)
    before = lineage.Place(str(tmp_path / "a"), 3, 4, 99, 0)
    assert lineage._is_copy(name, before, here, 1)
    shutil.rmtree(tmp_path / "a")
    assert not lineage._is_copy(name, before, here, 1)


def test_commands_leave_the_nodes_of_the_original_alone(tmp_path: Path) -> None:
    life(tmp_path, "a", 1.0)
    copied(tmp_path, "cp -r")
    local, copy = str(tmp_path / "local"), tmp_path / "b"
    for words in (
        ("prune", copy, "--after", "0", "--yes", "--allow-empty"),
        ("verify", copy),
        ("restore", copy, "--dry-run"),
    ):
        result = cli_support.invoke(*words, "--local", local)
        assert result.exit_code and "is a copy that no job has used" in result.output
    assert "copy that no job has used" in cli_support.call("ls", copy, "--local", local)
    assert life(tmp_path, "a") == (1, 1.0)
    with pytest.warns(DeeppartWarning, match="is a copy of"):
        life(tmp_path, "b", 2.0)
    assert "copy" not in cli_support.call("verify", copy, "--local", local)


def test_a_copy_of_hard_links_has_the_lock_file_too(tmp_path: Path) -> None:
    """What one job writes there would tell the other that it was overtaken: it is refused until it is removed."""
    life(tmp_path, "a", 1.0)
    copied(tmp_path, "cp -al")
    for name in "ab":
        with pytest.raises(StorageError, match=r"found: 2 names[^$]*to do: remove the file"):
            life(tmp_path, name)
    (tmp_path / "b" / LOCK_NAME).unlink()
    assert life(tmp_path, "a", 2.0) == (1, 1.0)
    with pytest.warns(DeeppartWarning, match="is a copy of"):
        assert life(tmp_path, "b", 20.0) == (1, 1.0)
    assert life(tmp_path, "a") == (2, 2.0) and life(tmp_path, "b") == (2, 20.0)


def test_a_directory_that_takes_the_place_of_the_original(tmp_path: Path) -> None:
    """As the warning says: a backup is brought back, and the nodes have newer steps."""
    life(tmp_path, "a", 1.0)
    copied(tmp_path, "cp -a")
    life(tmp_path, "a", 2.0)
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.warns(DeeppartWarning, match="put that lineage back") as told:
        assert life(tmp_path, "a") == (1, 1.0)
    former = re.findall(r"below ([0-9a-f]{32}) are not used", str(told[0].message))[0]
    record = json.loads((tmp_path / "a" / "deeppart.json").read_bytes())
    assert record["copy_of"] == former
    (tmp_path / "a" / "deeppart.json").write_text(json.dumps(record | {"lineage": former}))
    (tmp_path / "a" / LOCK_NAME).unlink()
    assert life(tmp_path, "a") == (2, 2.0)
