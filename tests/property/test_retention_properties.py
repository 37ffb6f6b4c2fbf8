"""Whatever operation on the store fails, and however long: no step that is kept loses anything that it refers to."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartError, DeeppartWarning, StorageError
from deeppart.model import StepKey
from deeppart.part import StoredBytes
from deeppart.save import write
from deeppart.storage import PosixStore, Stat, Writer, committed_steps, list_steps, read_manifest
from deeppart.testing.states import difference
from tests.sampling import sampled

ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE)
KEEP = 2


class FaultyStore:
    """A directory, of which some operations that read or remove are refused, counted in the order in which they come.

    Attributes:
        log: their names.
    """

    def __init__(self, root: Path) -> None:
        self._store, self._lock = PosixStore(root), threading.Lock()
        self.log: list[str] = []
        self._first, self._last, self._errno = -1, -1, 0

    def refuse(self, first: int, times: int, code: int) -> None:
        """Refuse those from number ``first`` on, so many."""
        self._first, self._last, self._errno = first, first + times, code

    def _pass(self, name: str, key: str) -> None:
        with self._lock:
            number = len(self.log)
            self.log.append(f"{name} {key.rpartition('/')[2]}")
        if self._first <= number < self._last:
            raise StorageError("refused", errno=self._errno, where=self.where(key))

    def where(self, key: str = "") -> str:
        return self._store.where(key)

    def put_new(self, key: str, data: bytes) -> None:
        self._store.put_new(key, data)

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        self._store.replace(key, data, durable=durable)

    def get(self, key: str, limit_bytes: int) -> bytes:
        self._pass("get", key)
        return self._store.get(key, limit_bytes)

    def open(self, key: str) -> StoredBytes:
        self._pass("open", key)
        return self._store.open(key)

    def stat(self, key: str) -> Stat | None:
        self._pass("stat", key)
        return self._store.stat(key)

    def list(self, place: str = "") -> list[str]:
        self._pass("list", "place" if place else "")
        return self._store.list(place)

    def delete(self, place: str, names: Sequence[str], *, durable: bool = True) -> None:
        for name in names:  # one after the other: any of them may be the last that is carried out
            self._pass("delete", name)
            self._store.delete(place, [name], durable=durable)

    def writer(self, key: str) -> Writer:
        return self._store.writer(key)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "RETRY_PAUSES_S", (0.0, 0.0))


def state(step: int) -> dict[str, Any]:
    """Two leaves take turns in being new: each step refers to the one before, and no other step does."""

    def leaf(turn: int) -> torch.Tensor:
        return torch.full((300_000,), float(turn)).cumsum(0)

    return {"new": leaf(step), "even": leaf(step // 2), "odd": leaf((step + 1) // 2), "step": step}


def run(directory: Path, steps: Sequence[int]) -> list[int]:
    """A session that goes on where the one before has ended; the steps that it was told are done."""
    done = []
    settings: dict[str, Any] = {"keep": {"persistent": KEEP}, "compression": "none", "status": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeeppartWarning)
        try:
            with deeppart.Checkpointer(persistent_dir=str(directory), timeout=60.0, **settings) as checkpointer:
                checkpointer.restore(state(0))
                for step in steps:
                    pending = checkpointer.checkpoint(state(step), step)
                    try:
                        pending.wait("persistent", 60)
                        done.append(step)
                    except DeeppartError:
                        continue
        except DeeppartError:
            pass  # it could not begin, or could not go on
    return done


def two_sessions(root: Path, monkeypatch: pytest.MonkeyPatch, first: int, times: int, code: int) -> list[str]:
    """The operations that there were; what is kept is whole after each session."""
    store = FaultyStore(root)
    store.refuse(first, times, code)
    monkeypatch.setattr("deeppart.session.open.open_store", lambda directory, limit: store)
    done: list[int] = []
    for steps in ((1, 2, 3, 4), (5, 6, 7)):
        done += run(root, steps)
        plain = PosixStore(root)
        committed = [key.step for key in committed_steps(plain)]
        assert set(done[-KEEP:]) <= set(committed), "a step that was done is gone"
        for step in committed:
            assert difference(state(step), deeppart.load(root, step)) is None
    log = list(store.log)
    store.refuse(-1, 0, 0)
    assert run(root, (8, 9, 10)) == [8, 9, 10]
    assert [key.step for key in committed_steps(plain)] == [9, 10]
    needed = {key for step in (9, 10) for key in referred_to(plain, step)}
    left = {key for key in list_steps(plain) if key.step < 9}
    assert needed and left == needed, "what nobody needs is gone in the end"
    return log


def referred_to(store: PosixStore, step: int) -> set[StepKey]:
    (manifest,) = (read_manifest(store, key, None) for key in committed_steps(store) if key.step == step)
    return {key for key, _ in manifest.needed_parts if key.step < 9}


@pytest.mark.timeout(600)
def test_a_refused_operation_costs_no_step_that_is_kept(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone, or with the three that follow it."""
    log = two_sessions(memory / "all", monkeypatch, -1, 0, 0)
    assert len(log) > 100
    manifests = [number for number, name in enumerate(log) if name == "get manifest"]  # that is where it hurts
    for number in sorted({*sampled(manifests, 4), *sampled(range(len(log)), 8, kind=log.__getitem__)}):
        two_sessions(memory / str(number), monkeypatch, number, 1 + 3 * (number % 2), ERRORS[number % len(ERRORS)])
