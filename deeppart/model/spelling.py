"""Suggests the word that was most likely meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to a misspelt one; None if none is near.

    Case is ignored.

    Example:
        >>> from deeppart.model.spelling import meant
        >>> meant("fronteer", ["frontier", "summit"])
        'frontier'
    """
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


def meant_todo(word: str, known: Iterable[str], otherwise: str) -> str:
    """Advice that suggests the word most likely meant, before other advice."""
    close = meant(word, known)
    return f"did you mean {close}? Or {otherwise}" if close else otherwise
