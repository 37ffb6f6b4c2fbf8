"""The checkpointer in one process: levels, keep, every, backpressure, closing, steps that exist, leftovers."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, DeeppartWarning, LevelNotRunError, RestoreError
from deeppart.part import FileSource, decode_manifest
from deeppart.storage import manifests, posix
from tests.states import difference
from tests.unit.cli_support import block, flip, part_path, step_dir
from tests.unit.one_rank import config, leave_behind, local_steps, persistent_steps, state, states_of


def test_nothing_to_restore(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        live = state(5)
        assert ck.restore(live) is None and ck.explanation == ()
        assert difference(state(5), live) is None
        assert (ck.rank, ck.world_size, ck.failures) == (0, 1, 0)
        with pytest.raises(RestoreError, match="step 3 cannot be recovered"):
            ck.restore(live, step=3)
    with pytest.raises(RestoreError, match="no committed checkpoint"):
        deeppart.load(memory / "p")
    with pytest.raises(RestoreError, match="no such checkpoint directory"):
        deeppart.load(memory / "q")


def test_a_restore_says_what_it_has_done(memory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = config(memory)
    root = Path(settings.persistent_dir).absolute()
    with deeppart.Checkpointer(settings) as ck:
        ck.restore(state(5))
        assert capfd.readouterr().err == f"deeppart: no checkpoint in {root}: starting new\n"
        ck.checkpoint(state(1), step=300).wait("persistent", timeout=200)
        ck.restore(state(5), required=True)
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"deeppart: restored step 300 from {root}: 1 of 1 parts local, ") and line.endswith("s")


def test_a_restore_that_is_required(memory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(1), step=1).wait("persistent", timeout=200)
    misspelt = memory / "pp"
    with deeppart.Checkpointer(persistent_dir=str(misspelt), timeout=30.0) as ck:
        live = state(5)
        with pytest.raises(RestoreError, match="there is no checkpoint to restore") as caught:
            ck.restore(live, required=True)
        assert difference(state(5), live) is None
        assert caught.value.where == str(misspelt) and caught.value.todo == f"did you mean {memory / 'p'}?"
        assert "starting new" not in capfd.readouterr().err
        ck.checkpoint(live, step=1)  # it can go on


def test_the_report_accounts_for_everything(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, compression="zstd")) as ck:
        pending = ck.checkpoint(state(1, 100_000), step=1)
        pending.wait("local", timeout=200)
        pending.wait("persistent", timeout=200)
    report = pending.report
    assert (report.step, report.raw_bytes, report.per_rank_bytes, report.retries) == (1, 400_000, 0, 0)
    assert 0 < report.encoded_bytes < 10_000
    (part,) = step_dir(memory / "p", 1).glob("part-*")
    assert report.levels["persistent"].nbytes == report.levels["local"].nbytes == part.stat().st_size
    assert {"flatten", "agree", "capture", "local", "persistent"} <= set(report.stages_s)
    assert report.blocked_s >= sum(report.stages_s[name] for name in ("flatten", "agree", "capture")) > 0
    assert report.levels["local"].seconds is not None and report.levels["partner"].state == "off"
    assert report.waited_s == 0 and report.retire_error is None and pending.done() and pending.finished


@pytest.mark.parametrize("empty", [{}, [], (), {"a": 1}, {"a": torch.zeros(0)}, None, 5])
@pytest.mark.parametrize("agent", [False, True])
def test_states_without_bytes(memory: Path, monkeypatch: pytest.MonkeyPatch, empty: Any, agent: bool) -> None:
    """Also in staging memory that an agent keeps."""
    if agent:
        (memory / "agent").mkdir(mode=0o700)
        variables = {"DEEPPART_AGENT": str(memory / "agent"), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(empty, step=0).wait(timeout=200)
        assert ck.restore(empty) == 0
    assert difference(empty, deeppart.load(memory / "p")) is None


@pytest.mark.parametrize("keep", [1, 2, 4, 0])
def test_keep_counts_per_level(memory: Path, keep: int) -> None:
    for number, levels in enumerate(({"local": keep, "persistent": 1}, {"local": 1, "persistent": keep})):
        directory = memory / str(number)
        with deeppart.Checkpointer(config(directory, keep=levels)) as ck:
            for step in range(1, 7):
                ck.checkpoint(state(step), step).wait(timeout=200)
        for level, found in (("local", local_steps(directory)), ("persistent", persistent_steps(directory))):
            assert found == list(range(1, 7))[-levels[level] :] if levels[level] else [1, 2, 3, 4, 5, 6]
        for step in persistent_steps(directory):
            assert difference(state(step), deeppart.load(directory / "p", step)) is None


def test_a_restore_reads_the_manifest_of_the_newest_step_and_others_if_that_is_lost(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deeppart.Checkpointer(persistent_dir=memory / "p", keep={"persistent": 0}) as ck:
        for step in range(1, 7):
            ck.checkpoint(state(step), step).wait(timeout=200)
    read: list[str] = []

    def decoded(data: bytes, *, where: str, **arguments: Any) -> Any:
        read.append(where)
        return decode_manifest(data, where=where, **arguments)

    monkeypatch.setattr(manifests, "decode_manifest", decoded)
    with deeppart.Checkpointer(persistent_dir=memory / "p") as ck:
        opening = len(read)
        assert ck.restore(state(0)) == 6 and len(read) == opening + 1
    flip(part_path(memory / "p", 6), 5000)
    with deeppart.Checkpointer(persistent_dir=memory / "p") as ck:
        target = state(0)
        with pytest.warns(DeeppartWarning, match="but step 6 is in the directory too"):
            assert ck.restore(target) == 5
        assert difference(target, state(5)) is None
        assert any("step 6" in line for line in ck.explanation)


def test_nothing_is_removed_before_its_successor_is_committed(memory: Path) -> None:
    """With keep=1, watched all the time: there is always a whole checkpoint to load."""
    stop = threading.Event()
    problems: list[str] = []
    steps: list[int] = []

    def watch() -> None:
        while not stop.is_set():
            try:
                loaded = deeppart.load(memory / "p")
                steps.append(loaded["step"])
                problems.extend(filter(None, [difference(state(loaded["step"], 50_000), loaded)]))
            except deeppart.DeeppartError as error:
                problems.append(str(error))

    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        ck.checkpoint(state(0, 50_000), 0).wait(timeout=200)
        watcher = threading.Thread(target=watch)
        watcher.start()
        for step in range(1, 40):
            ck.checkpoint(state(step, 50_000), step)
        stop.set()
        watcher.join()
    assert problems == [] and steps == sorted(steps) and len(set(steps)) > 1
    assert persistent_steps(memory) == [39]


@pytest.mark.parametrize("gone", ["manifest", "part"])
def test_load_goes_on_to_the_next_step_if_a_running_job_removes_the_one_it_reads(
    memory: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    owner, name = (manifests, "read_manifest") if gone == "manifest" else (posix, "FileSource")
    real = getattr(owner, name)
    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)

        def train_on(*arguments: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            ck.checkpoint(state(2), 2).wait(timeout=200)
            ck._pipeline.wait_until_idle(30)
            return real(*arguments)

        monkeypatch.setattr(owner, name, train_on)
        assert deeppart.load(memory / "p")["step"] == 2
        monkeypatch.setattr(posix, "FileSource", lambda path: FileSource(memory / "p" / "nothing"))
        with pytest.raises(deeppart.errors.StorageError, match="No such file"):
            deeppart.load(memory / "p")


def test_a_local_only_step_is_restored_when_it_is_the_newest(memory: Path) -> None:
    settings = {"every": {"local": 1, "persistent": 3}, "keep": {"local": 2}}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        for step in range(5):
            ck.checkpoint(state(step), step).wait("local", timeout=200)
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        live = state(99)
        assert ck.restore(live) == 4 and difference(state(4), live) is None
        assert ck.explanation[-1] == "step 4: 1 of 1 parts local; saved by 1 rank"
        assert ck.restore(live, step=3) == 3 and difference(state(3), live) is None
        with pytest.raises(RestoreError, match="step 2 cannot be recovered"):
            ck.restore(live, step=2)
        assert difference(state(3), live) is None


def test_one_level_alone(memory: Path) -> None:
    for every, expected in (({"persistent": 0}, ("done", "off")), ({"local": 0}, ("off", "done"))):
        directory = memory / next(iter(every))
        with deeppart.Checkpointer(config(directory, every=every)) as ck:
            for step in (1, 2):
                pending = ck.checkpoint(state(step), step)
                with pytest.raises(LevelNotRunError):
                    pending.wait("persistent" if expected[1] == "off" else "local", timeout=200)
                pending.wait("local" if expected[1] == "off" else "persistent", timeout=200)
                assert states_of(pending) == expected
            live = state(0)
            assert ck.restore(live) == 2 and difference(state(2), live) is None
        if expected[1] == "off":
            assert persistent_steps(directory) == [] and local_steps(directory) == [2]
        else:
            assert local_steps(directory) == [] and persistent_steps(directory) == [1, 2]


def test_a_step_number_may_go_backwards(memory: Path) -> None:
    """After a rollback the job saves lower numbers: the most recent commits are kept, not the highest numbers."""
    with deeppart.Checkpointer(config(memory, keep={"local": 1, "persistent": 2})) as ck:
        for step in (100, 200, 10, 20):
            live = state(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeeppartWarning)
                ck.checkpoint(state(step), step).wait(timeout=200)
                assert ck.restore(live, step=step) == step
    assert persistent_steps(memory) == [10, 20] and local_steps(memory) == [20]


def test_a_step_that_failed_may_be_used_again(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, local_dir=None)) as ck:
        for _ in range(2):
            blocked = block(ck, memory / "p", 5)
            with pytest.raises(CheckpointError):
                ck.checkpoint(state(5), step=5).wait(timeout=200)
            blocked.unlink()
        ck.checkpoint(state(55), step=5).wait(timeout=200)
        assert deeppart.load(memory / "p", 5)["step"] == 55
        ck.checkpoint(state(6), step=6).wait(timeout=200)
        ck._pipeline.wait_until_idle(30)
        assert persistent_steps(memory) == [5, 6], "no leftover of the failures is taken for one"


def test_close_finishes_what_is_under_way(memory: Path) -> None:
    before = set(threading.enumerate())  # a session of another test may still be given back
    ck = deeppart.Checkpointer(config(memory))
    pendings = [ck.checkpoint(state(step, 100_000), step) for step in range(3)]
    ck.close()
    assert [states_of(pending) for pending in pendings] == [("done", "done")] * 3
    ck.close()
    with pytest.raises(CheckpointError, match="closed"):
        ck.checkpoint(state(9), 9)
    with pytest.raises(CheckpointError, match="closed"):
        ck.restore(state(9))
    begun = set(threading.enumerate()) - before
    assert not [thread for thread in begun if thread.name.startswith("deeppart")]


def test_leftovers_are_never_restored_and_go_with_the_next_commit(memory: Path) -> None:
    leave_behind(memory)
    (local,) = (memory / "l").iterdir()
    for file in step_dir(local, 3).iterdir():
        file.unlink()
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        live = state(0)
        assert ck.restore(live) == 1 and difference(state(1), live) is None
        assert any("step 3 (persistent)" in line for line in ck.explanation), ck.explanation
        assert persistent_steps(memory) == [1, 2, 3, 4], "not before the next commit"
        ck.checkpoint(state(9), 9).wait(timeout=200)
    assert persistent_steps(memory) == [1, 9] and local_steps(memory) == [9]


@pytest.mark.parametrize("in_thread", [False, True], ids=["signal handler", "thread"])
def test_a_call_within_another_one_is_refused(memory: Path, *, in_thread: bool) -> None:
    """As from a handler of a signal that arrives at that moment: the outer call would save what is left of its tree."""
    refusals: list[str] = []

    class Interrupted:
        def state_dict(self) -> dict[str, int]:
            attempt = self.attempt_in_thread if in_thread else self.attempt
            for call in (lambda: ck.checkpoint({}, 7), lambda: ck.restore({}), lambda: ck.prepare({}), ck.close):
                attempt(call)
            return {"lr": 5}

        def load_state_dict(self, saved: dict[str, int]) -> None:
            self.state_dict()

        def attempt(self, call: Callable[[], object]) -> None:
            with pytest.raises(CheckpointError, match="another call of this checkpointer is under way") as caught:
                call()
            refusals.append(caught.value.summary.split()[0])

        def attempt_in_thread(self, call: Callable[[], object]) -> None:
            thread = threading.Thread(target=self.attempt, args=(call,))
            thread.start()
            thread.join()

    held = {"a": torch.arange(9), "object": Interrupted(), "n": 1}
    with deeppart.Checkpointer(config(memory)) as ck:
        pending = ck.checkpoint(held, 1)
        pending.wait("persistent", timeout=200)
        assert refusals and not len(refusals) % 4 and set(refusals) == {"checkpoint", "restore", "prepare", "close"}
        assert ck.restore(held) == 1
    loaded = deeppart.load(memory / "p")
    assert torch.equal(loaded["a"], torch.arange(9)) and loaded["object"] == {"lr": 5} and loaded["n"] == 1
