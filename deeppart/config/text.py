"""Settings for people: what is set, a line for each, with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.model.units import show_bytes, show_rate, show_seconds

_WITH_UNITS: Mapping[str, Callable[[Any], str]] = {
    "flush_bandwidth": lambda value: f"{show_rate(value)} per node",
    "scrub_bandwidth": lambda value: f"{show_rate(value)} per node",
    "timeout": show_seconds,
    "kappa": show_bytes,
    "node_size": lambda value: f"{value} ranks",
    "parity_group": lambda value: f"{value} nodes",
    "parity_tolerate": lambda value: f"{value} of a group's nodes may be lost",
}
#: They are of interest whatever they are.
_ALWAYS = ("persistent_dir", "every", "keep")


def comparable(value: object) -> str:
    """One text for equal values, whatever their types: 15 and 15.0, a string and an enum's member that is one."""
    if isinstance(value, str):
        return repr(str.__str__(value))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{comparable(key)}: {comparable(each)}' for key, each in value.items())}}}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(int(value) if math.isfinite(value) and value == int(value) else float(value))
    return repr(value)


def show_settings(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Directory, cadence and what is kept, then all that is not as by default; levels that are off are left out."""
    off = _levels_off(settings)
    lines = []
    for name, value in settings.items():
        if name not in _ALWAYS and value == defaults[name]:
            continue
        if name in ("every", "keep") and isinstance(value, Mapping):
            value = {level: count for level, count in value.items() if level not in off}
        lines.append(f"{name}: {_show(name, value)}")
    left_out = len(lines) < len(settings)
    return "\n".join([*lines, *(["all others as by default"] if left_out else [])])


def _levels_off(settings: Mapping[str, Any]) -> set[str]:
    every = settings["every"]
    off = {level for level, count in every.items() if not count} if isinstance(every, Mapping) else set()
    if Level.LOCAL in off or settings["local_dir"] is None:
        off |= {Level.LOCAL, *REDUNDANT_LEVELS}  # the others copy and encode what the local level has stored
    return off


def _show(name: str, value: Any) -> str:
    if value is not None and name in _WITH_UNITS:
        return _WITH_UNITS[name](value)
    if name == "keep" and isinstance(value, Mapping):
        return ", ".join(f"{level} {count or 'all'}" for level, count in value.items()) + " (in steps)"
    if isinstance(value, Mapping):
        unit = " (in checkpoints)" if name == "every" else ""
        return ", ".join(f"{key} {item}" for key, item in value.items()) + unit
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)
