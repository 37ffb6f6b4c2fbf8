"""The values of the ``compression`` setting, which the configuration checks and ``codec/`` implements."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Levels of zstd that a user may ask for; decoding never depends on the level.
MIN_LEVEL, MAX_LEVEL = -7, 22
#: The level of ``"zstd"`` without one.
DEFAULT_LEVEL = 3
#: "auto" chooses between "none" and "tensor"; "zstd" may have a level.
COMPRESSIONS = ("auto", "none", "tensor", "zstd")
#: For errors.
EXPECTED = (
    ", ".join(f'"{each}"' for each in COMPRESSIONS) + f' or "zstd:LEVEL" with LEVEL from {MIN_LEVEL} to {MAX_LEVEL}'
)
_VALUE = re.compile(rf"({'|'.join(COMPRESSIONS)})(?:(?<=zstd):(-?[0-9]{{1,3}}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Compression:
    """A choice of codecs, as a value of the setting.

    Attributes:
        name: one of :data:`COMPRESSIONS`.
        level: level of zstd; without meaning for others.
    """

    name: str
    level: int = DEFAULT_LEVEL

    @classmethod
    def parse(cls, value: object) -> Compression | None:
        """From the setting; None for an invalid value."""
        match = _VALUE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return None
        level = DEFAULT_LEVEL if match[2] is None else int(match[2])
        return cls(match[1], level) if MIN_LEVEL <= level <= MAX_LEVEL else None
