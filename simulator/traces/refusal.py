"""The refusal of a trace: which line and column, what was there, and what would have been right."""

from __future__ import annotations

from pathlib import Path

from deeppart.errors import ConfigError

#: A cell is shown up to here.
_MOST_SHOWN = 60


def refusal(path: Path, line: int, found: str, expected: str, column: str | None = None) -> ConfigError:
    """The error for one line."""
    return ConfigError(
        "a line of the trace is impossible",
        expected=expected,
        found=found,
        where=f"{path}, line {line}" + (f", column {column}" if column else ""),
        todo="correct the line; docs/simulator.md has the format",
    )


def unreadable(path: Path, error: Exception) -> ConfigError:
    """The error for a file that cannot be read at all."""
    missing = isinstance(error, FileNotFoundError)
    todo = "give the path of a trace, or the persistent directory of a job" if missing else "correct the file"
    return ConfigError("cannot read the trace", found=str(error), where=str(path), todo=todo)


def shown(found: object) -> str:
    """A cell, or a value of JSON, shortened."""
    if isinstance(found, (list, dict)):
        return f"a {type(found).__name__} of {len(found)}"  # may be nested deeper than repr can go
    if isinstance(found, str) and len(found) > _MOST_SHOWN:
        return repr(found[:_MOST_SHOWN] + "...")
    return repr(found)
