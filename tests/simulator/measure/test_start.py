"""Real checkpoints under real MPI, started and read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest
from deeppart_simulator.measure import start
from deeppart_simulator.measure.start import Directories, measure
from deeppart_simulator.measure.tasks import RESTORE, SaveTask

from deeppart.errors import DeeppartError
from tests.waiting import wait_until


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_real_checkpoints_are_measured(tmp_path: Path, ranks: int) -> None:
    saves = [
        SaveTask(1 << 20, 8, persistent=True, rounds=2, after=RESTORE),
        SaveTask(1 << 20, 4, local=False, persistent=True, rounds=2, capture="lazy"),
    ]
    dtypes = ("float32", "int64") if ranks == 2 else ()
    found = measure(ranks, saves, Directories(tmp_path, tmp_path), dtypes, sessions=ranks)
    assert len(found["saves"]) == len(saves)
    for measured in found["saves"]:
        assert {len(times) for times in measured.values()} == {2 * ranks}
        assert all(
            0 < blocked <= persistent
            for blocked, persistent in zip(measured["blocked"], measured["persistent"], strict=True)
        )
    assert min(found["saves"][0]["restore"]) > 0 and max(found["saves"][1]["local"]) == 0
    if ranks == 2:
        assert found["pieces"]["codec"]["float32"]["ratio"] < 0.9
        assert all(value > 0 for value in found["pieces"]["network"].values())
        assert found["pieces"]["serialize"] is None  # torch.save is a matter of one rank
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.mark.now_and_then(2)
def test_sigterm_leaves_neither_ranks_nor_files(tmp_path: Path) -> None:
    """As a batch system ends a job."""
    ask = f"""
from pathlib import Path
from deeppart_simulator.measure.start import Directories, measure
from deeppart_simulator.measure.tasks import SaveTask
measure(2, [SaveTask(1 << 20, 8, rounds=100_000)], Directories(Path({str(tmp_path)!r}), Path({str(tmp_path)!r})))
"""
    process = subprocess.Popen([sys.executable, "-c", ask], start_new_session=True)
    try:
        wait_until(lambda: any(glob(f"{tmp_path}/*/0/*")))  # the first checkpoint is under way
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []
        wait_until(lambda: not _users(tmp_path))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_job_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(DeeppartError, match=r"too long(.|\n)*0\.5 s"):
        start._run([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert time.monotonic() - began < 20


def _users(directory: Path) -> list[int]:
    """Processes that were started with a file in it."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(directory).encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return found
