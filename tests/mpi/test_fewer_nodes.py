"""A job comes back on fewer nodes than its protection needs: it goes on with less, and says so wherever one looks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.lost_nodes import lose
from tests.mpi.on_nodes import config, wait_for_all

SETTINGS: dict[str, Any] = {
    "every": {"partner": 1, "parity": 1, "persistent": 2},
    "parity_group": 4,
    "parity_tolerate": 2,
}

pytestmark = [pytest.mark.mpi(min_size=4), pytest.mark.timeout(110)]


def life(comm: Any, directory: Path, save: tuple[int, ...]) -> dict[str, Any]:
    """Restore and save some steps; with all that was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, **SETTINGS), comm) as ck:
            state = {"w": torch.zeros(200_000)}
            restored = ck.restore(state)
            value = state["w"][-1].item()
            for step in save:
                state["w"].fill_(step)
                pending = ck.checkpoint(state, step)
                wait_for_all(pending)
    return {
        "restored": (restored, value),
        "said": [(type(warning.message).__name__, str(warning.message)) for warning in caught],
        "reduced": pending.report.reduced if save else (),
        "levels": {level: report.state for level, report in pending.report.levels.items()} if save else {},
    }


def names(found: dict[str, Any]) -> list[str]:
    return [name for name, _ in found["said"]]


def test_four_nodes_then_three_then_one_then_four(run_on: Any, shared_path: Path) -> None:
    def run(nodes: int, *save: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run_on(nodes, life, shared_path, save)
        return found

    for found in run(4, 1, 2):
        assert found["said"] == [] and found["reduced"] == () and found["restored"] == (None, 0.0)
    run_on(4, lose, shared_path, 3)

    on_three = run(3, 3, 4)
    assert names(on_three[0]) == ["ReducedProtectionWarning"] and names(on_three[1]) == names(on_three[2]) == []
    said = on_three[0]["said"][0][1]
    assert "parity_group = 4 and parity_tolerate = 2" in said and "3 nodes" in said and "'strict'" in said
    for found in on_three:
        assert found["restored"] == (2, 2.0) and said.find(found["reduced"][0]) > 0
        assert found["levels"] == dict.fromkeys(("local", "partner", "parity"), "done") | {"persistent": "off"}
    run_on(4, lose, shared_path, 1, 2)  # as many as 2 of 3 may be lost: what holds now is true
    for found in run(3):
        assert found["restored"] == (4, 4.0)

    (alone,) = run(1, 5)
    assert names(alone) == ["ReducedProtectionWarning"] and "node0" in alone["said"][0][1]
    assert alone["levels"] == {"local": "done", "partner": "off", "parity": "off", "persistent": "done"}
    assert [line.partition(" ")[0] for line in alone["reduced"]] == ["partner", "parity"]

    back = run(4, 6, 7)
    assert all(found["restored"] == (5, 5.0) and found["reduced"] == () and found["said"] == [] for found in back)
    run_on(4, lose, shared_path, 0, 3)
    assert [found["restored"] for found in run(4)] == [(7, 7.0)] * 4
