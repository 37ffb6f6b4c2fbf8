"""A few seconds of fuzzing; that it notices a library without its checks; and what it has found before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.breaking import BREAKAGES
from tests.fuzz.campaign import Case, campaign

KEPT = Path(__file__).parents[1] / "golden" / "forged"


def test_a_short_campaign_finds_nothing() -> None:
    with campaign(11, smaller=False) as played:
        played.play(cases=100, tell=print)
        assert not played.finds, [find.problem for find in played.finds.values()]
        assert played.runs == 100 and played.ways > 40


#: Seeds in which the check that is taken out matters, and how many cases are enough.
WHERE = {
    "digests": (["planes"], 40),
    "types": (["odd"], 120),
    "aliases": (["own"], 250),
    "places": (["own"], 250),
}


@pytest.mark.parametrize("breakage", sorted(BREAKAGES))
def test_a_library_without_its_checks_is_noticed(breakage: str) -> None:
    only, cases = WHERE[breakage]
    with campaign(5, breakage=breakage, only=only, smaller=False) as played:
        while not played.finds and played.runs < cases:
            played.play(cases=20, tell=print)
        assert played.finds


def test_the_same_number_gives_the_same_cases() -> None:
    with campaign(3) as one, campaign(3) as other:
        assert [one.make(number) for number in range(20)] == [other.make(number) for number in range(20)]
        assert one.make(20) != one.make(21)


def test_what_was_found_before_is_mended() -> None:
    folders = sorted(KEPT.iterdir())
    assert folders
    with campaign(0) as played:
        for folder in folders:
            told = json.loads((folder / "find.json").read_text())
            paths = [path for path in (folder / "files").rglob("*") if path.is_file()]
            files = {str(path.relative_to(folder / "files")): path.read_bytes() for path in paths}
            assert played.problems_of(Case(told["seed"], files, told["exact"], told["choice"])) == [], folder.name
