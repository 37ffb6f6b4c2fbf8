"""Tables of globs that say what becomes of per-rank leaves, and the error where none of them does."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from deeppart.errors import ConfigError, PerRankError
from deeppart.state.tree.globs import Ways, in_order, strict_error, ways_or_refusal


def table_of(error: PerRankError) -> Any:
    """The table that the error says to pass."""
    return ast.literal_eval(str(error.todo).partition("per_rank=")[2].partition("}")[0] + "}")


def keep(path: str, old: Any, rank: int, size: int) -> Any:
    return old[0]


def test_the_first_glob_that_matches_decides_and_what_none_matches_is_strict() -> None:
    ways = Ways({"best": "rank0", "rng*": "drop", "replay/*": keep, "rng/cpu": "rank0"})
    found = {name: ways.of(name) for name in ("best", "best/loss", "rng", "rng/cpu", "replay", "replay/0/a", "bests")}
    assert found == {
        "best": "rank0",
        "best/loss": "rank0",  # a glob covers what is below it
        "rng": "drop",
        "rng/cpu": "drop",
        "replay": keep,
        "replay/0/a": keep,
        "bests": "strict",
    }


@pytest.mark.parametrize("way", ["strict", "drop", "rank0", keep])
def test_one_way_is_the_table_of_everything(way: Any) -> None:
    assert Ways(way).of("a/b") is Ways({"*": way}).of("a/b") is way
    assert str(Ways(way)) == str(Ways({"*": way}))


@pytest.mark.parametrize("given", ["rank1", 5, None, {"*": "parts"}, {"a": None}, {5: "drop"}, {"": "drop"}, ["drop"]])
def test_what_is_no_way_is_refused_by_name(given: Any) -> None:
    ways, refusal = ways_or_refusal(given)
    assert isinstance(refusal, ConfigError) and refusal.found == repr(given) and "table of globs" in str(refusal)
    assert ways.of("a") == "strict"


def test_of_several_tables_the_first_that_has_a_glob_decides() -> None:
    found = in_order({"own": "rank0"}, {"rng/*": "strict"}, {"rng/*": "drop", "*": "rank0"})
    assert list(found.items()) == [("own", "rank0"), ("rng/*", "strict"), ("*", "rank0")]
    assert list(in_order({"own": "rank0"}, "drop", {"rng/*": "rank0"})) == ["own", "*", "rng/*"]


def test_the_error_names_ten_leaves_and_a_table_that_covers_all() -> None:
    suggested = {"best": "rank0", "rng/torch": "drop", "rng/python/gauss": "rank0"}
    suggested |= {f"metrics/{name}/x": "rank0" for name in "abcdefghijk"}
    assert Ways(table_of(strict_error({"a[0]*": "drop"}, 2, 3, 7))).of("a[0]*") == "drop"
    error = strict_error(suggested, 2, 3, 7)
    assert "best, rng/torch, rng/python/gauss, metrics/a/x" in str(error.found) and "... (14 in all)" in str(
        error.found
    )
    assert str(error.found).count(", ") == 10
    assert table_of(error) == {"best": "rank0", "rng/*": "drop", "metrics/*": "rank0"}


def test_the_table_of_the_error_stays_short() -> None:
    error = strict_error({f"leaf{n}x": "drop" for n in range(40)}, 2, 3, 7)
    table = table_of(error)
    assert len(table) == 10 and all(Ways(table).of(f"leaf{n}x") != "strict" for n in range(40))
