"""Jobs of tiny scripts, which torchrun's agent starts: exit codes, failures in a row, who is told, how many ranks."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from deeppart.cli.elastic_run import read_schedule
from deeppart.elastic.launching import LocalLauncher, RunResult
from deeppart.elastic.running import ElasticRun, Events, Options, RankRange, WantedRanks
from deeppart.errors import ConfigError, LaunchError
from tests.unit.cli_support import save
from tests.unit.elastic.handlers import handlers_kept

pytestmark = [pytest.mark.timeout(100), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(autouse=True)
def _handlers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with handlers_kept():
        yield


def run(directory: Path, script: str, most: int = 1, size: Path | None = None, **options: Any) -> tuple[int, list[Any]]:
    """Run ranks of a script; returns the exit code and what happened."""
    (directory / "script.py").write_text(f"import os, signal, sys, time\n{script}\n")
    log = directory / "log"
    command = (sys.executable, "-I", "-S", str(directory / "script.py"))
    wanted = WantedRanks(RankRange(1, most), (), size)
    how = Options(**{"checkpoints": directory / "ckpt", **options})
    try:
        code = ElasticRun(how, wanted, 1, LocalLauncher(command, how.grace_s), Events(log=log)).run()
    finally:
        events = [json.loads(line) for line in log.read_text().splitlines()]
        (directory / "events").write_text(json.dumps(events))
    return code, events


#: Ranks go on once each of two has come here.
BOTH = """
open(f"here-{os.environ['RANK']}", "w").close()
while not (os.path.exists("here-0") and os.path.exists("here-1")): time.sleep(0.01)
"""


def told(events: list[Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(event[key] for key in keys if key in event) for event in events]


def test_failures_in_a_row_end_it_and_are_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        run(tmp_path, "sys.exit(3)", max_failures=1)
    assert "failed 2 times in a row" in str(caught.value) and "rank 0 of 1: exit code 3" in str(caught.value)
    assert told(json.loads((tmp_path / "events").read_text()), "event") == [("start",), ("ended",)] * 2


def test_a_new_checkpoint_is_progress(tmp_path: Path) -> None:
    """It fails at first, and after each of two checkpoints: never twice without one in between."""
    (tmp_path / "made").mkdir()
    for step in (1, 2):
        save(tmp_path / "made", step)
    script = f"""
made, there = {str(tmp_path / "made")!r}, {str(tmp_path / "ckpt")!r}
os.makedirs(there, exist_ok=True)
left = sorted(name for name in os.listdir(made) if name.startswith("step-"))
if not left: sys.exit(0)
os.rename(os.path.join(made, left[0]), os.path.join(there, left[0]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    code, events = run(tmp_path, script, max_failures=1)
    assert code == 0 and told(events, "event", "exit_code") == [("start",), ("ended", -9)] * 2 + [("start",)]


def test_a_lost_rank_may_be_gone(tmp_path: Path) -> None:
    script = "if os.environ['WORLD_SIZE'] == '2': os.kill(os.getpid(), signal.SIGKILL)"
    code, events = run(tmp_path, script, most=2, drop_failed=True)
    assert code == 0 and [event["ranks"] for event in events if event["event"] == "start"] == [2, 1]


def test_ranks_that_leave_untold_end_the_job(tmp_path: Path) -> None:
    code, events = run(tmp_path, "sys.exit(143)")
    assert code == 143 and told(events, "event", "asked") == [("start",), ("ended", False)]
    assert "step" not in events[-1], "nothing has been saved"
    save(tmp_path / "ckpt", 12)
    (tmp_path / "log").unlink()
    assert run(tmp_path, "sys.exit(143)")[1][-1]["step"] == 12


def test_another_number_in_the_file_changes_it(tmp_path: Path) -> None:
    """The ranks leave with 143 when told, as those do that are not Python's, too: the second number is the last."""
    size = tmp_path / "SIZE"
    script = f"""
if os.environ['WORLD_SIZE'] == '1': sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
{BOTH}
open({str(size)!r}, "w").write("1")
time.sleep(50)
"""
    code, events = run(tmp_path, script, most=2, size=size)
    assert code == 0
    assert [event["ranks"] for event in events if event["event"] == "start"] == [2, 1]
    assert told(events, "event", "exit_code", "asked")[2] == ("ended", 143, True)


def test_ranks_that_do_not_end_are_killed(tmp_path: Path) -> None:
    size = tmp_path / "SIZE"
    script = f"""
if os.environ['WORLD_SIZE'] == '1': sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{BOTH}
open({str(size)!r}, "w").write("1")
time.sleep(50)
"""
    code, events = run(tmp_path, script, most=2, size=size, grace_s=0.5)
    assert code == 0 and [event["exit_code"] for event in events if event["event"] == "ended"] == [-9]


def test_a_signal_ends_it_and_its_ranks(tmp_path: Path) -> None:
    script = f"""
def leave(*_):
    open({str(tmp_path / "left")!r}, "w").close()
    sys.exit(143)
signal.signal(signal.SIGUSR1, leave)
os.kill(os.getppid(), signal.SIGUSR1)
time.sleep(50)
"""
    code, events = run(tmp_path, script)
    assert code == 143 and events[-1]["signal"] == "SIGUSR1" and (tmp_path / "left").exists()


class Nodes:
    """Two, one of which fails at the first start."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def nodes(self) -> tuple[str, ...]:
        return ("node1",) if self.started else ("node1", "node2")

    def capacity(self) -> int | None:
        return 2 * len(self.nodes())

    def run(self, ranks: int) -> RunResult:
        self.started.append(ranks)
        return RunResult(1, node="node2") if len(self.started) == 1 else RunResult(0)

    def send(self, number: signal.Signals) -> bool:
        return False


def test_nodes_that_are_left_have_room_for_so_many(tmp_path: Path) -> None:
    options, nodes = Options(tmp_path), Nodes()
    assert ElasticRun(options, WantedRanks(RankRange(2, 4), (), None), 2, nodes, Events()).run() == 0
    assert nodes.started == [4, 2]
    with pytest.raises(LaunchError, match="too few nodes are left") as caught:
        ElasticRun(options, WantedRanks(RankRange(3, 4), (), None), 3, Nodes(), Events()).run()
    assert caught.value.found == "room for 2, on node1"


# --- how many ranks are wanted ----------------------------------------------------------------------------------------


ALLOWED = RankRange(1, 4)


def test_schedules_are_read() -> None:
    assert read_schedule("0:2, 60s:4,1.5min:1", ALLOWED) == ((0.0, 2), (60.0, 4), (90.0, 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2", "'2'"),
        ("0:²", "'0:²'"),
        (":2", "':2'"),
        (".:2", "'.:2'"),
        pytest.param("0:" + "9" * 5000, "999", id="long"),
        ("0:x", "'0:x'"),
        ("soon:2", "'soon:2'"),
        ("0:2,60s:5", "60s:5"),
        ("9s:2,3s:1", "back"),
    ],
)
def test_schedules_that_cannot_be_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schedule(text, ALLOWED)
    assert said in str(caught.value)


def test_what_was_said_last_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "SIZE"
    wanted = WantedRanks(ALLOWED, ((0.0, 2), (60.0, 4)), file)
    assert wanted.now == 2 and wanted.update(59.0) == 2
    file.write_text("3\n")
    assert wanted.update(59.5) == 3
    assert wanted.update(60.0) == 4, "later than the file"
    assert wanted.update(61.0) == 4, "the same text says nothing new"
    file.write_text("1")
    assert wanted.update(62.0) == 1


# --- events: for people, in a file, and for scripts -------------------------------------------------------------------


def test_an_event_is_told_in_each_form(tmp_path: Path) -> None:
    said, printed = list[str](), list[str]()
    events = Events(said.append, tmp_path / "log", printed.append)
    events.emit("start", ranks=3, nodes=("node1", "node2"))
    events.emit("ended", rank=0, node=None, exit_code=-9, asked=False)
    assert [line.partition(" s: ")[2] for line in said] == [
        "start ranks 3, nodes node1 node2",
        "ended rank 0, asked False: killed by SIGKILL",
    ]
    assert (tmp_path / "log").read_text() == "".join(f"{line}\n" for line in printed)
    first, second = map(json.loads, printed)
    assert first.keys() == {"time", "passed_s", "event", "ranks", "nodes"} and first["nodes"] == ["node1", "node2"]
    assert second.keys() == {"time", "passed_s", "event", "rank", "exit_code", "asked"}
    assert abs(datetime.fromisoformat(first["time"]).timestamp() - time.time()) < 10
    assert 0 <= first["passed_s"] <= second["passed_s"] <= events.elapsed_s + 0.001  # milliseconds, rounded
