"""The checkpointer in one process: levels, keep, every, backpressure, closing, steps that exist, leftovers."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    DeeppartWarning,
    LevelNotRunError,
    PeerTimeoutError,
    RestoreError,
    StepExistsError,
)
from deeppart.offline import load
from deeppart.part import FileSource
from deeppart.session import leave
from deeppart.state.capture import Staging
from deeppart.storage import persistent
from deeppart.storage.files import DurableFile
from deeppart.storage.steps import list_steps
from deeppart.testing.states import difference
from tests.unit.cli_support import block, step_dir


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"local_dir": str(directory / "l"), "timeout": 30.0}
    return deeppart.Config(persistent_dir=str(directory / "p"), **(defaults | settings))


def state(step: int, count: int = 1000) -> dict[str, Any]:
    return {"x": torch.full((count,), step, dtype=torch.int32), "step": step}


def numbers(directory: Path, pattern: str) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in directory.glob(pattern))


def local_steps(directory: Path) -> list[int]:
    return numbers(directory / "l", "*/step-*")


def persistent_steps(directory: Path) -> list[int]:
    return numbers(directory / "p", "step-*")


def states_of(pending: deeppart.Pending) -> tuple[str, str]:
    levels = pending.report.levels
    return levels["local"].state, levels["persistent"].state


# --- the simplest things ----------------------------------------------------------------------------------------------


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
    assert report.waited_s < 0.1 and report.retire_error is None and pending.done() and pending.finished


@pytest.mark.parametrize("empty", [{}, [], (), {"a": 1}, {"a": torch.zeros(0)}, None, 5])
def test_states_without_bytes(memory: Path, empty: Any) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(empty, step=0).wait(timeout=200)
        assert ck.restore(empty) == 0
    assert difference(empty, deeppart.load(memory / "p")) is None


@pytest.mark.parametrize("step", [-1, True, 10**18, 10**30])
def test_impossible_steps(memory: Path, step: Any) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        with pytest.raises(ValueError, match="step must be"):
            ck.checkpoint(state(1), step=step)
        for odd in ("1", 1.0, None):
            with pytest.raises(TypeError):
                ck.checkpoint(state(1), step=odd)  # type: ignore[arg-type]
        assert persistent_steps(memory) == []


def test_the_largest_step_and_numpy_steps(memory: Path) -> None:
    import numpy as np

    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(1), step=np.int64(7)).wait(timeout=200)  # type: ignore[arg-type]
        ck.checkpoint(state(2), step=10**18 - 1).wait(timeout=200)
        live = state(0)
        assert ck.restore(live) == 10**18 - 1 and live["step"] == 2
    assert deeppart.load(memory / "p", 7)["step"] == 1


# --- levels, every, keep ----------------------------------------------------------------------------------------------


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


def test_what_counts_as_complete_on_nodes_has_its_files_there(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, however slowly it is drained; and not when it has been replaced, even if it is drained after that."""
    go_on, open_part = threading.Event(), persistent.PersistentLevel.open_part

    def late(self: persistent.PersistentLevel, *which: Any) -> DurableFile:
        assert go_on.wait(60)
        return open_part(self, *which)

    monkeypatch.setattr(persistent.PersistentLevel, "open_part", late)
    with deeppart.Checkpointer(config(memory, keep={"local": 1, "persistent": 1})) as ck:

        def complete() -> list[int]:
            return [attempt.step for attempt in ck._pipeline.ledger.complete().values()]

        for step in (1, 2):
            ck.checkpoint(state(step), step).wait("local", timeout=200)
            deadline = time.monotonic() + 200
            while step not in complete() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert step in complete()
        go_on.set()
    assert complete() == local_steps(memory) == [2]


def test_nothing_is_removed_before_its_successor_is_committed(memory: Path) -> None:
    """With keep=1, watched all the time: there is always a whole checkpoint to load."""
    problems: list[Any] = []
    steps: list[Any] = []
    stop = threading.Event()

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
    name = "read_manifest" if gone == "manifest" else "_open_part"
    module = persistent if gone == "manifest" else load
    real = getattr(module, name)
    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)

        def train_on(*arguments: Any) -> Any:
            monkeypatch.setattr(module, name, real)
            ck.checkpoint(state(2), 2).wait(timeout=200)
            ck._pipeline.drain(30)
            return real(*arguments)

        monkeypatch.setattr(module, name, train_on)
        assert deeppart.load(memory / "p")["step"] == 2
        monkeypatch.setattr(load, "_open_part", lambda *arguments: FileSource(memory / "p" / "nothing"))
        with pytest.raises(deeppart.StorageError, match="No such file"):
            deeppart.load(memory / "p")


def test_every_counts_checkpoints_per_level(memory: Path) -> None:
    settings = {"every": {"local": 2, "persistent": 3}, "keep": {"local": 0, "persistent": 0}}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        pendings = [ck.checkpoint(state(step), step * 10) for step in range(8)]
        for pending in pendings:
            for level in ("local", "persistent"):
                try:
                    pending.wait(level, timeout=200)
                except LevelNotRunError:
                    assert states_of(pending)[level == "persistent"] == "off"
        live = state(99)
        assert ck.restore(live) == 60 and live["step"] == 6, "local and persistent"
    assert local_steps(memory) == [0, 20, 40, 60] and persistent_steps(memory) == [0, 30, 60]


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


def test_the_newest_commit_stays_whatever_the_clock_says(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarted on a node whose clock is a year behind."""
    from deeppart.storage import timestamps

    with deeppart.Checkpointer(config(memory, keep={"persistent": 2})) as ck:
        for step in (1, 2):
            ck.checkpoint(state(step), step).wait(timeout=200)
    monkeypatch.setattr(timestamps, "now", lambda: "2001-01-01T00:00:00.000000Z")
    with deeppart.Checkpointer(config(memory, keep={"persistent": 2})) as ck:
        for step in (3, 4):
            ck.checkpoint(state(step), step).wait(timeout=200)
            ck._pipeline.drain(30)
            assert step in persistent_steps(memory) and len(persistent_steps(memory)) == 2


# --- steps that exist -------------------------------------------------------------------------------------------------


def test_a_step_that_exists_is_refused_and_kept(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        pending = ck.checkpoint(state(5), step=5)
        with pytest.raises(StepExistsError, match="step 5"):
            ck.checkpoint(state(6), step=5)  # under way
        pending.wait(timeout=200)
        with pytest.raises(StepExistsError):
            ck.checkpoint(state(6), step=5)  # committed
        for step in (6, 7, 8, 9):
            ck.checkpoint(state(step), step).wait(timeout=200)
        with pytest.raises(StepExistsError):
            ck.checkpoint(state(6), step=9)
    with deeppart.Checkpointer(config(memory)) as ck:
        with pytest.raises(StepExistsError, match="prune --after"):
            ck.checkpoint(state(0), step=9)  # of an earlier session
        ck.checkpoint(state(10), step=10).wait(timeout=200)
    assert difference(state(9), deeppart.load(memory / "p", 9)) is None


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
        ck._pipeline.drain(30)
        assert persistent_steps(memory) == [5, 6], "no leftover of the failures is taken for one"


# --- backpressure -----------------------------------------------------------------------------------------------------

BIG = 3_000_000  # int32: 12 MB


def test_waiting_for_a_slow_level(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 MB/s: half a second each. Two are in flight at most, so the third waits, and says so."""
    settings = {"flush_bandwidth": 24e6, "compression": "none"}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        release, waited_at = threading.Event(), []
        open_part, wait_for_room = ck._session.persistent.open_part, ck._pipeline.wait_for_room

        def held(*arguments: Any) -> Any:
            release.wait()
            return open_part(*arguments)

        def released(timeout: float) -> bool:
            waited_at.append(len(pendings))
            release.set()  # nothing gets on before somebody waits for it
            return wait_for_room(timeout)

        monkeypatch.setattr(ck._session.persistent, "open_part", held)
        monkeypatch.setattr(ck._pipeline, "wait_for_room", released)
        pendings: list[Any] = []
        for step in range(4):
            pendings.append(ck.checkpoint(state(step, BIG), step))
            pendings[-1].wait("local", timeout=300)
            assert step > 1 or not pendings[0].done()
        for pending in pendings:
            pending.wait(timeout=300)
    assert waited_at[0] == 2 and pendings[2].report.waited_s > 0
    assert all(p.report.blocked_s >= p.report.waited_s for p in pendings)
    seconds = pendings[0].report.levels["persistent"].seconds
    assert seconds is not None and seconds > 0.3
    assert all(not p.skipped for p in pendings) and persistent_steps(memory) == [1, 2, 3]


def test_skipping_while_a_slow_level_is_busy(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"flush_bandwidth": 24e6, "compression": "none", "on_busy": "skip", "keep": {"persistent": 0}}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        pendings = []
        monkeypatch.setattr(ck._pipeline, "wait_for_room", lambda timeout: pytest.fail("it waits"))
        for step in range(12):
            pendings.append(ck.checkpoint(state(step, BIG), step))
            time.sleep(0.05)
        ck._pipeline.drain(30)
        skipped = [p for p in pendings if p.skipped]
        assert skipped and not pendings[0].skipped
        for pending in skipped:
            assert states_of(pending) == ("skipped", "skipped")
            with pytest.raises(LevelNotRunError, match="skipped"):
                pending.wait(timeout=1)
        step = skipped[0].step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeeppartWarning)  # that it counts down
            ck.checkpoint(state(step, BIG), step).wait(timeout=200)  # its number is still free
    kept = {p.step for p in pendings if not p.skipped} | {step}
    assert set(persistent_steps(memory)) == kept and ck.failures == 0
    for number in kept:
        assert difference(state(number, BIG), deeppart.load(memory / "p", number)) is None


@pytest.mark.parametrize("on_busy", ["wait", "skip"])
def test_a_checkpoint_that_goes_nowhere_waits_for_nothing(memory: Path, on_busy: str) -> None:
    settings = {"flush_bandwidth": 12e6, "compression": "none", "on_busy": on_busy, "every": {"persistent": 3}}
    with deeppart.Checkpointer(config(memory, local_dir=None, **settings)) as ck:
        first = ck.checkpoint(state(0, BIG), 0)
        for step in (1, 2):
            nowhere = ck.checkpoint(state(step, BIG), step)
            assert states_of(nowhere) == ("off", "off") and nowhere.report.waited_s == 0 and nowhere.finished
        assert not first.finished
        fourth = ck.checkpoint(state(3, BIG), 3)
        assert fourth.skipped == (on_busy == "skip")
        first.wait(timeout=200)
        ck._pipeline.drain(30)
        if on_busy == "skip":
            ck.checkpoint(state(4), 4).wait(timeout=200)  # a skipped one is made up for by the next call


def test_the_local_level_frees_training_from_a_slow_persistent_one(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deeppart.Checkpointer(config(memory, compression="none")) as ck:
        release, open_part = threading.Event(), ck._session.persistent.open_part

        def held(*arguments: Any) -> Any:
            release.wait()
            return open_part(*arguments)

        monkeypatch.setattr(ck._session.persistent, "open_part", held)
        first = ck.checkpoint(state(1, BIG), 1)
        first.wait("local", timeout=300)
        why = r"not complete at level 'persistent'.*\n.*the level is (waiting|running)"
        with pytest.raises(PeerTimeoutError, match=why):
            first.wait("persistent", timeout=0.01)
        second = ck.checkpoint(state(2, BIG), 2)
        assert not first.done("persistent")
        release.set()
        second.wait(timeout=300)
        assert first.done("persistent")


def test_no_room_in_time_is_an_error_and_no_loss(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, local_dir=None, timeout=0.5)) as ck:
        release = threading.Event()
        real = ck._session.persistent.open_part

        def stuck(*arguments: Any) -> Any:
            release.wait(20)
            return real(*arguments)

        ck._session.persistent.open_part = stuck  # type: ignore[method-assign, assignment]
        first = ck.checkpoint(state(1), 1)
        with pytest.raises(CheckpointError, match="earlier checkpoint is still being written"):
            ck.checkpoint(state(2), 2)
        live = state(0)
        with pytest.raises(CheckpointError, match="earlier checkpoint is still being written"):
            ck.restore(live)  # its memory is in use
        assert difference(state(0), live) is None
        release.set()
        first.wait(timeout=200)
        assert difference(state(1), deeppart.load(memory / "p", 1)) is None
        ck.checkpoint(state(2), 2).wait(timeout=200)


# --- closing ----------------------------------------------------------------------------------------------------------


def test_close_finishes_what_is_under_way(memory: Path) -> None:
    ck = deeppart.Checkpointer(config(memory))
    pendings = [ck.checkpoint(state(step, 100_000), step) for step in range(3)]
    ck.close()
    assert [states_of(pending) for pending in pendings] == [("done", "done")] * 3
    ck.close()
    with pytest.raises(CheckpointError, match="closed"):
        ck.checkpoint(state(9), 9)
    with pytest.raises(CheckpointError, match="closed"):
        ck.restore(state(9))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("deeppart")]


def test_leaving_the_with_block_closes(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        pending = ck.checkpoint(state(1), 1)
    assert pending.done()
    deeppart.Checkpointer(config(memory)).close()


def test_the_end_of_the_process_waits_for_a_session_that_is_being_given_back(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the interpreter ends while a thread is in torch's code, and the process with a signal."""
    over = threading.Event()

    def release(self: Staging) -> None:
        time.sleep(0.5)
        over.set()

    monkeypatch.setattr(Staging, "release", release)
    with pytest.raises(ZeroDivisionError):
        with deeppart.Checkpointer(config(memory)):
            1 / 0  # noqa: B018
    assert not over.is_set()
    leave.break_off()
    assert over.is_set()


@pytest.mark.parametrize("every", [{"persistent": 1}, {"local": 1, "persistent": 2}, "auto"])
def test_the_last_step_may_be_saved_again_by_force(memory: Path, every: Any) -> None:
    """At the end one does not know whether it was saved: by ``every``, or before the job was submitted again."""
    for last in (3, 3, 4):
        live = state(0)
        with deeppart.Checkpointer(config(memory, every=every, keep={"persistent": 9})) as ck:
            restored = ck.restore(live)
            for step in range((restored or 0) + 1, last + 1):
                live = state(step)
                ck.checkpoint(live, step)
            live["x"] = live["x"] + 7
            ck.checkpoint(live, last, force=True)
        assert ck.failures == 0
        with deeppart.Checkpointer(config(memory, every=every, keep={"persistent": 9})) as ck:
            again = state(0)
            assert ck.restore(again) == last and difference(live, again) is None
            for step, force in ((last, False), (last - 1, True)) if every == {"persistent": 1} else ():
                with pytest.raises(StepExistsError, match="start it again"):
                    ck.checkpoint(live, step, force=force)


def test_counting_down_is_told_once(memory: Path) -> None:
    """What is restored is the largest step, and not the newest."""
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(5), 5).wait(timeout=200)
        with pytest.warns(DeeppartWarning, match=r"checkpoint\(step=4\) after step 5") as told:
            for step in (4, 3):
                ck.checkpoint(state(step), step).wait(timeout=200)
        assert len(told) == 1
    with deeppart.Checkpointer(config(memory)) as ck, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ck.restore(state(0)) == 5
        ck.checkpoint(state(6), 6)


def test_close_reports_what_failed_last(memory: Path) -> None:
    with pytest.warns(BackgroundFailureWarning, match="step 5 is not complete at level 'persistent'") as caught:
        with deeppart.Checkpointer(config(memory)) as ck:
            block(ck, memory / "p", 5)
            ck.checkpoint(state(5), step=5)
    assert len(caught) == 1 and ck.failures == 1


def test_an_error_in_the_with_block_comes_through_and_frees_the_directory(memory: Path) -> None:
    pending = None
    with pytest.raises(ZeroDivisionError):
        with deeppart.Checkpointer(config(memory)) as ck:
            ck.checkpoint(state(1), 1).wait(timeout=200)
            pending = ck.checkpoint(state(2, BIG), 2)
            1 / 0  # noqa: B018
    assert pending is not None
    deadline = time.monotonic() + 200
    while not pending.finished:
        assert time.monotonic() < deadline, "whoever waits for it must hear of its end"
        time.sleep(0.01)
    ck.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackgroundFailureWarning)
        with pytest.raises(CheckpointError, match="closed"):
            ck.checkpoint(state(3), 3)
    with deeppart.Checkpointer(config(memory)) as again:
        live = state(0, 1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)  # step 2 may have made it
            found = again.restore(live, step=1)
        assert found == 1 and difference(state(1), live) is None
        again.checkpoint(state(4), 4).wait(timeout=200)


def test_closing_before_it_is_finished_is_an_error_and_nobody_waits_for_ever(memory: Path) -> None:
    ck = deeppart.Checkpointer(config(memory, timeout=0.3))
    release = threading.Event()
    real = ck._session.node_levels["local"].open_part

    def stuck(*arguments: Any) -> Any:
        release.wait(20)
        return real(*arguments)

    ck._session.node_levels["local"].open_part = stuck  # type: ignore[method-assign, assignment]
    pending = ck.checkpoint(state(1), 1)
    with pytest.raises(CheckpointError, match="not finished when the checkpointer was closed"):
        ck.close()
    release.set()
    for level in ("local", "persistent"):
        try:
            pending.wait(level, timeout=200)
        except PeerTimeoutError:
            pytest.fail(f"level {level} never ended")
        except CheckpointError:
            pass
    deeppart.Checkpointer(config(memory)).close()


# --- failures in the background ---------------------------------------------------------------------------------------


def test_a_bug_in_the_background_ends_that_checkpoint_alone(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deeppart.save import complete as completing
    from deeppart.save import write

    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("a bug")

    with deeppart.Checkpointer(config(memory)) as ck:
        for number, name in enumerate(("write_part", "copy_part", "commit_round", "Manifest")):
            with monkeypatch.context() as patch:
                patch.setattr(write if hasattr(write, name) else completing, name, broken)
                pending = ck.checkpoint(state(number), 10 * number)
                deadline = time.monotonic() + 200
                while not pending.finished:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                ck._pipeline.drain(30)
            failed = [level for level in ("local", "persistent") if pending.report.levels[level].state == "failed"]
            assert failed, name
            with pytest.warns(BackgroundFailureWarning, match="ZeroDivisionError|a bug"):
                again = ck.checkpoint(state(number), 10 * number + 1)
            again.wait("local", timeout=200)
            again.wait("persistent", timeout=200)
        live = state(99)
        assert ck.restore(live) == 31


def test_failures_are_told_once(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, local_dir=None)) as ck:
        block(ck, memory / "p", 1)
        first = ck.checkpoint(state(1), 1)
        with pytest.raises(CheckpointError):
            first.wait(timeout=200)  # told here
        block(ck, memory / "p", 2)
        second = ck.checkpoint(state(2), 2)
        while not second.finished:
            time.sleep(0.005)
        block(ck, memory / "p", 3)
        with pytest.warns(BackgroundFailureWarning, match="step 2"):
            third = ck.checkpoint(state(3), 3)
        while not third.finished:
            time.sleep(0.005)
        with pytest.warns(BackgroundFailureWarning, match="step 3"):
            ck.checkpoint(state(4), 4).wait(timeout=200)
        assert ck.failures == 3
        ck.checkpoint(state(5), 5).wait(timeout=200)


def test_a_long_run_does_not_grow(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        for step in range(300):
            ck.checkpoint({"step": step}, step)
        ck._pipeline.drain(30)
        ck.checkpoint({"step": 300}, 300).wait(timeout=200)
        ck._pipeline.drain(30)
        assert len(ck._recent) <= 3
        assert all(len(steps) <= 2 for steps in ck._retention._steps.values()) and not any(
            ck._retention._leftovers.values()
        )
        with pytest.raises(StepExistsError):
            ck.checkpoint({"step": 7}, 7)


def test_retiring_that_is_refused_is_reported_and_made_up_for(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        ck._pipeline.drain(30)
        with monkeypatch.context() as patch:

            def refuse(*arguments: Any, **options: Any) -> None:
                raise OSError(5, "no")

            patch.setattr(os, "unlink", refuse)
            pending = ck.checkpoint(state(2), 2)
            pending.wait("local", timeout=200)
            pending.wait("persistent", timeout=200)
            ck._pipeline.drain(30)
        assert "cannot remove an old checkpoint" in str(pending.report.retire_error)
        assert persistent_steps(memory) == [1, 2] and ck.failures == 0
        with pytest.warns(BackgroundFailureWarning) as caught:
            ck.checkpoint(state(3), 3).wait(timeout=200)
        texts = [str(warning.message) for warning in caught]
        (text,) = texts  # on the node, the old files are set aside to be written over, which takes no unlink
        assert "step 2 is complete at level 'persistent'" in text
    assert persistent_steps(memory) == [3] and local_steps(memory) == [3]


# --- leftovers of earlier jobs ----------------------------------------------------------------------------------------


def leave_behind(memory: Path) -> None:
    """What a crash leaves: parts without a manifest, temporary files, an old local step."""
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        for step in (1, 2, 3):
            ck.checkpoint(state(step), step).wait(timeout=200)
    (step_dir(memory / "p", 2) / "manifest").unlink()
    third = step_dir(memory / "p", 3)
    (third / "manifest").rename(third / ".manifest.tmp-77-0a1b2c3d")
    (third / ".part-00000-of-00001.dpp.tmp-77").write_bytes(b"half")
    (memory / "p" / f"step-000000000004-{'a' * 32}-000000").mkdir()
    (local,) = (memory / "l").iterdir()
    fourth = local / f"step-000000000004-{'a' * 32}-000000"
    fourth.mkdir()
    (fourth / ".part-00000-of-00001.dpp.tmp-77-0a1b2c3d").write_bytes(b"half")


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


def test_a_leftover_step_number_may_be_used_again(memory: Path) -> None:
    leave_behind(memory)
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        for step in (2, 3):
            ck.checkpoint(state(step * 10), step).wait(timeout=200)
    assert persistent_steps(memory) == [1, 2, 3]
    assert [deeppart.load(memory / "p", step)["step"] for step in (1, 2, 3)] == [1, 20, 30]


def test_files_of_others_are_never_removed(memory: Path) -> None:
    leave_behind(memory)
    foreign = []
    for root in (memory / "p", next((memory / "l").iterdir())):
        for directory in list_steps(root).values():
            if directory.is_dir():
                for name in ("notes.txt", "part-1.dpp", ".hidden", "manifest.bak", "part-00000-of-00001.dpp.old"):
                    (directory / name).write_text("mine")
                    foreign.append(directory / name)
                (directory / "subdirectory").mkdir()
                (directory / "subdirectory" / "part-00000-of-00001.dpp").write_text("mine")
                foreign.append(directory / "subdirectory" / "part-00000-of-00001.dpp")
        (root / "other").write_text("mine")
        foreign.append(root / "other")
    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        for step in (10, 11):
            pending = ck.checkpoint(state(step), step)
            pending.wait("local", timeout=200)
            pending.wait("persistent", timeout=200)
    assert [path for path in foreign if path.read_text() != "mine"] == [], "left alone"
    ours = [path for path in memory.rglob("*") if path.is_file() and path not in foreign]
    steps = {path.parent.name for path in ours if path.parent.name.startswith("step-")}
    (name,) = steps
    assert name.startswith("step-000000000011-"), "\n".join(map(str, ours))
    with deeppart.Checkpointer(config(memory)) as ck:
        live = state(0)
        assert ck.restore(live) == 11


def test_other_experiments_in_one_local_directory(memory: Path) -> None:
    """Two persistent directories share a scratch directory: neither sees nor removes the other's copies."""
    one = deeppart.Config(persistent_dir=str(memory / "one"), local_dir=str(memory / "l"), timeout=30.0)
    two = deeppart.Config(persistent_dir=str(memory / "two"), local_dir=str(memory / "l"), timeout=30.0)
    with deeppart.Checkpointer(one) as a, deeppart.Checkpointer(two) as b:
        a.checkpoint(state(10), 10).wait(timeout=200)
        b.checkpoint(state(5), 5).wait(timeout=200)
        live = state(0)
        assert b.restore(live) == 5 and a.restore(live) == 10
        b.checkpoint(state(6), 6).wait(timeout=200)
    assert local_steps(memory) == [6, 10]
