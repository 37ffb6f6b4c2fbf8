"""Globs over paths."""

from __future__ import annotations

import pytest

from deeppart.state.tree.globs import covers, may_match_below


@pytest.mark.parametrize("pattern", ["a/b", "a/*", "*", "*/b", "a*", "[ab]/b", "?/b", "a/b/c"])
@pytest.mark.parametrize("path", ["a", "a/b", "b", "(root)", "ab"])
def test_may_match_below_is_never_wrong_about_a_match(path: str, pattern: str) -> None:
    prefix = "" if path == "(root)" else f"{path}/"
    below = [prefix + rest for rest in ("a", "b", "c", "b/c", "a/b", "a/b/c", "x/b")]
    if any(covers(each, [pattern]) for each in below):
        assert may_match_below(path, pattern)
