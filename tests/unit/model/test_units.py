"""Quantities with units, as people write and read them."""

from __future__ import annotations

import math

import pytest

from deeppart.model import read_bytes, read_rate, read_seconds, show_bytes, show_rate, show_seconds, show_share


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4 MB", 4e6),
        ("4MiB", 4 << 20),
        (12, 12.0),
        ("1.5 TB", 1.5e12),
        ("64KiB", 65536),
        ("10 B", 10.0),
        ("3e2 kB", 3e5),
        ("50KB", 5e4),
    ],
)
def test_bytes(text: object, value: float) -> None:
    assert read_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20 us", 2e-5),
        ("5 years", 5 * 365.25 * 86400),
        ("1 day", 86400),
        ("90 days", 90 * 86400),
        ("2min", 120),
        (0.5, 0.5),
        ("3 h", 10800),
        ("1 week", 604800),
        ("12 ms", 0.012),
    ],
)
def test_seconds(text: object, value: float) -> None:
    assert read_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["fast", "-3 GB/s", "3 GB/h", None, True, "", "3 parsec", [1], "3 gb/s"])
def test_nonsense_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="bytes per second"):
        read_rate(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0213, "21.3 ms"),
        (4.02, "4.02 s"),
        (200, "3 min 20 s"),
        (18720, "5 h 12 min"),
        (12.3 * 86400, "12.3 d"),
        (2.5e-6, "2.5 us"),
        (3e-9, "3 ns"),
        (math.inf, "never"),
        (5 * 365.25 * 86400, "5 years"),
        (0.99999, "1 s"),
        (99.99, "1 min 40 s"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_sizes_for_people() -> None:
    assert [show_bytes(n) for n in (0, 999, 1000, 4_021_704_220, 7e18)] == ["0 B", "999 B", "1 kB", "4.02 GB", "7 EB"]
    assert show_rate(2.5e9) == "2.5 GB/s" and show_rate(math.inf) == "unlimited"
    assert [show_share(s) for s in (0.5, 0.0123, 0.00012)] == ["50.0 %", "1.2 %", "0.012 %"]
    assert [show_share(s) for s in (0.0, 4.7e-8, 1.1e-5)] == ["0 %", "below 0.001 %", "0.0011 %"]
