"""Norms that are taken of a bucket together, against those of one gradient after the other, in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from deeppart.elastic import gradient_norms, parts, squared_norms
from deeppart.elastic.gradient_norms import GradientNorms, Step
from deeppart.elastic.parts import RUN, Part, Turn

LEAST_OF_TENSOR, ENOUGH = 200, 3000
#: Tails of all lengths, none, and such as are longer than what is worked on at a time.
SHAPES = [(0,), (), (7,), (199,), (10, RUN), (6 * RUN + 1,), (30, 41), (8, 5, 3, 3), (2000,), (90, 100)]
GROUPS: list[dict[str, Any]] = [{}, {"eps": 1e-3}, {"betas": (0.9, 0.99), "eps": 1e-2, "lr": 0.0}]


class Bucket:
    """As DistributedDataParallel gives hooks one: gradients one after the other, in the order of their memory."""

    def __init__(self, parameters: list[torch.Tensor], draw: torch.Generator) -> None:
        self._parameters = parameters
        numbers = torch.randn(sum(each.numel() for each in parameters), generator=draw)
        self._buffer = numbers.to(parameters[0].dtype)

    def index(self) -> int:
        return 0

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        cut = self._buffer.split([each.numel() for each in self._parameters])
        return [each.view(parameter.shape) for each, parameter in zip(cut, self._parameters, strict=True)]


class Exchange:
    """In place of the exchange: others' gradients make other means, when it is told so."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def __call__(self, *_: Any) -> torch.futures.Future[torch.Tensor]:
        return self.future

    def complete(self) -> None:
        buffer = self._bucket.buffer()
        buffer.copy_(buffer.flip(0) * 0.5)
        self.future.set_result(buffer)


@contextmanager
def many_ranks(rank: int, ranks: int) -> Iterator[None]:
    """One of several ranks of a model that is large, by what is large here."""
    with (
        patch.multiple(dist, get_rank=lambda _: rank, get_world_size=lambda _: ranks),
        patch.multiple(parts, ENOUGH=ENOUGH, LEAST_OF_TENSOR=LEAST_OF_TENSOR),
        patch.multiple(gradient_norms, LEAST_DIVIDED=1),
        patch.multiple(squared_norms, _AT_A_TIME=300),
    ):
        yield


def made(kind: Any, dtype: torch.dtype, copies: int = 1) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    """An optimizer of three groups that has made 4, 7 or 9 steps with parameters, or none; and these."""
    draw, groups = torch.Generator().manual_seed(1), list[list[torch.Tensor]]([[], [], []])
    shapes = SHAPES * copies
    parameters: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(each, dtype=dtype)) for each in shapes]
    images = next(each for each in parameters if each.dim() == 4)
    images.data = images.data.to(memory_format=torch.channels_last)
    for number, parameter in enumerate(parameters):
        groups[number % 3].append(parameter)
    optimizer = kind([{**options, "params": each} for options, each in zip(GROUPS, groups, strict=True)], lr=0.1)
    for number, parameter in enumerate(parameters):
        if number % 5 == 4 or kind is torch.optim.SGD:
            continue
        moments = torch.empty_like(parameter, dtype=torch.bfloat16 if number % 5 == 3 else dtype)
        steps = torch.tensor(float((7, 7, 9, 4)[number // 3 % 4]))
        moments.copy_(torch.rand(parameter.shape, generator=draw))
        optimizer.state[parameter] = {"step": steps, "exp_avg_sq": moments}
    return optimizer, parameters


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """float64: its elements in the order of memory."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).detach().double().flatten()


def defined(
    optimizer: torch.optim.Optimizer, gradients: dict[torch.Tensor, torch.Tensor], turn: Turn | None
) -> list[float]:
    """Squared norms of groups, by what is defined for each element."""
    found, number = list[float](), -1
    for group in optimizer.param_groups:
        found.append(0.0)
        for parameter in group["params"]:
            number += 1
            flat, state = gradients[parameter].double().flatten(), optimizer.state.get(parameter, {})
            if state and (steps := int(state["step"])) >= 5:
                correction = 1 - group["betas"][1] ** steps
                flat = flat / ((in_memory(state["exp_avg_sq"]) / correction).sqrt() + group["eps"])
            looked = (Part(), 1.0) if turn is None else turn.of(flat.numel(), number)
            if looked is not None:
                part, counts = looked
                mine = torch.arange(flat.numel()) // RUN % part.parts == part.number
                found[-1] += counts * float(flat[mine].square().sum())
    return found


def summed(norms: list[tuple[int, torch.Tensor]]) -> list[float]:
    return [sum(float(norm) for at, norm in norms if at == group) for group in range(3)]


@pytest.mark.parametrize("size", [6, 7], ids=["parts", "all, of other numbers of samples"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (1, 2), (0, 3), (2, 3)])
def test_what_is_taken_together_is_what_each_gradient_has(
    kind: Any, dtype: torch.dtype, size: int, rank: int, ranks: int
) -> None:
    with many_ranks(rank, ranks):
        groups = [{key: value for key, value in each.items() if key == "lr"} for each in GROUPS]
        with patch(f"{__name__}.GROUPS", groups if kind is torch.optim.SGD else GROUPS):
            optimizer, parameters = made(kind, dtype)
        norms = GradientNorms(optimizer, None, preconditioned=kind is torch.optim.AdamW)  # type: ignore[arg-type]
        order = parameters[::-1]
        for number in range(7):
            bucket = Bucket(order, torch.Generator().manual_seed(number))
            of_parameter = dict(zip(order, bucket.gradients(), strict=True))
            turn = Turn(number, rank, ranks, sum(each.numel() for each in parameters)) if size % ranks == 0 else None
            norms.coming, norms.turn = Step(1.0, size, 6, 1.0), number
            exchange = Exchange(bucket)
            with patch.object(gradient_norms, "allreduce_hook", exchange):
                norms.hook(bucket)  # type: ignore[arg-type]
            assert summed(norms._own) == pytest.approx(defined(optimizer, of_parameter, turn), rel=2e-6)
            exchange.complete()
            if turn is not None or rank == 0:
                assert summed(norms._of_mean) == pytest.approx(defined(optimizer, of_parameter, turn), rel=2e-6)
            else:
                assert norms._of_mean == []


def test_a_bucket_takes_no_more_calls_with_more_tensors_and_the_mean_takes_no_roots() -> None:
    """As many parts are looked at: how often one counts is what tensors have to share to be taken together."""
    calls = []
    for copies in (6, 36):  # of fewer not every kind is in every group
        enough = patch.object(parts, "ENOUGH", ENOUGH * copies)
        with many_ranks(0, 2), patch.object(squared_norms, "_AT_A_TIME", 1 << 17), enough:
            optimizer, parameters = made(torch.optim.AdamW, torch.float32, copies)
            for state in optimizer.state.values():
                state["step"] = torch.tensor(7.0)
            norms = GradientNorms(optimizer, None, preconditioned=True)  # type: ignore[arg-type]
            bucket = Bucket(parameters, torch.Generator())
            norms.coming, exchange = Step(1.0, 6, 6, 1.0), Exchange(bucket)
            sqrt, dot = patch.object(torch, "sqrt", wraps=torch.sqrt), patch.object(torch, "dot", wraps=torch.dot)
            with patch.object(gradient_norms, "allreduce_hook", exchange), sqrt as roots, dot as products:
                norms.hook(bucket)  # type: ignore[arg-type]
                before = roots.call_count, products.call_count
                exchange.complete()
            assert before[0] > 0 and (roots.call_count, products.call_count) == (before[0], 2 * before[1])
            assert len(norms._own) == len(norms._of_mean)
            calls.append(before)
    assert calls[1] == calls[0], "three groups, whole tensors and parts, scaled or not"
