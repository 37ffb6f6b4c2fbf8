"""Files that configure the library, in the working directory."""

from __future__ import annotations

from pathlib import Path


def write_toml(text: str) -> None:
    """The deeppart.toml of the working directory."""
    Path("deeppart.toml").write_text(text, encoding="utf-8")
