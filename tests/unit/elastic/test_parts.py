"""Parts are all elements together, and what ranks find of theirs stands for all: in the end exactly."""

from __future__ import annotations

import math

import pytest
import torch

from deeppart.elastic import parts
from deeppart.elastic.parts import LEAST_OF_TENSOR, RUN, WHOLE, Part, Turn
from deeppart.elastic.squared_norms import squared_norm

BERT_BASE, TIMES = 110_000_000, 25


def elements_of(part: Part, tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(0, dtype=tensor.dtype), *(piece.reshape(-1) for piece in part.of(tensor))])


@pytest.mark.parametrize("count", [1, 2, 3, 24])
@pytest.mark.parametrize("elements", [0, 1, 7, RUN, 24 * RUN, 24 * RUN + 5, 100_003])
def test_every_element_is_in_one_part(elements: int, count: int) -> None:
    numbers = torch.arange(elements)
    each = [elements_of(Part(number, count), numbers) for number in range(count)]
    assert torch.cat(each).sort().values.equal(numbers)
    sizes = [len(part) for part in each]
    assert max(sizes) - min(sizes) <= RUN


def test_a_part_is_no_copy_and_has_no_empty_pieces() -> None:
    tensor = torch.arange(1000.0)
    for number in range(4):
        pieces = Part(number, 4).of(tensor)
        assert all(len(piece) and piece.untyped_storage().data_ptr() == tensor.data_ptr() for piece in pieces)
    assert Part(1, 4).of(torch.zeros(3)) == [] and Part(0, 1).of(torch.zeros(0)) == []


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("elements", [1, LEAST_OF_TENSOR - 1, LEAST_OF_TENSOR, 100_003])
def test_over_all_turns_the_sum_over_ranks_is_what_one_finds_of_all(elements: int, ranks: int) -> None:
    tensor = torch.randn(elements, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = Turn(0, 0, ranks, BERT_BASE).of(elements, 0)
    assert first is not None
    turns, found = max(ranks, first[0].parts), 0.0
    for number in range(turns):
        for rank in range(ranks):
            looked = Turn(number, rank, ranks, BERT_BASE).of(elements, 7)
            found += looked[1] * float(squared_norm(tensor, looked[0])) / turns if looked else 0.0
    assert found == pytest.approx(float(tensor.square().sum()), rel=1e-9)


def test_ranks_look_at_different_parts_in_every_turn() -> None:
    for number in range(30):
        looked = {Turn(number, rank, 4, BERT_BASE).of(1 << 20, 0) for rank in range(4)}
        assert len(looked) == 4 and all(each and each[0].parts == 4 * TIMES for each in looked)


def test_a_small_tensor_is_looked_at_whole_by_one_rank_after_the_other() -> None:
    looking = [
        [rank for rank in range(4) if Turn(turn, rank, 4, BERT_BASE).of(768, 5) == (WHOLE, 1.0)] for turn in range(8)
    ]
    assert looking == [[1], [2], [3], [0], [1], [2], [3], [0]]
    in_a_turn = [rank for tensor in range(4) for rank in range(4) if Turn(0, rank, 4, BERT_BASE).of(768, tensor)]
    assert sorted(in_a_turn) == [0, 1, 2, 3], "each rank has some of them"


def test_no_more_is_looked_at_than_is_enough() -> None:
    for elements in (BERT_BASE, 7_000_000_000):
        looked = Turn(0, 0, 8, elements).of(1 << 30, 0)
        assert looked is not None
        part, counts = looked
        assert parts.ENOUGH <= 8 * elements / part.parts < 1.2 * parts.ENOUGH
        assert counts == part.parts / 8


def test_a_part_of_a_matrix_with_rows_that_differ_much_says_what_all_do() -> None:
    """Of an embedding the rows of frequent words have gradients, most others have none."""
    rows = torch.arange(30_000, 0, -1).float().pow(-1).flip(0)  # by Zipf
    gradient = rows[:, None] * torch.randn(30_000, 768, generator=torch.Generator().manual_seed(1))
    whole = float(gradient.double().square().sum())
    shares = []
    for turn in range(TIMES):
        looked = [Turn(turn, rank, 4, BERT_BASE).of(gradient.numel(), 0) for rank in range(4)]
        shares.append(sum(each[1] * float(squared_norm(gradient, each[0])) for each in looked if each) / whole)
    assert math.sqrt(sum((share - 1) ** 2 for share in shares) / TIMES) < 0.35, "2.3 with runs of 512 elements"


@pytest.mark.parametrize("elements", [LEAST_OF_TENSOR, 6400, 50_000, 4096 * 4096])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_no_tensor_of_a_very_large_model_is_left_out_of_a_step(elements: int, ranks: int) -> None:
    """A group of biases and scales would seem to have no gradient, and its rate would be multiplied by most."""
    tensor = torch.ones(elements)
    for turn in range(0, 1600, 37):
        looked = [Turn(turn, rank, ranks, 7_000_000_000).of(elements, 0) for rank in range(ranks)]
        found = sum(each[1] * float(squared_norm(tensor, each[0])) for each in looked if each)
        assert found == pytest.approx(elements, rel=0.06), turn


def test_in_any_few_turns_all_rows_of_a_very_large_model_are_looked_at() -> None:
    """Averages are over some hundred steps: they are not to depend on which parts come in these."""
    gradient = torch.zeros(32_000, 4096)
    gradient[7] = 1.0  # the one row that has a gradient
    ranks, found = 8, list[float]()
    for turn in range(250):
        looked = [Turn(turn, rank, ranks, 7_000_000_000).of(gradient.numel(), 0) for rank in range(ranks)]
        found.append(sum(each[1] * float(squared_norm(gradient, each[0])) for each in looked if each) / 4096)
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
            (each, Turn(turn, rank, 2, times * parts.ENOUGH).of(each.numel(), 12 * number))
            for number, each in enumerate(layers)
            for rank in range(2)
        ]
        found = sum(part[1] * float(squared_norm(each, part[0])) for each, part in looked if part)
        assert found == pytest.approx(whole, rel=0.5), "0.09 to 11 times as much with an even number of parts"


def test_layers_are_looked_at_in_different_places_in_a_turn() -> None:
    looked = {Turn(3, 1, 4, BERT_BASE).of(768 * 768, number) for number in range(TIMES)}
    assert len({each[0].number % TIMES for each in looked if each}) == TIMES


@pytest.mark.parametrize("ranks", [2, 6, 8, 48, 210, 231])
def test_any_few_turns_are_spread_evenly_whatever_the_numbers_of_parts_and_ranks(ranks: int) -> None:
    for times in (9, 25, 95, 145, 187, 189, 511, 1667, 23841):
        looked = [Turn(turn, 0, ranks, times * parts.ENOUGH).of(1 << 40, 0) for turn in range(times)]
        places = [each[0].number % times for each in looked if each]
        assert sorted(places) == list(range(times)), "all of it, in so many turns"
        for turns in (each for each in (4, 8, 16, 32, 64, 128) if each <= times):
            some = sorted(places[:turns])
            between = max(b - a for a, b in zip(some, [*some[1:], some[0] + times], strict=True))
            assert between <= 2.5 * times / turns, (times, turns, "14 of 187 parts with 48 ranks")


@pytest.mark.parametrize("ranks", [2, 3, 6, 35])
def test_each_rank_comes_to_every_part(ranks: int) -> None:
    looked = {Turn(turn, 1, ranks, BERT_BASE).of(1 << 20, 4) for turn in range(TIMES * ranks)}
    assert len(looked) == TIMES * ranks
