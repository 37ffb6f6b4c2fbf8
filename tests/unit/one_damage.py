"""What ``deeppart verify --json`` says of a step with one damage."""

from __future__ import annotations

from typing import Any

from tests.unit.cli_support import call_json


def one_damage(*arguments: object) -> dict[str, Any]:
    """The only thing that is wrong."""
    document = call_json("verify", *arguments, code=1)
    assert document["good"] is False
    (step,) = document["steps"]
    damage: dict[str, Any]
    (damage,) = step["damage"]
    assert step["damaged_leaves"] == [
        leaf["path"] if leaf["rank"] is None else f"{leaf['path']} (rank {leaf['rank']})" for leaf in damage["leaves"]
    ]
    return damage


def names(damage: dict[str, Any]) -> set[str]:
    return {leaf["path"] for leaf in damage["leaves"]}
