"""Files that configure the library, in the working directory."""

from __future__ import annotations

from pathlib import Path

#: Machine files that are there (conftest.py).
MACHINES = ("one.toml", "two.toml", "three.toml")


def write_toml(text: str) -> None:
    """The deeppart.toml of the working directory."""
    Path("deeppart.toml").write_text(text, encoding="utf-8")
