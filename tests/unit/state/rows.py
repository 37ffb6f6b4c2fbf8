"""Containers of many plain rows."""

from __future__ import annotations

from typing import Any

from deeppart.state.tree.value_containers import LEAST_ROWS

NESTED: dict[str, Any] = {
    "lists": [[1.5] * 10 for _ in range(LEAST_ROWS)],
    "dicts": [{"id": place, "name": "x", "loss": 0.5} for place in range(LEAST_ROWS)],
    "table": {place: (place, "a", None) for place in range(LEAST_ROWS)},
    "tuple": tuple([place] for place in range(LEAST_ROWS)),
    "some": [[1], 2, None, "x", {"a": []}] * LEAST_ROWS,
    "deep": [{"a": [{"b": ({"c": [1]},)}]}] * LEAST_ROWS,
}


def changed(value: Any) -> Any:
    """The same containers, other values."""
    if isinstance(value, dict):
        return type(value)({key: changed(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([changed(item) for item in value])
    return 77


def containers(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list, tuple)):
        return []
    items = value.values() if isinstance(value, dict) else value
    below = [each for item in items for each in containers(item)]
    return below if isinstance(value, tuple) else [value, *below]
