"""Strict parsing of JSON from files.

Refuses what ``json.loads`` accepts: NaN, infinities, numbers that overflow to infinity, repeated keys (the last one
wins), and UTF-16 and UTF-32 by guessing. No document of a checkpoint contains these.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parse_json(data: bytes | memoryview) -> Any:
    """Parse a UTF-8 JSON text (RFC 8259). Raises ValueError, or RecursionError if it is nested too deeply."""
    text = bytes(data).decode("utf-8")
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_no_repeats)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated in an object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the range of float64")
    return value
