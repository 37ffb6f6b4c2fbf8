"""A job of real processes: what starts, what fails, what is started again. The scripts need no torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from deeppart.agent import GIVEN_UP, STOPPED, Agent, Command, JobOptions, WantedRanks, node
from tests.processes import is_running
from tests.waiting import wait_until

BEGIN = """
import json, os, signal, sys, time
from deeppart.progress import reporting
rank, epoch = int(os.environ["RANK"]), int(os.environ["DEEPPART_EPOCH"])
def note(**values):
    with open(f"rank-{rank}-epoch-{epoch}", "w") as file:
        json.dump(values, file)
"""


class Run:
    """One job in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.tell: Callable[[tuple[str, dict[str, Any]]], object] = self.events.append

    def __call__(
        self, body: str, *, words: Sequence[str] | None = None, wanted: WantedRanks | None = None, **options: Any
    ) -> int:
        (self.directory / "train.py").write_text(BEGIN + body)
        command = Command.of(words or [sys.executable, str(self.directory / "train.py"), "--an", "argument"])
        chosen = JobOptions(**{"ranks": 2, "preload": ("json",), **options})
        return Agent(command, chosen, lambda event, **values: self.tell((event, values)), wanted=wanted).run()

    def noted(self, rank: int, epoch: int) -> Any:
        return json.loads((self.directory / f"rank-{rank}-epoch-{epoch}").read_text())

    def of(self, event: str) -> list[dict[str, Any]]:
        return [values for name, values in self.events if name == event]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Run(tmp_path)


def test_each_rank_is_what_the_command_would_have_started(run: Run) -> None:
    (run.directory / "beside.py").write_text("value = 5")
    body = """
import beside, gc, pickle
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "MASTER_ADDR"
class Mine: pass
def typed(x: int) -> None: pass
assert typed.__annotations__["x"] is int  # no future of ours
assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
main = sys.modules["__main__"]
note(name=__name__, file=__file__, main=main.__file__, argv=sys.argv, path=sys.path[0], beside=beside.value,
     threads=len(os.listdir("/proc/self/task")), session=os.getsid(0) == os.getpid(), stdin=sys.stdin.read(),
     interrupt=signal.getsignal(signal.SIGINT) is signal.default_int_handler, frozen=gc.get_freeze_count() > 0,
     environment={name: os.environ[name] for name in names})
"""
    assert run(body) == 0
    script = str(run.directory / "train.py")
    for rank in range(2):
        found = run.noted(rank, 1)
        assert found["name"] == "__main__" and found["file"] == found["main"] == script
        assert found["argv"] == [script, "--an", "argument"] and found["path"] == str(run.directory)
        assert found["beside"] == 5 and found["threads"] == 1 and found["session"] and found["stdin"] == ""
        assert found["interrupt"] == (signal.getsignal(signal.SIGINT) is not signal.SIG_IGN) and found["frozen"]
        assert found["environment"] == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
        }  # fmt: skip
    assert [event for event, _ in run.events] == ["started"]


def test_ranks_do_not_draw_the_same_random_numbers(run: Run) -> None:
    assert run("import random, numpy\nnote(x=[random.random(), float(numpy.random.rand())])", preload=("numpy",)) == 0
    one, other = run.noted(0, 1)["x"], run.noted(1, 1)["x"]
    assert one[0] != other[0] and one[1] != other[1]


def test_ranks_know_why_they_start_again_and_the_agent_how_soon_they_train(run: Run) -> None:
    body = """
from deeppart import progress
note(epoch=progress.epoch())
reporting.ready()
time.sleep(0.2)
reporting.restored(epoch)
time.sleep(0.1)
reporting.optimized()
time.sleep(2.5 if epoch == 2 or rank == 0 else 0.5)
sys.exit(epoch - 2)
"""
    assert run(body) == 0
    assert run.noted(0, 1)["epoch"] == [1, ""]
    assert run.noted(0, 2)["epoch"] == [2, "rank 1 on 127.0.0.1: exit code 255"]
    told = run.of("training")[-1]
    assert told["epoch"] == 2 and told["step"] == 2
    assert told["restore_s"] >= 0.2 and told["step_s"] >= 0.1 and min(told["start_s"], told["kill_s"]) >= 0.0


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('bad')"])
def test_a_failure_kills_the_others_and_starts_all_again(run: Run, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Also a rank that hangs with all signals blocked."""
    body = f"""
if epoch == 1:
    reporting.called(40)
    if rank == 1:
        {how}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(600)
note(epoch=epoch)
"""
    assert run(body) == 0
    assert run.noted(0, 2) == run.noted(1, 2) == {"epoch": 2}
    (failed,) = run.of("failed")
    assert failed["rank"] == 1 and failed["step"] == 40 and failed["exit_code"] in (-9, 1)
    text = capfd.readouterr().err
    assert ("ValueError: bad" in text) == ("bad" in how) and "zygote.py" not in text


def test_a_rank_that_was_done_before_is_named(run: Run) -> None:
    body = """
if epoch == 1 and rank == 0:
    while not os.path.exists("rank-1-epoch-1"):
        time.sleep(0.02)
    time.sleep(1.0)
    sys.exit(1)
note()
"""
    assert run(body) == 0
    (failed,) = run.of("failed")
    assert failed["rank"] == 0 and failed["text"] == "after rank 1 had ended with exit code 0"


def test_a_step_that_only_one_rank_has_reached_is_progress(run: Run) -> None:
    body = """
if rank:
    reporting.called(epoch)
    note()
while not os.path.exists(f"rank-1-epoch-{epoch}"):
    time.sleep(0.01)
sys.exit(epoch < 6)
"""
    assert run(body, failures=1) == 0


def ask(number: signal.Signals, when: Callable[[], bool]) -> threading.Thread:
    def body() -> None:
        until_s = time.monotonic() + 60
        while not when() and time.monotonic() < until_s:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [
        (signal.SIGTERM, 143, STOPPED),
        (signal.SIGUSR1, 143, STOPPED),
        (signal.SIGUSR2, 143, STOPPED),
        (signal.SIGINT, 143, 130),
        (signal.SIGTERM, 0, 0),  # it was done anyway
        (signal.SIGTERM, 5, STOPPED),
    ],
)
def test_a_signal_is_passed_on_and_the_job_is_not_started_again(
    run: Run, number: signal.Signals, code: int, expected: int
) -> None:
    body = f"""
signal.signal({int(number)}, lambda *_: (note(got=True), sys.exit({code})))
open(f"ready-{{rank}}", "w").close()
time.sleep(600)
"""
    thread = ask(number, lambda: all((run.directory / f"ready-{rank}").exists() for rank in range(2)))
    before = signal.signal(number, signal.SIG_DFL)  # shells have what they start in the background ignore SIGINT
    try:
        assert run(body) == expected
    finally:
        signal.signal(number, before)
    thread.join()
    assert run.noted(0, 1) == run.noted(1, 1) == {"got": True}
    assert len(run.of("started")) == 1


def test_ranks_that_do_not_stop_are_killed_after_their_time(run: Run) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(f'ready-{rank}', 'w').close()\ntime.sleep(600)"
    thread = ask(signal.SIGTERM, lambda: all((run.directory / f"ready-{rank}").exists() for rank in range(2)))
    assert run(body, grace_s=1.0) == STOPPED
    thread.join()


def test_what_ranks_have_started_is_killed_with_them(run: Run) -> None:
    """By the rank that fails, and by one that hangs."""
    body = """
import subprocess
if epoch == 1:
    note(worker=subprocess.Popen(["sleep", "600"]).pid)
    if rank == 0:
        time.sleep(600)
    while not os.path.exists("rank-0-epoch-1") or not os.path.getsize("rank-0-epoch-1"):
        time.sleep(0.02)
    sys.exit(3)
"""
    assert run(body) == 0
    assert not any(is_running(run.noted(rank, 1)["worker"]) for rank in range(2))


def test_a_signal_while_ranks_are_being_started(run: Run) -> None:
    """They get it, or end by it, and are not waited for."""
    tell = run.events.append

    def and_then(event: tuple[str, dict[str, Any]]) -> None:
        tell(event)
        if event[0] == "started":
            os.kill(os.getpid(), signal.SIGTERM)

    run.tell = and_then
    began_s = time.monotonic()
    assert run("time.sleep(600)") == STOPPED
    assert time.monotonic() - began_s < 60


def test_a_script_that_changes_its_directory_knows_where_it_is(run: Run) -> None:
    body = """
where = os.getcwd()
os.chdir("/")
file = os.path.abspath(__file__)
os.chdir(where)
note(file=file, argv=sys.argv)
"""
    assert run(body, words=[sys.executable, "train.py"]) == 0
    assert run.noted(0, 1) == {"file": str(run.directory / "train.py"), "argv": ["train.py"]}


def test_modules_of_the_working_directory_do_not_stand_for_pythons_own(run: Run) -> None:
    """As for a script elsewhere, which Python looks for beside the script only."""
    (run.directory / "random.py").write_text("raise SystemExit('of the working directory')")
    there = run.directory / "there"
    there.mkdir()
    (there / "train.py").write_text("import random; random.random()")
    assert run("", words=[sys.executable, "there/train.py"], preload=("tempfile",)) == 0


def test_the_process_that_forks_is_killed(run: Run) -> None:
    """Its ranks end with it, and another one starts them again."""
    body = """
if epoch == 1:
    note(pid=os.getpid())
    while rank == 0 and not all(os.path.exists(f"rank-{each}-epoch-1") for each in range(2)):
        time.sleep(0.02)
    if rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
note(epoch=epoch)
"""
    assert run(body) == 0
    assert run.of("failed")[0]["rank"] is None
    assert run.of("failed")[0]["text"] == "it was the process that forks the ranks" and run.noted(1, 2) == {"epoch": 2}
    assert not any(is_running(run.noted(rank, 1)["pid"]) for rank in range(2))


@pytest.mark.parametrize("why", ["starts 1 threads", "starts MPI"])
def test_a_module_that_must_not_be_forked_is_left_to_the_ranks(run: Run, why: str) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    if "MPI" in why:
        text = "import sys, types\nsys.modules['mpi4py.MPI'] = types.ModuleType('mpi4py.MPI')"
    package = run.directory / "site-packages"  # as if it was installed
    package.mkdir()
    (package / "noisy.py").write_text(text)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    try:
        assert run("note(loaded=[each for each in ('json', 'noisy', 'wave') if each in sys.modules])",
                   preload=("json", "noisy", "wave")) == 0  # fmt: skip
    finally:
        os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
    assert run.noted(0, 1) == {"loaded": ["json"]}
    assert f"noisy {why}" in run.of("note")[0]["text"]


def test_what_was_imported_is_imported_before_a_later_start(run: Run) -> None:
    body = """
before = "wave" in sys.modules
__import__("wave")  # which the text of the script does not show
reporting.restored(None)
note(before=before)
time.sleep(0.5)
sys.exit(not before)
"""
    assert run(body, ranks=1, preload=None, failures=100) == 0
    assert run.noted(0, 1) == {"before": False}


def test_a_program_that_is_no_python(run: Run) -> None:
    script = "echo $RANK > rank-$RANK-epoch-$DEEPPART_EPOCH; test $DEEPPART_EPOCH = 2"
    assert run("", words=["/bin/sh", "-c", script]) == 0
    assert run.noted(1, 2) == 1 and run.of("failed")[0]["exit_code"] == 1


def test_a_program_that_does_not_exist(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("", words=["./no-such-program"], failures=0) == GIVEN_UP
    assert "./no-such-program cannot be started: No such file" in capfd.readouterr().err
    assert run.of("failed")[0]["exit_code"] == 127


def test_a_python_without_deeppart(run: Run) -> None:
    """``-I`` leaves out PYTHONPATH; ``-S`` what is installed."""
    (run.directory / "train.py").write_text("import os\nopen('rank-' + os.environ['RANK'], 'w').close()")
    job = Agent(
        Command.of([sys.executable, "-I", "-S", "train.py"]), JobOptions(2, preload=()), lambda event, **_: None
    )
    assert job.run() == 0
    assert (run.directory / "rank-1").exists()


def test_ranks_that_hang_are_started_again(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """With the stacks of all; a pause is no hang."""
    body = """
def waits_for_ever():
    time.sleep(600)
for step in range(45):
    reporting.called(step)
    time.sleep(0.1)
    if step == 15:
        with reporting.paused():
            time.sleep(4.0)
    if epoch == 1 and step == 40 - rank:
        waits_for_ever()
"""
    assert run(body, hang_s=3.0) == 0
    (hang,) = run.of("hang")
    assert re.search(r"no step for \d+ s, of [\d.]+ s each; behind: rank 1$", hang["text"]), hang
    (failed,) = run.of("failed")
    assert failed["rank"] == 1 and failed["exit_code"] == -9
    text = capfd.readouterr().err
    assert re.search(r"rank 0:\n.*in waits_for_ever\n.*rank 1:\n.*in waits_for_ever\n", text, re.DOTALL), text


def test_a_process_that_forks_and_is_stopped_is_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say that the ranks have ended."""
    monkeypatch.setattr(node, "KILLED_WITHIN_S", 5.0)
    body = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
note()
if rank == 0:
    while not os.path.exists("rank-1-epoch-1"):
        time.sleep(0.02)
    os.kill(os.getppid(), signal.SIGSTOP)
    open("stopped", "w").close()
time.sleep(600)
"""
    thread = ask(signal.SIGTERM, lambda: (run.directory / "stopped").exists())
    began_s = time.monotonic()
    assert run(body, grace_s=1.0) == STOPPED
    thread.join()
    assert time.monotonic() - began_s < 100


NOTE_PIDS = """
import subprocess
worker = subprocess.Popen(["sleep", "600"])
note(worker=worker.pid, pid=os.getpid(), zygote=os.getppid(), directory=os.environ["DEEPPART_AGENT"])
time.sleep(600)
"""


def test_nothing_is_left_when_the_agent_is_killed(run: Run) -> None:
    (run.directory / "train.py").write_text(BEGIN + NOTE_PIDS)
    words = [sys.executable, "-m", "deeppart", "run", "--ranks", "2", "--preload", "none", "--", "train.py"]
    with subprocess.Popen(words, cwd=run.directory, stderr=subprocess.DEVNULL) as agent:
        files = [run.directory / f"rank-{rank}-epoch-1" for rank in range(2)]
        wait_until(lambda: all(file.exists() and file.stat().st_size for file in files))
        agent.kill()
    pids = {run.noted(rank, 1)[name] for rank in range(2) for name in ("pid", "zygote", "worker")}
    wait_until(lambda: not any(is_running(pid) for pid in pids))
    left = Path(run.noted(0, 1)["directory"])
    assert left.is_dir()
    assert run("note(directory=os.environ['DEEPPART_AGENT'])") == 0
    assert not left.exists() and not Path(run.noted(0, 1)["directory"]).exists()
