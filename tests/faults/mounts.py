"""Commands of root, such as those that mount file systems."""

from __future__ import annotations

import subprocess


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, capture_output=True, timeout=300)
