"""The word that was meant: the nearest one, and none where nothing is near."""

from __future__ import annotations

import pytest

from deeppart.model import meant

KNOWN = ("frontier", "summit", "Llama3")


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("fronteer", "frontier"), ("SUMIT", "summit"), ("llama", "Llama3"), ("x", None), ("", None)],
)
def test_the_nearest_word(word: str, nearest: str | None) -> None:
    assert meant(word, KNOWN) == nearest
