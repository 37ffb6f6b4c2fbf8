"""The background of a save: backpressure, errors that nobody expected, and a long run."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import CheckpointError, DeeppartWarning, LevelNotRunError
from deeppart.save import Pipeline
from tests.states import difference
from tests.unit.one_rank import BIG, config, persistent_steps, state, states_of


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
        ck._pipeline.wait_until_idle(30)
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
        ck._pipeline.wait_until_idle(30)
        if on_busy == "skip":
            ck.checkpoint(state(4), 4).wait(timeout=200)  # a skipped one is made up for by the next call


def test_no_room_in_time_is_an_error_and_no_loss(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, local_dir=None, timeout=0.5)) as ck:
        release = threading.Event()
        real = ck._session.persistent.open_part

        def stuck(*arguments: Any, **options: Any) -> Any:
            release.wait(20)
            return real(*arguments, **options)

        ck._session.persistent.open_part = stuck  # type: ignore[method-assign]
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


# --- failures in the background ---------------------------------------------------------------------------------------


#: Stage -> what gives it up, the level that fails with it, and an error. Errors of all kinds are passed on alike
#: (tests/unit/test_threads.py).
STAGES: dict[str, tuple[str, str, type[BaseException]]] = {
    "_capture": ("_give_up_capturing", "local", ZeroDivisionError),
    "_store": ("_give_up_storing", "local", MemoryError),
    "_flush": ("_give_up_flushing", "persistent", SystemExit),
    "_remove": ("_give_up_removing", "", KeyboardInterrupt),
}


@pytest.mark.filterwarnings("ignore::deeppart.errors.BackgroundFailureWarning")  # of what was not waited for
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_that_ends_a_thread_ends_every_wait(memory: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Giving up fails, too: what is in flight has failed, the next calls say why, and another session begins."""
    gives_up, level, kind = STAGES[stage]
    settings = config(memory, capture="lazy", keep={"persistent": 1})
    thread, cause = stage.replace("_", "deeppart-", 1), f"{kind.__name__}: in {gives_up}"
    before = set(threading.enumerate())  # of other tests
    failed: list[str] = []

    def failing_once(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def broken(*arguments: Any) -> None:
            if name not in failed:
                failed.append(name)
                raise kind(f"in {name}")
            real(*arguments)

        return broken

    for name in (stage, gives_up):
        monkeypatch.setattr(Pipeline, name, failing_once(name, getattr(Pipeline, name)))
    with deeppart.Checkpointer(settings) as ck:
        pending = ck.checkpoint(state(1), 1)
        if level:
            with pytest.raises(CheckpointError, match=cause) as caught:
                pending.wait(level)
            assert thread in str(caught.value)
        assert ck._pipeline.wait_until_idle(200) and pending.finished
        live = state(7)
        for call in (lambda: ck.checkpoint(state(2), 2), lambda: ck.restore(live)):
            with pytest.raises(CheckpointError, match="has ended one of its threads") as caught:
                call()
            assert caught.value.found == cause and thread in str(caught.value.where)
        assert difference(state(7), live) is None
    assert not [each.name for each in set(threading.enumerate()) - before if each.name.startswith("deeppart-")]
    with deeppart.Checkpointer(settings) as ck:
        ck.checkpoint(state(3), 3).wait(timeout=200)
