"""Quantities with units, as people write and read them: ``12.5 GB/s``, ``20 us``, ``5 years``.

Bytes are in powers of 1000 (kB, MB...) or of 1024 (KiB, MiB...), as IEC 80000-13 has it. A number without a unit is
in bytes, bytes per second or seconds.
"""

from __future__ import annotations

import math
import re

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([A-Za-zµ]*)", re.IGNORECASE)
_PREFIXES = "kMGTPE"
_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{prefix}{end}": 1000 ** (power + 1) for power, prefix in enumerate(_PREFIXES) for end in ("", "B")}
_BYTES["KB"] = 1000  # as Hugging Face writes it
_BYTES |= {f"{prefix.upper()}iB": 1024 ** (power + 1) for power, prefix in enumerate(_PREFIXES)}
_SECONDS = {
    "": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "week": 604800.0,
    "year": 365.25 * 86400.0,
}
_SECONDS |= {f"{unit}s": seconds for unit, seconds in list(_SECONDS.items()) if len(unit) > 3 or unit == "day"}

WORDS = {
    "bytes": 'a number of bytes, such as 4000000, "4 MB" or "4 MiB"',
    "rate": 'bytes per second, such as 2.5e9 or "2.5 GB/s"',
    "seconds": 'a time, such as 0.02, "20 ms", "3 h" or "5 years"',
}


def read_bytes(value: object) -> float:
    """Bytes from a number or a text."""
    return _read(value, _BYTES, WORDS["bytes"])


def read_rate(value: object) -> float:
    """Bytes per second from a number or a text."""
    return _read(value.strip().removesuffix("/s") if isinstance(value, str) else value, _BYTES, WORDS["rate"])


def read_seconds(value: object) -> float:
    """Seconds from a number or a text."""
    return _read(value, _SECONDS, WORDS["seconds"])


def _read(value: object, units: dict[str, float] | dict[str, int], expected: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(expected)
    return float(match[1]) * units[match[2]]


def show_bytes(nbytes: float) -> str:
    """Bytes for people: ``4.02 GB``."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def show_rate(bytes_per_s: float) -> str:
    """Bytes per second for people: ``2.5 GB/s``."""
    return "unlimited" if math.isinf(bytes_per_s) else f"{show_bytes(bytes_per_s)}/s"


def show_seconds(seconds: float) -> str:
    """A time for people, with three digits: ``21.3 ms``, ``4.02 s``, ``3 min 20 s``, ``5 h 12 min``, ``12.3 d``."""
    if math.isinf(seconds):
        return "never"
    if seconds < 99.95:
        for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
            if seconds >= 0.9995 * factor:
                return f"{_three(seconds / factor)} {unit}"
        return "0 s" if seconds < 5e-10 else f"{seconds * 1e9:.0f} ns"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if seconds < 2 * 86400:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days = seconds / 86400
    return f"{_three(days)} d" if days < 2 * 365.25 else f"{_three(days / 365.25)} years"


#: Smaller shares are shown as less than this.
_LEAST_PERCENT = 0.001


def show_share(share: float) -> str:
    """A share for people: ``12.3 %``; tiny ones are not written with an exponent."""
    percent = 100 * share
    if 0 < percent < _LEAST_PERCENT:
        return f"below {_LEAST_PERCENT:g} %"
    return f"{percent:.1f} %" if percent >= 9.95 else f"{percent:.2g} %"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    unit = units[0]
    for larger in units[1:]:
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == units[0] else f"{_three(value)} {unit}"


def _three(value: float) -> str:
    """Three digits, without an exponent and without trailing zeros."""
    text = f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text
