"""The wanted number of ranks, from a file that the user changes while the job runs."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from deeppart.errors import ConfigError

#: The limit on digits keeps int() cheap.
_DIGITS = re.compile(r"[0-9]{1,9}")
_MAX_FILE_BYTES = 1000


class WantedRanks:
    """The last valid number in the file.

    Args:
        least, most: the range of valid numbers; ``most`` applies until the file has a valid one.
        file: path of the file, which need not exist yet.

    Raises:
        ConfigError: the file is not a regular one, or its directory does not exist.
    """

    def __init__(self, least: int, most: int, file: Path) -> None:
        self._range, self._file, self._text = (least, most), file, ""
        if not file.parent.is_dir():
            raise ConfigError("there is no such directory", where=f"--size-file {file}", todo="make it first")
        if self._is_regular(file) is False:
            raise ConfigError(
                "the file with the number of ranks is not a regular file", where=str(file), todo="name another one"
            )
        self._now = most
        #: A line about an invalid content of the file, until the caller has reported it.
        self.refused: str | None = None

    def now(self) -> int:
        """Read the file, and return the wanted number."""
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
        if not self._is_regular(self._file):  # opening a pipe would block
            return self._text
        try:
            with self._file.open("rb") as file:
                return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace").strip() or self._text
        except OSError:
            return self._text
