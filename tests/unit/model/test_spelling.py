"""The word that was meant: the nearest one, and none where nothing is near."""

from __future__ import annotations

import pytest

from deeppart.model import meant, meant_todo

KNOWN = ("frontier", "summit", "Llama3")


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("fronteer", "frontier"), ("SUMIT", "summit"), ("llama", "Llama3"), ("x", None), ("", None)],
)
def test_the_nearest_word(word: str, nearest: str | None) -> None:
    assert meant(word, KNOWN) == nearest


def test_an_advice_begins_with_it() -> None:
    assert meant_todo("fronteer", KNOWN, "take another") == "did you mean frontier? Or take another"
    assert meant_todo("moon", KNOWN, "take another") == "take another"
