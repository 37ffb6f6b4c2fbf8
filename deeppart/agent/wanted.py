"""How many ranks a job is to have now: by a schedule, or by a file that its user changes."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from deeppart.errors import ConfigError
from deeppart.model import read_seconds

#: The limit on digits keeps int() cheap.
_DIGITS, _ZERO = re.compile(r"[0-9]{1,9}"), re.compile(r"0+(\.0*)?")
_MAX_FILE_BYTES = 1000


class WantedRanks:
    """The latest number of the schedule or the file.

    Args:
        least, most: the range of the numbers; the last one is that of the beginning.
        schedule: seconds since the beginning, and a number from then on.
        file: which has a number.

    Raises:
        ConfigError: a number is out of range, or the file is not a regular one.
    """

    def __init__(self, least: int, most: int, schedule: Sequence[tuple[float, int]] = (), file: Path | None = None):
        self._range, self._schedule, self._file, self._text = (least, most), list(schedule), file, ""
        for _, ranks in schedule:
            if not least <= ranks <= most:
                raise ConfigError(
                    "a number of ranks is out of range", expected=f"{least} to {most}", found=str(ranks),
                    where="--schedule", todo="change it, or --min, --ranks and --nodes",
                )  # fmt: skip
        if file is not None and not file.parent.is_dir():
            raise ConfigError("there is no such directory", where=f"--size-file {file}", todo="make it first")
        if file is not None and self._is_regular(file) is False:
            raise ConfigError(
                "the file with the number of ranks is not a regular file", where=str(file), todo="name another one"
            )
        self._now = most
        #: What the file has if that is no such number, until it is reported.
        self.refused: str | None = None

    def now(self, passed_s: float) -> int:
        """The number now."""
        while self._schedule and self._schedule[0][0] <= passed_s:
            self._now = self._schedule.pop(0)[1]
        text = self._read()
        if text != self._text:
            self._text, (least, most) = text, self._range
            if _DIGITS.fullmatch(text) and least <= int(text) <= most:
                self._now = int(text)
            elif text:
                self.refused = f"{text[:40]!r} in {self._file}: not a number in {least} to {most}"
        return self._now

    @staticmethod
    def _is_regular(file: Path) -> bool | None:
        """None if the file does not exist or cannot be examined."""
        try:
            return stat.S_ISREG(file.stat().st_mode)
        except OSError:
            return None

    def _read(self) -> str:
        """The content of the file; the previous one if it cannot be read or is being rewritten."""
        if self._file is None or not self._is_regular(self._file):  # opening a pipe would block
            return self._text
        try:
            with self._file.open("rb") as file:
                return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace").strip() or self._text
        except OSError:
            return self._text


def read_schedule(text: str) -> tuple[tuple[float, int], ...]:
    """``0:2,60s:4`` -> ((0.0, 2), (60.0, 4)): seconds since the beginning, and ranks from then on."""
    found: list[tuple[float, int]] = []
    for item in text.split(","):
        moment, separator, ranks = item.strip().partition(":")
        try:
            if not separator or not _DIGITS.fullmatch(ranks):
                raise ValueError("no number of ranks")
            seconds = 0.0 if _ZERO.fullmatch(moment) else read_seconds(moment)
        except ValueError as error:
            raise ConfigError(
                "a schedule cannot be read", expected="TIME:RANKS,...: 0:2,60s:4", found=repr(item), where="--schedule"
            ) from error
        if found and seconds <= found[-1][0]:
            raise ConfigError("a schedule goes back in time", found=text, where="--schedule")
        found.append((seconds, int(ranks)))
    return tuple(found)
