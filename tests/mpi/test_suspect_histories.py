"""Random histories of a state whose replicas come to differ unseen: no step holds a wrong byte without a word.

The other tests of suspect steps each know of one way in which a leaf's history could be lost. This one knows only what
must come out: each rank remembers what it held at every step, and reads every step again at the end.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.listing import list_directory
from tests.sampling import sampled

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]

#: A place that no turn of a short history compares.
UNSEEN = 12_345
ELEMENTS = 30_000
NAMES = ("a", "b", "größe", "w", "x")
STEPS = 14
#: ``HISTORIES=100:200 make test-mpi ARGS=--thorough`` plays others.
SEEDS = range(*map(int, os.environ.get("HISTORIES", "20:40").split(":")))
MODES: tuple[Any, ...] = (
    "auto",
    "auto",
    "auto",
    {"b": "none", "*": "auto"},
    {"x": "verify", "*": "auto"},
    {"a": "all", "w": "verify", "*": "auto"},
)


class History:
    """A state that training and its user change, alike on all ranks but for what is harmed on rank 1."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank, self._draw = rank, random.Random(seed)
        self._tensors = [torch.nn.Parameter(torch.full((ELEMENTS,), float(number))) for number in range(3)]
        self._optimizer = torch.optim.SGD(self._tensors, lr=0.1)
        self.state: dict[str, Any] = {name: self._tensors[number % 3] for number, name in enumerate(NAMES[:3])}
        self.modes = self._draw.choice(MODES)
        self.capture = self._draw.choice(("eager", "lazy"))

    def train(self) -> None:
        for tensor in self._tensors:
            tensor.grad = torch.ones_like(tensor)
        self._optimizer.step()

    def change(self) -> None:
        """Most steps change nothing; the others one or two things."""
        changes: list[Callable[[], None]] = [self._harm, self._bind, self._bind, self._view, self._drop]
        changes += [self._copy, self._copy_on_rank_1, self._move_into_a_buffer, self._another_leaf]
        for _ in range(self._draw.choice((0, 0, 0, 1, 1, 2))):
            self._draw.choice(changes)()

    def _harm(self) -> None:
        tensor = self._draw.choice(self._tensors)
        if self.rank == 1:
            with torch.no_grad():
                tensor[UNSEEN] += 1

    def _bind(self) -> None:
        self.state[self._draw.choice(NAMES)] = self._draw.choice(self._tensors)

    def _view(self) -> None:
        self.state[self._draw.choice(NAMES)] = self._draw.choice(self._tensors).detach()[: 2 * ELEMENTS // 3]

    def _drop(self) -> None:
        if len(self.state) > 1:
            del self.state[self._draw.choice(sorted(self.state))]

    def _copy(self) -> None:
        name = self._draw.choice(sorted(self.state))
        self.state[name] = self.state[name].detach().clone()

    def _copy_on_rank_1(self) -> None:
        name = self._draw.choice(sorted(self.state))
        if self.rank == 1:
            self.state[name] = self.state[name].detach().clone()

    def _move_into_a_buffer(self) -> None:
        tensor = self._draw.choice(self._tensors)
        buffer = torch.zeros(ELEMENTS + 1000)
        buffer[:ELEMENTS] = tensor.detach()
        tensor.data = buffer[:ELEMENTS]
        self.state[self._draw.choice(NAMES)] = buffer

    def _another_leaf(self) -> None:
        if self.state.pop("extra", None) is None:
            self.state["extra"] = torch.zeros(3)

    def try_in_vain(self, ck: deeppart.Checkpointer, step: int) -> None:
        """A call that is refused on rank 1, now and then."""
        if self._draw.random() < 0.15:
            with pytest.raises(deeppart.DeeppartError):
                ck.checkpoint(self.state | ({"bad": object()} if self.rank == 1 else {"bad": 1}), step)

    def look(self) -> dict[str, torch.Tensor]:
        return {name: leaf.detach().clone() for name, leaf in self.state.items()}

    def mode(self, name: str) -> str:
        """As of the user's setting."""
        return "auto" if isinstance(self.modes, str) else self.modes.get(name, "auto")


def played(comm: Any, directory: Path, seed: int) -> list[tuple[int, str]]:
    """(step, name) of what this rank finds wrong; empty if all of it has been told."""
    history, held = History(comm.rank, seed), dict[int, dict[str, torch.Tensor]]()
    settings = {"replicated": history.modes, "capture": history.capture, "keep": {"persistent": 0}, "timeout": 200.0}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), **settings), comm) as ck:
        for step in range(1, STEPS + 1):
            if step > 1:
                history.change()
                history.try_in_vain(ck, step)
            if step == STEPS:  # a leaf of a new structure: all is compared in full
                history.state["last"] = torch.zeros(3)
            held[step] = history.look()
            ck.checkpoint(history.state, step).wait(timeout=200)
            history.train()
    comm.Barrier()
    suspect = {each.step: {leaf.path for leaf in each.suspect} for each in list_directory(directory).steps}
    everywhere = comm.allgather(held)
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in held:
            loaded = deeppart.load(str(directory), step=step, rank=comm.rank)
            for name, right in held[step].items():
                mode = history.mode(name)
                if mode == "all" or torch.equal(loaded[name].detach(), right):
                    continue
                told = name in suspect[step] or not stays_different(everywhere, name, step)
                if mode in ("none", "verify") or not told:  # in these nothing goes unseen
                    wrong.append((step, name))
    return wrong


def stays_different(everywhere: list[dict[int, dict[str, torch.Tensor]]], name: str, step: int) -> bool:
    """Whether ranks hold other bytes at every step from one on that has the leaf; the last one has it.

    What was put right again before anybody looked cannot be found.
    """
    later = [at for at in everywhere[0] if at >= step and name in everywhere[0][at]]
    return later[-1] == STEPS and all(not torch.equal(*(held[at][name] for held in everywhere)) for at in later)


@pytest.mark.timeout(110)
def test_no_wrong_byte_without_a_word(run_on: Any, shared_path: Path) -> None:
    found = {seed: run_on(2, played, shared_path / str(seed), seed) for seed in sampled(SEEDS, 4)}
    assert not {seed: wrong for seed, wrong in found.items() if any(wrong)}
