"""How many ranks a job is to have: from so many seconds on, or by a number in a file."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart.errors import ConfigError
from deeppart.model.units import read_seconds

_NOTHING = re.compile(r"0+(\.0*)?")
#: More digits are no number of ranks.
_DIGITS = re.compile(r"[0-9]{1,9}")
#: More of the file is not looked at.
_MOST_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers of ranks that are allowed."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ConfigError(
                "there is no such number of ranks",
                expected="1 <= MIN <= MAX",
                found=f"--min {self.least} --max {self.most}",
            )

    def checked(self, ranks: int, where: str) -> int:
        """The number, if it is in the range."""
        if not self.least <= ranks <= self.most:
            raise ConfigError(
                "a number of ranks is out of range",
                expected=f"{self.least} to {self.most}",
                found=str(ranks),
                where=where,
                todo="change it, or --min and --max",
            )
        return ranks


def read_schedule(text: str, allowed: Range) -> tuple[tuple[float, int], ...]:
    """``0:2,60s:4`` -> ((0.0, 2), (60.0, 4)): seconds since the beginning, and ranks from then on.

    Example:
        >>> from deeppart.elastic.schedule import Range, read_schedule
        >>> read_schedule("0:2,2min:4", Range(1, 4))
        ((0.0, 2), (120.0, 4))
    """
    found: list[tuple[float, int]] = []
    for item in text.split(","):
        moment, separator, ranks = item.strip().partition(":")
        try:
            if not separator or not _DIGITS.fullmatch(ranks):
                raise ValueError("no number of ranks")
            seconds = 0.0 if _NOTHING.fullmatch(moment) else read_seconds(moment)
        except ValueError as error:
            raise ConfigError(
                "a schedule cannot be read", expected="TIME:RANKS,...: 0:2,60s:4", found=repr(item), where="--schedule"
            ) from error
        if found and seconds <= found[-1][0]:
            raise ConfigError("a schedule goes back in time", found=text, where="--schedule")
        found.append((seconds, allowed.checked(int(ranks), f"--schedule {item.strip()}")))
    return tuple(found)


class Wanted:
    """The number of ranks that is wanted now: what was said last, by the schedule or in the file."""

    def __init__(self, allowed: Range, schedule: Sequence[tuple[float, int]], file: Path | None) -> None:
        self._allowed, self._schedule, self._file = allowed, list(schedule), file
        self._text = ""
        if file is not None and self._is_ordinary(file) is False:
            raise ConfigError(
                "the number of ranks is to be in an ordinary file", where=str(file), todo="name another one"
            )
        self.now = allowed.most
        #: Of the file, what could not be used and has not been told.
        self.refused: str | None = None
        self.look(0.0)

    def look(self, passed_s: float) -> int:
        """Look at both."""
        while self._schedule and self._schedule[0][0] <= passed_s:
            self.now = self._schedule.pop(0)[1]
        text = self._read()
        if text != self._text:
            self._text = text
            if _DIGITS.fullmatch(text) and self._allowed.least <= int(text) <= self._allowed.most:
                self.now = int(text)
            elif text:
                self.refused = (
                    f"{text[:40]!r} in {self._file}: not a number in {self._allowed.least} to {self._allowed.most}"
                )
        return self.now

    @staticmethod
    def _is_ordinary(file: Path) -> bool | None:
        """None if it is not there, or nobody may say."""
        try:
            return stat.S_ISREG(file.stat().st_mode)
        except OSError:
            return None

    def _read(self) -> str:
        """The text of the file; as it was before if it cannot be read, or is just being written."""
        if self._file is None:
            return self._text
        try:
            if not self._is_ordinary(self._file):  # one would wait for whoever writes into a pipe
                return self._text
            with self._file.open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace").strip() or self._text
        except OSError:
            return self._text
