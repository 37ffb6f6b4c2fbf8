"""Real checkpoints of this library on this machine, stage by stage."""

from __future__ import annotations

import faulthandler
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from deeppart.checkpointer import Checkpointer
from deeppart.comm import Comm, finish
from deeppart.config import Config
from deeppart.model import LEVELS
from deeppart.pending import Pending
from deeppart.plan.limit import BURST_S

from ..tasks import LOSE, NOTHING, TRAIN, SaveTask

State: TypeAlias = dict[str, torch.nn.Parameter]

#: Checkpoints before those that count. Afterwards staging memory and files to write over are there: the third and the
#: fourth take twice as long until they are on the node as later ones.
_BEFORE = 4
_SEED = 1
#: Seconds that a checkpoint, and waiting for the other ranks, may take.
TIMEOUT_S = 300.0
#: Then every rank says what it does: which one the others wait for cannot be told from outside.
_STACKS_AFTER_S = 0.8 * TIMEOUT_S
#: What is measured of every checkpoint, in seconds of the slowest rank.
MEASURED = ("capture", "blocked", *LEVELS, "work", "restore", "alone", "trained")
#: Training lasts so many times as long as the background works, so that this is over before.
_LONGER = 1.2
#: Rows and columns of the matrices that training multiplies: they stay in a core's cache.
_MATRIX = 256


def measure_save(comm: Comm, task: SaveTask, local_dir: Path, persistent_dir: Path) -> dict[str, list[float]]:
    """Checkpoint a state again and again (collective)."""
    state = _state(task)
    config = _config(task, local_dir, persistent_dir)
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    measured, before = (_in_one_session, _BEFORE) if task.after in (NOTHING, TRAIN) else (_restoring, 1)
    for turn, row in enumerate(_watched(measured(comm, task, config, state))):
        slowest = finish(
            comm, comm.maximum(np.array([round(1e9 * row.get(name, 0.0)) for name in MEASURED])), "measuring", TIMEOUT_S
        )
        if turn >= before:
            for name, nanoseconds in zip(MEASURED, slowest.tolist(), strict=True):
                found[name].append(nanoseconds / 1e9)
    return found


def _watched(rows: Iterator[dict[str, float]]) -> Iterator[dict[str, float]]:
    """The rows; while the next one takes almost as long as anybody waits, what this rank does is written to stderr."""
    try:
        while True:
            faulthandler.dump_traceback_later(_STACKS_AFTER_S)
            if (row := next(rows, None)) is None:
                return
            yield row
    finally:
        faulthandler.cancel_dump_traceback_later()


def _config(task: SaveTask, local_dir: Path, persistent_dir: Path) -> Config:
    local = local_dir / "{node}" if task.nodes else local_dir
    return Config(
        persistent_dir=str(persistent_dir),
        local_dir=str(local) if task.local else None,
        every={level: int(level in task.levels) for level in LEVELS},
        keep=dict.fromkeys(LEVELS, 1),
        compression=task.compression,
        capture=task.capture,
        flush_bandwidth=task.flush_bandwidth,
        node_size=1 if task.nodes else None,
        parity_group=task.parity_group or None,
        timeout=TIMEOUT_S,
    )


def _in_one_session(comm: Comm, task: SaveTask, config: Config, state: State) -> Iterator[dict[str, float]]:
    """Checkpoint after checkpoint, and training beside each of them if that is measured."""
    products, trainer = 0, _Trainer(state)
    with Checkpointer(config) as checkpointer:
        for turn in range(_BEFORE + task.rounds):
            trainer.step(turn)
            meet(comm)
            if task.flush_bandwidth is not None:  # a training has not used its allowance between two checkpoints
                time.sleep(2 * BURST_S)
            alone_s = _train(products)
            meet(comm)
            began = time.monotonic()
            pending = checkpointer.checkpoint(state, step=turn)
            worked = time.process_time()
            _train(products)
            trained_s = time.monotonic() - began
            row = _waited(pending, task) | {"alone": alone_s, "trained": trained_s}
            row["work"] = 0.0 if products else time.process_time() - worked
            if task.after == TRAIN and turn == _BEFORE - 1:
                products = _products(comm, max(row[level] for level in task.levels))
            yield row


def _restoring(comm: Comm, task: SaveTask, config: Config, state: State) -> Iterator[dict[str, float]]:
    """Checkpoint, end, and restore in a session of its own, as a job does that comes back."""
    trainer = _Trainer(state)
    for turn in range(1 + task.rounds):
        trainer.step(turn)
        with Checkpointer(config) as checkpointer:
            meet(comm)
            row = _waited(checkpointer.checkpoint(state, step=turn), task)
        meet(comm)  # until all have ended, they delete what is out of date
        if task.after == LOSE and comm.rank == 0:
            assert config.local_dir is not None
            shutil.rmtree(config.local_dir.replace("{node}", "node1"))
        meet(comm)
        with Checkpointer(config) as checkpointer:
            meet(comm)
            began = time.monotonic()
            checkpointer.restore(state)
            row["restore"] = time.monotonic() - began
            meet(comm)
        yield row


def _waited(pending: Pending, task: SaveTask) -> dict[str, float]:
    """Seconds of a checkpoint's stages, and until each of its levels was complete."""
    for level in task.levels:
        pending.wait(level, TIMEOUT_S)
    report = pending.report
    blocked = report.blocked_s - report.waited_s
    row = {
        "capture": report.stages_s["capture"],
        "blocked": blocked,
    }
    for level in task.levels:
        row[level] = blocked + (report.levels[level].seconds or 0.0)
    return row


def _train(products: int) -> float:
    """Seconds that so much training takes, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        weights = torch.full((_MATRIX, _MATRIX), 1 / _MATRIX)
        values = torch.ones(_MATRIX, _MATRIX)
        began = time.monotonic()
        for _ in range(products):
            values = values @ weights
        return time.monotonic() - began
    finally:
        torch.set_num_threads(threads)


def _products(comm: Comm, background_s: float) -> int:
    """How many products last longer than the background does (collective)."""
    some = 64
    _train(some)
    wanted = np.array([max(1, round(_LONGER * background_s * some / max(_train(some), 1e-6)))])
    return int(finish(comm, comm.maximum(wanted), "measuring", TIMEOUT_S)[0])


def _state(task: SaveTask) -> State:
    """Random numbers: chunks that were alike would be written once."""
    elements = max(1, task.nbytes // 4 // task.tensors)
    random = torch.Generator().manual_seed(_SEED)
    return {
        f"tensor{number}": torch.nn.Parameter(torch.randn(elements, generator=random)) for number in range(task.tensors)
    }


class _Trainer:
    """Changes every chunk, the same way on all ranks, and goes through the memory as an optimizer does.

    What an optimizer trains the library compares in turn, not all of it at every checkpoint, and may copy in the
    background.
    """

    def __init__(self, state: State) -> None:
        for parameter in state.values():
            parameter.grad = torch.full_like(parameter, 0.01)
        self._optimizer = torch.optim.SGD(state.values(), lr=1.0)

    def step(self, turn: int) -> None:
        """One of them is not like the next."""
        self._optimizer.param_groups[0]["lr"] = turn + 1.0
        self._optimizer.step()


def meet(comm: Comm) -> None:
    """Wait until all ranks are here (collective)."""
    finish(comm, comm.maximum(np.zeros(1, dtype=np.int64)), "measuring", TIMEOUT_S)
