"""The name of a checkpoint directory, and copies of directories that had the same one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartWarning, StorageError
from deeppart.storage import LOCK_NAME, lineage
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
            ck.checkpoint({"w": torch.full((100_000,), value)}, (restored or 0) + 1).wait(timeout=200)
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


def record_brought_back(root: Path) -> None:
    record = (root / "deeppart.json").read_bytes()
    (root / "deeppart.json").unlink()
    (root / "deeppart.json").write_bytes(record)


def record_lost(root: Path) -> None:
    (root / "deeppart.json").unlink()


def a_digit_of_the_record_flipped(root: Path) -> None:
    record = json.loads((root / "deeppart.json").read_bytes())
    record["lineage"] = record["lineage"][:-1] + ("0" if record["lineage"][-1] != "0" else "1")
    (root / "deeppart.json").write_text(json.dumps(record))


@pytest.mark.parametrize("change", [record_brought_back, record_lost, a_digit_of_the_record_flipped])
def test_what_is_no_copy(change: Callable[[Path], None], tmp_path: Path) -> None:
    """Parts on nodes that are nowhere else are found. More such changes: tests/property/test_lineage_properties.py."""
    local = config(tmp_path / "a", local_dir=str(tmp_path / "local"), every={"persistent": 2})
    with deeppart.Checkpointer(local) as ck:
        for step in (1, 2, 3):
            ck.checkpoint({"x": torch.full((10,), step)}, step).wait("local", timeout=200)
    change(tmp_path / "a")
    live = {"x": torch.zeros(10, dtype=torch.int64)}
    damaged = change is a_digit_of_the_record_flipped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(local) as ck:
            assert ck.restore(live) == 3
    assert ["the digest does not hold" in str(each.message) for each in caught] == [True] * damaged


def on_another_node(patched: pytest.MonkeyPatch) -> None:
    """File systems whose identity is another one on each node; or another volume, whose root has the same number."""
    here = os.fstatvfs

    class There:
        def __init__(self, descriptor: int) -> None:
            self.f_fsid = here(descriptor).f_fsid + 1

    patched.setattr(os, "fstatvfs", There)


@pytest.mark.parametrize("other_volume", [False, True], ids=["the same on another node", "a copy at the same path"])
def test_another_identity_of_the_file_system(
    other_volume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = newer_on_nodes(tmp_path)
    with monkeypatch.context() as patched:
        on_another_node(patched)
        if other_volume:
            record_brought_back(tmp_path / "a")
        assert lineage.is_copy(tmp_path / "a") == other_volume
        assert start("a") == (COPY if other_volume else ORIGINAL)
        assert start("a")[1] == 0, "said once"


def newer_on_nodes(directory: Path) -> Callable[[str], tuple[int | None, int]]:
    """Step 1 is persistent, step 2 on nodes only; gives what a start restores, and how often it is told of a copy."""
    settings: dict[str, Any] = {"local_dir": str(directory / "local"), "every": {"persistent": 2}, "keep": {"local": 3}}
    with deeppart.Checkpointer(config(directory / "a", **settings)) as ck:
        for step in (1, 2):
            ck.checkpoint({"x": torch.full((10,), step)}, step).wait("local", timeout=200)

    def start(name: str) -> tuple[int | None, int]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with deeppart.Checkpointer(config(directory / name, **settings)) as ck:
                restored = ck.restore({"x": torch.zeros(10, dtype=torch.int64)})
        return restored, sum("is a copy of" in str(each.message) for each in caught)

    return start


ORIGINAL, COPY = (2, 0), (1, 1)


#: What is done -> what the starts after it are.
EXCHANGES = {
    "mv a b; cp -a b a; chmod -R g-w,o-rwx b": (("b", ORIGINAL), ("a", COPY)),
    "mv a b; cp -a b a; chmod -R g-w,o-rwx b; true": (("a", COPY), ("b", ORIGINAL)),
    "mv a b; cp -a b a; cp b/deeppart.json j; mv j b/deeppart.json": (("b", ORIGINAL), ("a", COPY)),
    "cp -r a b; rm b/.deeppart.lock a/.deeppart.lock": (("a", ORIGINAL), ("b", COPY)),
    "cp -al a b; rm b/.deeppart.lock": (("b", COPY), ("a", ORIGINAL)),
    "cp -al a b; rm a/.deeppart.lock": (("a", ORIGINAL), ("b", COPY)),
    "cp -al a b; rm a/.deeppart.lock; true": (("b", COPY), ("a", ORIGINAL)),
    "cp -al a b; rm a/.deeppart.lock b/.deeppart.lock": (("a", ORIGINAL), ("b", COPY)),
    "cp -al a b; rm a/.deeppart.lock b/.deeppart.lock; true": (("b", COPY), ("a", ORIGINAL)),
    "ln -s a b; chmod -R g-w,o-rwx a": (("b", ORIGINAL), ("a", ORIGINAL)),
    "mv a c; mkdir a; cp -r c/* a": (("a", COPY), ("c", ORIGINAL)),
}


@pytest.mark.parametrize("commands", EXCHANGES)
def test_the_original_keeps_its_nodes_and_the_copy_does_not_get_them(commands: str, tmp_path: Path) -> None:
    start = newer_on_nodes(tmp_path)
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True)
    for name, expected in EXCHANGES[commands]:
        assert start(name) == expected, name


def test_commands_leave_the_nodes_of_the_original_alone(tmp_path: Path) -> None:
    life(tmp_path, "a", 1.0)
    copied(tmp_path, "cp -r")
    local, copy = str(tmp_path / "local"), tmp_path / "b"
    for words in (
        ("prune", copy, "--after", "0", "--yes", "--allow-empty"),
        ("verify", copy),
        ("explain", copy),
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
    with pytest.warns(DeeppartWarning, match="If this directory replaces the original") as told:
        assert life(tmp_path, "a") == (1, 1.0)
    text = re.findall(r"write (\{.*\}) to deeppart.json", str(told[0].message))[0]
    (tmp_path / "a" / "deeppart.json").write_text(text)
    (tmp_path / "a" / LOCK_NAME).unlink()
    assert life(tmp_path, "a") == (2, 2.0)
