"""Reading on in shards, and what is wrong with them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deeppart.elastic.shard_reader import ShardReader, Wanted
from deeppart.errors import ConfigError
from tests.unit.elastic.jobs import Opened


def reader(opened: Opened, *, at: bool = False) -> ShardReader:
    return ShardReader(opened.samples, opened.samples_at if at else None, str)


def wanted(opened: Opened, number: int, offset: int, lane: int = 0, length: int | None = None) -> Wanted:
    return Wanted(lane, number, opened.shards()[number], offset, opened.lengths[number] if length is None else length)


def numbers(reading: ShardReader, samples: list[Wanted]) -> list[int]:
    return [number for (number,) in reading.__getitems__(samples)]


def test_a_lane_reads_on_and_opens_each_shard_once() -> None:
    opened = Opened([4, 3])
    reading = reader(opened)
    assert numbers(reading, [wanted(opened, 0, 0), wanted(opened, 0, 1)]) == [0, 1]
    assert numbers(reading, [wanted(opened, 0, 3), wanted(opened, 1, 0)]) == [3, 4]  # another rank has had 2
    assert (opened.opened, opened.closed, opened.read) == (2, 1, 5)
    assert numbers(reading, [wanted(opened, 0, 2)]) == [2]  # a new pass, for instance
    assert opened.opened == 3
    reading.close()
    assert opened.closed == 3


def test_lanes_are_apart() -> None:
    opened = Opened([6])
    reading = reader(opened)
    assert numbers(reading, [wanted(opened, 0, 0), wanted(opened, 0, 3, 1), wanted(opened, 0, 1)]) == [0, 3, 1]
    assert opened.opened == 2


@pytest.mark.parametrize("at", [True, False])
def test_a_shard_is_begun_in_its_middle(at: bool) -> None:
    opened = Opened([3, 100])
    assert numbers(reader(opened, at=at), [wanted(opened, 1, 90), wanted(opened, 1, 91)]) == [93, 94]
    assert opened.read == (2 if at else 92)


@pytest.mark.parametrize(("said", "found"), [(7, "5"), (4, "more than 4")])
def test_a_shard_of_another_length_is_named(said: int, found: str) -> None:
    opened = Opened([5])
    with pytest.raises(ConfigError, match="another length") as caught:
        numbers(reader(opened), [wanted(opened, 0, offset, length=said) for offset in range(said)])
    assert caught.value.expected == f"{said} samples" and caught.value.found == found
    assert caught.value.where == "shard (0, 5)" and opened.closed == opened.opened


def test_what_a_reader_raises_names_the_shard_and_is_not_taken_for_its_end() -> None:
    def broken(shard: str) -> Iterator[int]:
        yield 1
        raise OSError("no more")

    reading = ShardReader(broken, None, str.upper)
    for _ in range(2):
        with pytest.raises(OSError, match="no more") as caught:
            reading.__getitems__([Wanted(0, 0, "a.tar", offset, 9) for offset in (0, 1)])
        assert caught.value.__notes__ == ["while shard A.TAR was read, for its sample 1"]


def lines(path: Path) -> Iterator[str]:
    with path.open() as file:
        yield from file


def test_a_child_that_is_forked_reads_by_itself(tmp_path: Path) -> None:
    """A file that both had open would give each of them a part of it."""
    path = tmp_path / "lines"
    path.write_text("".join(f"{number:06}\n" for number in range(5000)))  # more than a file reads at a time
    expected = [f"{number:06}\n" for number in range(1, 5000)]
    rest = [Wanted(0, 0, path, offset, 5000) for offset in range(1, 5000)]
    reading = ShardReader(lines, None, str)
    assert reading[Wanted(0, 0, path, 0, 5000)] == "000000\n"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reading.__getitems__(rest) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert reading.__getitems__(rest) == expected


def test_a_copy_has_nothing_open() -> None:
    path = Path(__file__)
    reading = ShardReader(lines, None, str)
    first: Any = reading[Wanted(0, 0, path, 0, 10**6)]
    copy: ShardReader = pickle.loads(pickle.dumps(reading))  # a generator could not be copied
    assert copy[Wanted(0, 0, path, 0, 10**6)] == first
