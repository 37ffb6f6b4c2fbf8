"""Fail every storage operation of a checkpoint, one after another: training goes on, nothing good is ever lost."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart import mapped as in_place
from deeppart.errors import BackgroundFailureWarning, CheckpointError, DeeppartError, RestoreError, StorageError
from tests.copying import copy_as_original
from tests.sampling import chosen
from tests.states import difference
from tests.storage_faults import TYPICAL_ERRORS, StorageFaults
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_pauses")

LEVELS = ("local", "persistent")
ERRORS = {errno.errorcode[code]: code for code in TYPICAL_ERRORS}
#: Of the operations of a start and a checkpoint, which are many: all with EIO once, and each fifth one with each of the
#: others. Each is refused from then on with one of the three.
PLACES = {"EIO": (0, 1), "ENOSPC": (0, 5), "EROFS": (2, 5)}
LASTING_PLACES = PLACES | {"EIO": (4, 5)}
#: A restore has fewer, and one error is to it like another.
RESTORE_PLACES = {"EIO": (0, 1), "ENOSPC": (0, 3), "EROFS": (1, 3)}


def config(directory: Path, **settings: Any) -> deeppart.Config:
    settings = {"local_dir": str(directory / "local"), "timeout": 30.0, "keep": {"persistent": 2}} | settings
    # Its operations would be counted among those of checkpoints, in no order.
    defaults: dict[str, Any] = {"compression": "zstd", "status": "none"}
    return deeppart.Config(persistent_dir=str(directory / "persistent"), **defaults | settings)


def state(step: int) -> dict[str, Any]:
    """The later the step the longer the part, compressed: not all of it fits over a spare."""
    tensor = torch.full((5000,), step, dtype=torch.int32)
    tensor[: 500 * step] = torch.randint(1 << 30, (500 * step,), generator=torch.Generator().manual_seed(step)).int()
    return {"tensor": tensor, "array": np.full(70, step), "value": [step, str(step)]}


def blank() -> dict[str, Any]:
    return {"tensor": torch.zeros(5000, dtype=torch.int32), "array": np.zeros(70, int), "value": [0, ""]}


def settle(pending: deeppart.Pending) -> dict[str, str]:
    wait_until(lambda: pending.finished, 30)
    return {name: pending.report.levels[name].state for name in LEVELS}


def newest_is_one_of(directory: Path, steps: tuple[int, ...]) -> None:
    """What load takes for the newest checkpoint is whole and is the state of one of these steps."""
    loaded = deeppart.load(directory / "persistent")
    assert difference(state(loaded["value"][0]), loaded) is None and loaded["value"][0] in steps


def operations(directory: Path, level: str) -> int:
    """How many storage operations a checkpoint takes at a level, retiring an older one included."""
    with StorageFaults(directory / level) as faults:
        with deeppart.Checkpointer(config(directory)) as ck:
            for step in (1, 2, 3):
                ck.checkpoint(state(step), step).wait(timeout=200)
            ck._pipeline.wait_until_idle(30)
            faults.clear()
            ck.checkpoint(state(4), 4).wait(timeout=200)
            ck._pipeline.wait_until_idle(30)
            count = len(faults.log)
    names = {name for name, _ in faults.log}
    assert {"open", "write", "fsync", "rename_noreplace", "unlink", "rmdir", "mkdir"} <= names
    return count


def places(lasting: bool, code: str) -> tuple[int, int]:
    """The first operation, and how many further on the next one is. Where all are taken, a run takes every second."""
    first, stride = (LASTING_PLACES if lasting else PLACES)[code]
    number = chosen()
    return (first, stride) if number is None or stride > 1 else (first + number % 2, 2)


@pytest.mark.sweep(3, kinds=("level", "lasting"))
@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("level", LEVELS)
def test_every_operation_of_a_checkpoint(memory: Path, level: str, lasting: bool, code: str) -> None:
    count = operations(memory / "count", level)
    outcomes = set()
    first, stride = places(lasting, code)
    for number in range(first, count + 2, stride):
        outcomes.add(one_fault(memory / str(number), level, number, ERRORS[code], lasting))
    assert ("done", "done") in outcomes
    if level == "local":
        lost = {("done", "failed")} if lasting or code != "EIO" else set()  # see one_fault
        assert outcomes - lost == {("done", "done"), ("failed", "done")}, "a bad local level alone stops nothing"
    else:
        assert {local for local, _ in outcomes} == {"done"}
        assert ("done", "failed") in outcomes


def one_fault(directory: Path, level: str, number: int, code: int, lasting: bool) -> tuple[str, ...]:
    (directory / level).mkdir(parents=True)
    with StorageFaults(directory / level) as faults:
        with deeppart.Checkpointer(config(directory)) as ck:
            for step in (1, 2, 3):
                ck.checkpoint(state(step), step).wait(timeout=200)
            ck._pipeline.wait_until_idle(30)
            faults.refuse(number, code, count=None if lasting else 1)
            pending = ck.checkpoint(state(4), 4)  # never raises for storage
            found = settle(pending)
            ck._pipeline.wait_until_idle(30)
            refused, log = faults.refused, list(faults.log)
            faults.clear()
            where = f"{level}, operation {number}: {log[number : number + 1]}, {found}"
            for name in LEVELS:
                error = pending.report.levels[name].error
                assert (found[name] == "failed") == (error is not None), where
                assert found[name] == "done" or "step 4" in str(error), where
            if level == "local" and found["persistent"] == "failed":  # written, but it cannot be read back
                assert "cannot be read" in str(pending.report.levels["persistent"].error), where
            newest_is_one_of(directory, (3, 4))
            if found["persistent"] == "done":
                assert difference(state(4), deeppart.load(directory / "persistent", 4)) is None, where
            else:
                unfinished(directory, lasting, where)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                again = ck.checkpoint(state(5), 5)
            told = [str(w.message) for w in caught if issubclass(w.category, BackgroundFailureWarning)]
            removals = [text for text in told if "could not be removed" in text]
            assert bool(removals) == (pending.report.retire_error is not None), where
            assert len(told) - len(removals) == list(found.values()).count("failed") == ck.failures, where
            again.wait("local", timeout=200)
            again.wait("persistent", timeout=200)
            assert refused or found == {"local": "done", "persistent": "done"}, where
    assert difference(state(5), deeppart.load(directory / "persistent")) is None, where
    tidy(directory, where)
    with deeppart.Checkpointer(config(directory)) as ck:
        live = blank()
        assert ck.restore(live) == 5 and difference(state(5), live) is None, where
    return tuple(found.values())


def unfinished(directory: Path, lasting: bool, where: str) -> None:
    """A step that failed is no checkpoint; at worst, when even removing it was refused, it is a whole one."""
    try:
        loaded = deeppart.load(directory / "persistent", 4)
    except (RestoreError, deeppart.errors.FormatError, StorageError):
        return
    assert lasting, where
    assert difference(state(4), loaded) is None, where


def tidy(directory: Path, where: str) -> None:
    """When storage is well again, nothing unfinished is left behind."""
    names = [str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()]
    assert not [name for name in names if ".tmp-" in name], where
    kept = {path.parent.name for path in (directory / "persistent").glob("step-*/manifest")}
    assert {path.name for path in (directory / "persistent").glob("step-*")} == kept and len(kept) == 2, where
    assert [path.name[:17] for path in (directory / "local").glob("*/step-*")] == ["step-000000000005"], where


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_that_passes_is_got_over_or_reported(memory: Path, code: str) -> None:
    """EIO from a network file system often passes: the part is written again. ENOSPC and EROFS do not."""
    with StorageFaults(memory / "persistent") as faults:
        with deeppart.Checkpointer(config(memory, local_dir=None)) as ck:
            ck.checkpoint(state(1), 1).wait(timeout=200)
            for times, step in ((1, 2), (2, 3)):
                faults.refuse(0, ERRORS[code], count=times, only=("write",))
                pending = ck.checkpoint(state(step), step)
                if code == "EIO":
                    pending.wait(timeout=200)
                    assert pending.report.retries == times
                else:
                    with pytest.raises(CheckpointError, match=f"errno {ERRORS[code]}"):
                        pending.wait(timeout=200)
                    assert pending.report.retries == 0
            faults.refuse(0, ERRORS[code], count=None, only=("write",))
            with pytest.raises(CheckpointError, match=f"errno {ERRORS[code]}"):
                ck.checkpoint(state(9), 9).wait(timeout=200)
            faults.clear()


@pytest.mark.sweep(3, kinds=("lasting",))
@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_every_operation_of_starting(memory: Path, code: str, lasting: bool) -> None:
    """A start that fails says so with a typed error and leaves the directory free for the next."""
    for level in LEVELS:
        (memory / "new" / level).mkdir(parents=True)
    with deeppart.Checkpointer(config(memory / "old")) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
    for old in (False, True):
        for level in LEVELS:
            number, stride = places(lasting, code)
            while True:
                directory = memory / f"{old}{level}{number}"
                copy_as_original(memory / ("old" if old else "new"), directory)
                with StorageFaults(directory / level) as faults:
                    faults.refuse(number, ERRORS[code], count=None if lasting else 1)
                    try:
                        deeppart.Checkpointer(config(directory)).close()
                    except DeeppartError as error:
                        assert isinstance(error, StorageError), (level, number, error)
                    refused = faults.refused
                with deeppart.Checkpointer(config(directory)) as ck:
                    live = blank()
                    assert ck.restore(live) == (1 if old else None)
                    ck.checkpoint(state(2), 2).wait(timeout=200)
                if not refused:
                    break
                number += stride
            assert number >= 3, (level, number)


@pytest.mark.sweep(3, kinds=("level", "mapped"))
@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("level", [*LEVELS, "both", "alone"])
def test_every_operation_of_a_restore(
    memory: Path, level: str, code: str, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read gives way to another level or to an earlier step; otherwise the live state is as it was, or
    the error says that it is not.
    """
    if not mapped:
        monkeypatch.setattr(in_place, "lies_in_memory", lambda path: False)
    settings: dict[str, Any] = {"local_dir": None} if level == "alone" else {}
    settings["compression"] = "none" if mapped else "zstd"
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        for step in (1, 2):
            ck.checkpoint(state(step), step).wait(timeout=200)
    outcomes = set()
    for lasting in (False, True):
        number, stride = RESTORE_PLACES[code]
        while True:
            with deeppart.Checkpointer(config(memory, **settings)) as ck:
                with StorageFaults(memory / level if level in LEVELS else memory) as faults:
                    faults.refuse(number, ERRORS[code], count=None if lasting else 1)
                    live = blank()
                    came: int | None = -1
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
                        try:
                            came = ck.restore(live)
                        except RestoreError as error:
                            # What is not used in place is read again when it is needed, and may have gone by then.
                            if mapped or "build the state again" not in str(error):
                                assert difference(blank(), live) is None, str(error)
                    refused = faults.refused
            if came is None:
                assert difference(blank(), live) is None
            elif came > 0:
                assert difference(state(came), live) is None
            outcomes.add(came)
            if not refused:
                assert came == 2
                break
            number += stride
        assert number >= 2
    if level == "local":
        assert outcomes == {2}, "the persistent level has it too"
    if level == "alone" and not mapped:
        assert 1 in outcomes, "the step before"
