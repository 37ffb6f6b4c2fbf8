"""How many ranks are wanted, and what is said of a number that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deeppart.elastic.schedule import Range, Wanted, read_schedule
from deeppart.errors import ConfigError

ALLOWED = Range(1, 4)


@pytest.mark.parametrize(("least", "most"), [(0, 4), (3, 2), (-1, -1)])
def test_ranges_are_checked(least: int, most: int) -> None:
    with pytest.raises(ConfigError, match=f"--min {least} --max {most}"):
        Range(least, most)


def test_schedules_are_read() -> None:
    assert read_schedule("0:2, 60s:4,1.5min:1", ALLOWED) == ((0.0, 2), (60.0, 4), (90.0, 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2", "'2'"),
        ("0:²", "'0:²'"),
        (":2", "':2'"),
        (".:2", "'.:2'"),
        pytest.param("0:" + "9" * 5000, "999", id="long"),
        ("0:x", "'0:x'"),
        ("soon:2", "'soon:2'"),
        ("0:2,60s:5", "60s:5"),
        ("9s:2,3s:1", "back"),
    ],
)
def test_schedules_that_cannot_be_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schedule(text, ALLOWED)
    assert said in str(caught.value)


def test_what_was_said_last_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "SIZE"
    wanted = Wanted(ALLOWED, ((0.0, 2), (60.0, 4)), file)
    assert wanted.now == 2 and wanted.look(59.0) == 2
    file.write_text("3\n")
    assert wanted.look(59.5) == 3
    assert wanted.look(60.0) == 4, "later than the file"
    assert wanted.look(61.0) == 4, "the same text says nothing new"
    file.write_text("1")
    assert wanted.look(62.0) == 1


def test_without_anything_the_most_are_wanted() -> None:
    assert Wanted(ALLOWED, (), None).look(10.0) == 4


@pytest.mark.parametrize("text", ["five", "5", "0", "-1", "²", "1 2", "0x2", pytest.param("9" * 5000, id="long")])
def test_a_number_that_cannot_be_is_told_and_ignored(tmp_path: Path, text: str) -> None:
    file = tmp_path / "SIZE"
    wanted = Wanted(ALLOWED, ((0.0, 2),), file)
    file.write_text(text)
    assert wanted.look(1.0) == 2
    assert wanted.refused is not None and repr(text[:40]) in wanted.refused and "1 to 4" in wanted.refused
    file.write_text("")
    assert wanted.look(2.0) == 2, "it is just being written"


def test_nobody_waits_for_what_is_no_file_nor_reads_all_of_a_large_one(tmp_path: Path) -> None:
    file = tmp_path / "SIZE"
    wanted = Wanted(ALLOWED, ((0.0, 2),), file)
    os.mkfifo(file)
    assert wanted.look(1.0) == 2
    with pytest.raises(ConfigError, match="an ordinary file"):
        Wanted(ALLOWED, (), file)
    file.unlink()
    file.write_bytes(b"\xff\x00" * 1_000_000)
    assert wanted.look(2.0) == 2 and wanted.refused is not None and len(wanted.refused) < 400
    file.unlink()
    assert wanted.look(3.0) == 2
    file.write_text(" 3 \n")
    assert wanted.look(4.0) == 3
