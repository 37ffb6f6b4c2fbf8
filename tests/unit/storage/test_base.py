"""What the rest asks of a level: every class that is one has all of it."""

from __future__ import annotations

import inspect

import pytest

from deeppart.storage.node import NodeLevel
from deeppart.storage.persistent import PersistentLevel
from deeppart.testing.levels import Level


@pytest.mark.parametrize("kind", [NodeLevel, PersistentLevel])
def test_levels_take_what_the_protocol_gives(kind: type) -> None:
    """mypy sees the types; this sees that nobody has to be given more."""
    asked = [name for name, member in vars(Level).items() if inspect.isfunction(member) and not name.startswith("_")]
    assert sorted(asked) == ["open_part", "part_path"]
    for name in asked:
        wanted, found = (inspect.signature(getattr(each, name)).parameters for each in (Level, kind))
        assert list(found)[: len(wanted)] == list(wanted), name
        more = list(found.values())[len(wanted) :]
        assert all(each.default is not inspect.Parameter.empty for each in more), name
