"""The phases of a restart from the log of a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deeppart_simulator.machine.record import WAYS, Restart
from deeppart_simulator.measure.restarts import restart_of

from deeppart.errors import ConfigError


def training(epoch: int, **seconds: float) -> str:
    return json.dumps({"event": "training", "epoch": epoch, "step": 1, **{f"{key}_s": s for key, s in seconds.items()}})


BAD = f"{training(1, start=8, restore=0.1, step=2)}\n{training(2, kill=-1, start=1, restore=1, step=0.3)}"


def test_the_first_start_tells_how_long_imports_take(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failed = json.dumps({"event": "failed", "rank": 1, "exit_code": -9})
    again = [training(epoch, kill=0.1, start=start, restore=1, step=0.3) for epoch, start in ((2, 0.5), (3, 0.75))]
    log.write_text("\n".join([training(1, start=8, restore=0.1, step=2), failed, *again, '{"event": "tr']))
    restart = restart_of(log)
    assert restart == Restart(
        detect=3.0, relaunch=0.1, imports=7.375, communicator=0.625, first_step=0.3, mode="standby"
    )  # fmt: skip
    paid = WAYS["standby"].after({"process"})
    assert sum(seconds for piece, seconds in restart.seconds(64).items() if piece in paid) == pytest.approx(4.025)


@pytest.mark.parametrize("text", ["", "{", training(1, start=8, restore=0.1, step=2), training(2, start=1), "[1]", BAD])
def test_a_log_without_a_restart_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_text(text + "\n")
    with pytest.raises(ConfigError, match="there is no restart in the log"):
        restart_of(tmp_path / "log")
