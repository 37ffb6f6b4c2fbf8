"""Tells a demo's story, keeps count of what turned out not to be so, and reads what its jobs have left."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console


@dataclass(kw_only=True)
class Telling:
    """What every demo says, and how.

    Attributes:
        console: where it is told.
        broken: claims that turned out not to be true.
    """

    console: Console
    broken: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/]")

    def say(self, text: str) -> None:
        self.console.print(f"   {text}")

    def claim(self, true: bool, text: str) -> bool:
        """Something the demo shows; said either way, and remembered if it is not so."""
        self.console.print(f"   [bold green]✓[/] {text}" if true else f"   [bold red]✗ not so:[/] {text}")
        if not true:
            self.broken.append(text)
        return true


def read_losses(log: Path) -> dict[int, str]:
    """Step -> loss as hexadecimal digits, so that equal means equal in every bit."""
    entries = {}
    for line in log.read_text().splitlines():
        with contextlib.suppress(ValueError):  # a killed process may leave half a line
            entry = json.loads(line)
            entries[int(entry["step"])] = str(entry["hex"])
    return entries


def committed_steps(directory: Path) -> list[int]:
    """Steps with a manifest, of a persistent directory."""
    return sorted(int(path.parent.name.split("-")[1]) for path in directory.glob("step-*/manifest"))
