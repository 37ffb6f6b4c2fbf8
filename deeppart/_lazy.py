"""Names that a package imports on first use: most need torch, whose import is slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    face: str, names: Mapping[str, str], public: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module; ``names``: name -> its module, or "module:name there"."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        module, _, inner = names[name].partition(":")
        return getattr(import_module(module), inner or name)

    return find, lambda: list(public)
