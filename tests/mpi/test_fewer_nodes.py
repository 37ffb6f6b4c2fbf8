"""A job comes back on fewer nodes than its protection needs: it goes on with less, and says so wherever one looks."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import deeppart
from deeppart.cli.app import main

#: For a job, on a busy machine.
JOB_S = 200.0
SETTINGS: dict[str, Any] = {"parity_group": 4, "parity_tolerate": 2}

pytestmark = pytest.mark.timeout(900)


def config(directory: Path, **settings: Any) -> deeppart.Config:
    every = {"partner": 1, "parity": 1, "persistent": 2}
    local = str(directory / "local" / "{node}")
    defaults = {"local_dir": local, "node_size": 1, "every": every, "timeout": 60.0}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **(defaults | SETTINGS | settings))


def life(directory: Path, save: tuple[int, ...], settings: dict[str, Any]) -> dict[str, Any]:
    """Restore, save some steps, and die if told so; with all that was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, **settings)) as ck:
            state = {"w": torch.zeros(200_000)}
            restored = ck.restore(state)
            value = state["w"][-1].item()
            for step in save:
                state["w"].fill_(step)
                pending = ck.checkpoint(state, step)
                for level in pending.levels:
                    pending.wait(level)
    return {
        "restored": (restored, value),
        "said": [(type(warning.message).__name__, str(warning.message)) for warning in caught],
        "reduced": pending.report.reduced if save else (),
        "levels": {level: report.state for level, report in pending.report.levels.items()} if save else {},
    }


def lose(directory: Path, *nodes: int) -> None:
    for node in nodes:
        shutil.rmtree(directory / "local" / f"node{node}")


def names(found: dict[str, Any]) -> list[str]:
    return [name for name, _ in found["said"]]


def test_four_nodes_then_three_then_one_then_four(run_ranks: Any, tmp_path: Path) -> None:
    def run(nodes: int, *save: int, **settings: Any) -> list[dict[str, Any]]:
        return run_ranks(nodes, life, tmp_path, save, settings, timeout=JOB_S).values

    for found in run(4, 1, 2):
        assert found["said"] == [] and found["reduced"] == () and found["restored"] == (None, 0.0)
    lose(tmp_path, 3)

    on_three = run(3, 3, 4)
    assert names(on_three[0]) == ["ReducedProtectionWarning"] and names(on_three[1]) == names(on_three[2]) == []
    said = on_three[0]["said"][0][1]
    assert "parity_group = 4 and parity_tolerate = 2" in said and "3 nodes" in said and "'strict'" in said
    for found in on_three:
        assert found["restored"] == (2, 2.0) and said.find(found["reduced"][0]) > 0
        assert found["levels"] == dict.fromkeys(("local", "partner", "parity"), "done") | {"persistent": "off"}
    lose(tmp_path, 1, 2)  # as many as 2 of 3 may be lost: what holds now is true
    for found in run(3):
        assert found["restored"] == (4, 4.0)

    (alone,) = run(1, 5)
    assert names(alone) == ["ReducedProtectionWarning"] and "node0" in alone["said"][0][1]
    assert alone["levels"] == {"local": "done", "partner": "off", "parity": "off", "persistent": "done"}
    assert [line.partition(" ")[0] for line in alone["reduced"]] == ["partner", "parity"]

    back = run(4, 6, 7)
    assert names(back[0]) == ["DeeppartWarning"] and "enough nodes again" in back[0]["said"][0][1]
    assert all(found["restored"] == (5, 5.0) and found["reduced"] == () for found in back)
    assert run(4)[0]["said"] == [], "said once"
    lose(tmp_path, 0, 3)
    assert [found["restored"] for found in run(4)] == [(7, 7.0)] * 4

    listed = CliRunner().invoke(main, ["ls", str(tmp_path / "ckpt"), "--json"])
    reduced = {step["step"]: step["reduced_protection"] for step in json.loads(listed.stdout)["steps"]}
    assert list(reduced) == [3, 5, 6]
    assert reduced[3] == list(on_three[0]["reduced"]) and reduced[5] == list(alone["reduced"]) and reduced[6] == []
    text = " ".join(CliRunner().invoke(main, ["ls", str(tmp_path / "ckpt")]).stdout.split())
    assert f"less protection than asked for: step 3: {on_three[0]['reduced'][0]}" in text


def strict(directory: Path) -> str:
    with pytest.raises(deeppart.ConfigError) as caught:
        deeppart.Checkpointer(config(directory, protection="strict"))
    return str(caught.value)


def test_strict_refuses(run_ranks: Any, tmp_path: Path) -> None:
    for text in run_ranks(3, strict, tmp_path, timeout=JOB_S).values:
        assert "parity_group = 4, but this job has fewer nodes" in text
    (text,) = run_ranks(1, strict, tmp_path, timeout=JOB_S).values
    assert "cannot protect anything" in text


def test_the_last_virtual_node_may_be_smaller(run_ranks: Any, tmp_path: Path) -> None:
    """Three ranks, two on a node: node0 has two, node1 has one; either may be lost."""
    settings = {"node_size": 2, "parity_group": 2, "parity_tolerate": 1}
    for lost in (0, 1):
        directory = tmp_path / str(lost)
        for found in run_ranks(3, life, directory, (1, 2), settings, timeout=JOB_S).values:
            assert found["said"] == [] and found["reduced"] == ()
        lose(directory, lost)
        for found in run_ranks(3, life, directory, (), settings, timeout=JOB_S).values:
            assert found["restored"] == (2, 2.0)
