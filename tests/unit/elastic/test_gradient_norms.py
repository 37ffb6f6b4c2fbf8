"""The noise that is measured in the backward pass, against gradients that ranks tell each other in full; its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from deeppart.elastic import gradient_norms
from deeppart.elastic.gradient_norms import (
    LEAST_OF_TENSOR,
    RUN,
    WHOLE_TENSOR,
    ExchangedStep,
    GradientNorms,
    NormGroup,
    Rotation,
    Scaling,
    TensorPart,
    second_moments,
)
from tests.elastic.kinds_job import KINDS
from tests.elastic.norms_job import AUTOSCALED, BATCH
from tests.mpi.torchrun import torchrun

#: Tails of all lengths, none, and such as are longer than what is worked on at a time.
SHAPES = [(0,), (), (7,), (199,), (10, RUN), (6 * RUN + 1,), (30, 41), (8, 5, 3, 3), (2000,), (90, 100)]
GROUPS: list[dict[str, Any]] = [{}, {"eps": 1e-3}, {"betas": (0.9, 0.99), "eps": 1e-2, "lr": 0.0}]
BERT_BASE, TIMES = 110_000_000, 25


@pytest.mark.timeout(220)
@pytest.mark.xdist_group("torchrun")
@pytest.mark.sweep(2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_noise_is_that_of_the_gradients_and_batches_follow_it_together(tmp_path: Path, ranks: int) -> None:
    """SGD and Adam, one group and two, micro-batches; a loss scale that grows; 7 samples, at last 1: two fill in."""
    told = torchrun(ranks, ["-m", "tests.elastic.norms_job", str(tmp_path)], tmp_path)
    for of_rank in told:
        assert len(of_rank["norms"]) == 10
        for case, (measured, expected) in of_rank["norms"].items():
            assert measured == pytest.approx(expected, rel=1e-4), (case, ranks)
    for of_rank in told:
        for name, (measured, expected) in of_rank["divided"].items():
            assert measured == pytest.approx(expected, rel=1e-4), (name, ranks)
    for workers in (0, 1):
        check_autoscaled([of_rank["autoscaled"][workers] for of_rank in told], ranks)


def check_autoscaled(found: list[dict[str, Any]], ranks: int) -> None:
    """All ranks have changed their batch after the same steps, and every sample was had once."""
    sizes = found[0]["sizes"]
    assert all(of_rank["sizes"] == sizes for of_rank in found), ranks
    assert sizes[0] == BATCH and max(sizes) > 2 * BATCH, sizes
    assert sum(sizes) == AUTOSCALED
    assert sorted(sample for of_rank in found for sample in of_rank["samples"]) == list(range(AUTOSCALED))


@pytest.mark.timeout(220)
@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_noise_is_measured_of_gradients_of_all_kinds(tmp_path: Path, ranks: int) -> None:
    """All of each gradient, and parts as of large models."""
    for of_rank in torchrun(ranks, ["-m", "tests.elastic.kinds_job", str(tmp_path)], tmp_path):
        for cases in (of_rank["whole"], of_rank["parts"]):
            assert set(cases) == set(KINDS)
            for kind, (measured, expected, (error,)) in cases.items():
                rough = 1e-2 if kind == "bfloat16" else 1e-3
                assert error < rough and measured == pytest.approx(expected, rel=rough), (kind, ranks)
        for way, estimates in of_rank["by_hand"].items():
            assert estimates == pytest.approx([1.0] * 4, rel=1e-3), (way, ranks)


# --- gradients of a bucket together -----------------------------------------------------------------------------------


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
        patch.multiple(gradient_norms, ENOUGH=3000, LEAST_OF_TENSOR=200, LEAST_DIVIDED=1, _AT_A_TIME=300),
    ):
        yield


def made(kind: Any, dtype: torch.dtype) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    """An optimizer of three groups that has made 4, 7 or 9 steps with parameters, or none; and these."""
    draw, groups = torch.Generator().manual_seed(1), list[list[torch.Tensor]]([[], [], []])
    parameters: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(each, dtype=dtype)) for each in SHAPES]
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
    optimizer: torch.optim.Optimizer, gradients: dict[torch.Tensor, torch.Tensor], turn: Rotation | None
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
            looked = (TensorPart(), 1.0) if turn is None else turn.of(flat.numel(), number)
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
            turn = (
                Rotation(number, rank, ranks, sum(each.numel() for each in parameters)) if size % ranks == 0 else None
            )
            norms.coming, norms.turn = ExchangedStep(1.0, size, 6, 1.0), number
            exchange = Exchange(bucket)
            with patch.object(gradient_norms, "allreduce_hook", exchange):
                norms.hook(bucket)  # type: ignore[arg-type]
            assert summed(norms._own) == pytest.approx(defined(optimizer, of_parameter, turn), rel=2e-6)
            exchange.complete()
            if turn is not None or rank == 0:
                assert summed(norms._of_mean) == pytest.approx(defined(optimizer, of_parameter, turn), rel=2e-6)
            else:
                assert norms._of_mean == []


def test_as_rmsprop_scales_gradients() -> None:
    """Without a correction, and as they are while the moments say little."""
    draw = torch.Generator().manual_seed(0)
    gradient, moments = torch.randn(7, generator=draw), torch.rand(7, generator=draw)
    found = []
    for steps in (4, 7):
        alone = NormGroup(Scaling.of({"eps": 1e-3}, steps))
        alone.add(0, WHOLE_TENSOR, moments)
        found.append(float(alone.squared_norm([gradient])))
    expected = [gradient, gradient / (moments.sqrt() + 1e-3)]
    assert found == pytest.approx([float(each.square().sum()) for each in expected], rel=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "options", "name"),
    [
        (torch.optim.Adam, {}, "exp_avg_sq"),
        (torch.optim.AdamW, {"amsgrad": True}, "max_exp_avg_sq"),
        (torch.optim.RMSprop, {}, "square_avg"),
        (torch.optim.SGD, {}, None),
    ],
)
def test_the_moments_that_an_optimizer_divides_by(optimizer: Any, options: dict[str, Any], name: str | None) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    made_one = optimizer([parameter], lr=0.1, **options)
    parameter.grad = torch.ones(3)
    made_one.step()
    state = made_one.state[parameter]
    assert second_moments(state) is (None if name is None else state[name])


# --- parts of gradients -----------------------------------------------------------------------------------------------


def squared(tensor: torch.Tensor, part: TensorPart) -> float:
    """Of the elements of a part."""
    return sum(float(piece.square().sum()) for piece in part.of(tensor))


def elements_of(part: TensorPart, tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(0, dtype=tensor.dtype), *(piece.reshape(-1) for piece in part.of(tensor))])


BERT_BASE, TIMES = 110_000_000, 25


@pytest.mark.parametrize("count", [1, 2, 3, 24])
@pytest.mark.parametrize("elements", [0, 1, 7, RUN, 24 * RUN, 24 * RUN + 5, 100_003])
def test_every_element_is_in_one_part(elements: int, count: int) -> None:
    numbers = torch.arange(elements)
    each = [elements_of(TensorPart(number, count), numbers) for number in range(count)]
    assert torch.cat(each).sort().values.equal(numbers)
    sizes = [len(part) for part in each]
    assert max(sizes) - min(sizes) <= RUN


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("elements", [1, LEAST_OF_TENSOR - 1, LEAST_OF_TENSOR, 100_003])
def test_over_all_turns_the_sum_over_ranks_is_what_one_finds_of_all(elements: int, ranks: int) -> None:
    tensor = torch.randn(elements, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = Rotation(0, 0, ranks, BERT_BASE).of(elements, 0)
    assert first is not None
    turns, found = max(ranks, first[0].parts), 0.0
    for number in range(turns):
        for rank in range(ranks):
            looked = Rotation(number, rank, ranks, BERT_BASE).of(elements, 7)
            found += looked[1] * squared(tensor, looked[0]) / turns if looked else 0.0
    assert found == pytest.approx(float(tensor.square().sum()), rel=1e-9)


def test_a_part_of_a_matrix_with_rows_that_differ_much_says_what_all_do() -> None:
    """Of an embedding the rows of frequent words have gradients, most others have none."""
    rows = torch.arange(30_000, 0, -1).float().pow(-1).flip(0)  # by Zipf
    gradient = rows[:, None] * torch.randn(30_000, 768, generator=torch.Generator().manual_seed(1))
    whole = float(gradient.double().square().sum())
    shares = []
    for turn in range(TIMES):
        looked = [Rotation(turn, rank, 4, BERT_BASE).of(gradient.numel(), 0) for rank in range(4)]
        shares.append(sum(each[1] * squared(gradient, each[0]) for each in looked if each) / whole)
    assert math.sqrt(sum((share - 1) ** 2 for share in shares) / TIMES) < 0.35, "2.3 with runs of 512 elements"


@pytest.mark.parametrize("elements", [LEAST_OF_TENSOR, 6400, 50_000, 4096 * 4096])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_no_tensor_of_a_very_large_model_is_left_out_of_a_step(elements: int, ranks: int) -> None:
    """A group of biases and scales would seem to have no gradient, and its rate would be multiplied by most."""
    tensor = torch.ones(elements)
    for turn in range(0, 1600, 37):
        looked = [Rotation(turn, rank, ranks, 7_000_000_000).of(elements, 0) for rank in range(ranks)]
        found = sum(each[1] * squared(tensor, each[0]) for each in looked if each)
        assert found == pytest.approx(elements, rel=0.06), turn


def test_in_any_few_turns_all_rows_of_a_very_large_model_are_looked_at() -> None:
    """Averages are over some hundred steps: they are not to depend on which parts come in these."""
    gradient = torch.zeros(32_000, 4096)
    gradient[7] = 1.0  # the one row that has a gradient
    ranks, found = 8, list[float]()
    for turn in range(250):
        looked = [Rotation(turn, rank, ranks, 7_000_000_000).of(gradient.numel(), 0) for rank in range(ranks)]
        found.append(sum(each[1] * squared(gradient, each[0]) for each in looked if each) / 4096)
    for begin in range(0, 200, 10):
        assert sum(found[begin : begin + 50]) / 50 == pytest.approx(1.0, rel=0.5), begin


@pytest.mark.parametrize("times", [24, 80, 96, 128])
def test_a_part_of_matrices_with_columns_that_differ_much_says_what_all_do(times: int) -> None:
    """Some features of a transformer are far larger than others, in all layers; rows are of a power of two."""
    features = torch.ones(1024)
    features[[3, 500, 777]] = 60.0
    generator = torch.Generator().manual_seed(2)
    layers = [torch.randn(3072, 1024, generator=generator) * features for _ in range(3)]
    whole = sum(float(each.double().square().sum()) for each in layers)
    for turn in range(60):
        looked = [
            (each, Rotation(turn, rank, 2, times * gradient_norms.ENOUGH).of(each.numel(), 12 * number))
            for number, each in enumerate(layers)
            for rank in range(2)
        ]
        found = sum(part[1] * squared(each, part[0]) for each, part in looked if part)
        assert found == pytest.approx(whole, rel=0.5), "0.09 to 11 times as much with an even number of parts"


@pytest.mark.parametrize("ranks", [2, 6, 8, 48, 210, 231])
def test_any_few_turns_are_spread_evenly_whatever_the_numbers_of_parts_and_ranks(ranks: int) -> None:
    for times in (9, 25, 95, 145, 187, 189, 511, 1667, 23841):
        looked = [Rotation(turn, 0, ranks, times * gradient_norms.ENOUGH).of(1 << 40, 0) for turn in range(times)]
        places = [each[0].number % times for each in looked if each]
        assert sorted(places) == list(range(times)), "all of it, in so many turns"
        for turns in (each for each in (4, 8, 16, 32, 64, 128) if each <= times):
            some = sorted(places[:turns])
            between = max(b - a for a, b in zip(some, [*some[1:], some[0] + times], strict=True))
            assert between <= 2.5 * times / turns, (times, turns, "14 of 187 parts with 48 ranks")
