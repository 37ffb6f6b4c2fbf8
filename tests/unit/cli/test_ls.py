"""``deeppart ls``: every state a step can be in, node-local parts, and who owns the directory."""

from __future__ import annotations

import json
from pathlib import Path

import deeppart
from tests.unit.cli_support import call, call_json, manifest_path, part_path, save

ON_NODES = "there may be more on nodes: use --local DIR, with the local_dir of the job"


def test_complete_steps(tmp_path: Path) -> None:
    save(tmp_path, 9, 10)
    text = call("ls", tmp_path)
    lines = text.splitlines()
    assert lines[0].split() == ["step", "ranks", "size", "raw", "created", "(UTC)", "parts", "at", "state"]
    assert [line.split()[0] for line in lines[1:]] == ["9", "10"]
    assert all(line.split()[-2:] == ["persistent", "complete"] for line in lines[1:])
    document = call_json("ls", tmp_path)
    assert document.keys() == {"directory", "lineage", "owner", "steps", "problems"}
    step = document["steps"][1]
    size = part_path(tmp_path, 10).stat().st_size
    assert (step["step"], step["state"], step["is_restorable"], step["reasons"]) == (10, "complete", True, [])
    assert (step["attempt"]["world_size"], step["nbytes"], step["key"]["sequence"]) == (1, size, 1)
    assert 0 < step["raw_bytes"] < size
    assert step["library"] == f"deeppart {deeppart.__version__}"
    assert step["places"] == [{"level": "persistent", "directory": str(tmp_path), "parts": [0]}]


def test_empty_directory(tmp_path: Path) -> None:
    assert call("ls", tmp_path, code=1) == f"no steps in {tmp_path}\n{ON_NODES}\n"
    assert call_json("ls", tmp_path, code=1)["steps"] == []


def test_local_is_named_where_it_could_tell_more(tmp_path: Path) -> None:
    root, local = tmp_path / "ckpt", tmp_path / "local"
    assert "only on nodes are not in DIR. Use --local" in " ".join(call("ls", "--help").split())
    save(root, 1, 2, local_dir=local)
    assert ON_NODES not in call("ls", root), "nothing is missing"
    manifest_path(root, 1).unlink()
    assert ON_NODES not in call("ls", root), "older than what can be restored"
    manifest_path(root, 2).unlink()
    assert call("ls", root, code=1).endswith(f"{ON_NODES}\n")
    assert ON_NODES not in call("ls", root, "--local", local), "it has been looked there"
    assert "on nodes" not in json.dumps(call_json("ls", root, code=1))
