"""What the options of ``deeppart-sim`` can be, and where results go."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cli.options import counts, read_parity, read_quantity, write_csv

from deeppart.errors import ConfigError
from deeppart.model.units import read_rate, read_seconds
from tests.simulator.commands import rows_of


@pytest.mark.parametrize(("text", "expected"), [("8", (8, 1)), ("8/2", (8, 2)), ("16/3", (16, 3))])
def test_parity(text: str, expected: tuple[int, int]) -> None:
    assert read_parity(text) == expected


@pytest.mark.parametrize("text", ["", "1", "0/1", "x", "8/x", "8/2/1", "-8", "8.5", "/2", "128", "²", "9" * 5000])
def test_impossible_parity(text: str) -> None:
    with pytest.raises(ConfigError, match=r"NODES or NODES/LOST"):
        read_parity(text)


def test_counts() -> None:
    assert counts("1, 4,64", "--ranks") == [1, 4, 64]
    for text in ("", "0", "1,,2", "-1", "1;2", "1e3", "9" * 5000, "1048577"):
        with pytest.raises(ConfigError, match="--ranks"):
            counts(text, "--ranks")


def test_quantities_have_units_and_the_option_is_named() -> None:
    assert read_quantity(read_rate, "2 GB/s", "--flush-bandwidth") == 2e9
    assert read_quantity(read_seconds, "2 h", "--every") == 7200.0
    with pytest.raises(ConfigError, match="--every"):
        read_quantity(read_seconds, "2 parsecs", "--every")


def test_rows_come_back_from_csv_whatever_is_in_them(tmp_path: Path) -> None:
    rows = [{"a": 'with "quotes", commas', "b": "1"}, {"a": "two\nlines", "b": ""}]
    write_csv(tmp_path / "rows.csv", rows)
    assert rows_of(tmp_path / "rows.csv") == rows
    write_csv(tmp_path / "none.csv", [])
    assert rows_of(tmp_path / "none.csv") == []
