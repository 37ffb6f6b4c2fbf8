"""Fixtures for the tests of what happens behind a save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deeppart.save import Workers


@pytest.fixture
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers that a test has made end with it."""
    made: list[Workers] = []
    make = Workers.__init__

    def make_and_note(self: Workers, *arguments: Any) -> None:
        make(self, *arguments)
        made.append(self)

    monkeypatch.setattr(Workers, "__init__", make_and_note)
    yield
    for each in made:
        each.close()
