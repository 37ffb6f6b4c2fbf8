"""Names of files, and JSON from files: what two readers could take for two things is refused."""

from __future__ import annotations

import pytest

from deeppart.part import (
    parse_json,
    parse_part_file_name,
    part_file_name,
)

# --- names -----------------------------------------------------------------------------------------------------------


def test_part_file_names() -> None:
    assert part_file_name(3, 8) == "part-00003-of-00008.dpp"
    for rank, world_size in [(0, 1), (3, 8), (99_999, 100_000), (1_234_567, 2_000_000)]:
        assert parse_part_file_name(part_file_name(rank, world_size)) == (rank, world_size)
    for name in [
        "part-00008-of-00008.dpp",
        "part-3-of-8.dpp",
        "part-000003-of-00008.dpp",
        "part-00003-of-00008.dpp.tmp",
        "part-00003-of-00008.dpp\n",
        "../part-00003-of-00008.dpp",
        "part-٠٠٠٠٣-of-00008.dpp",
        "",
    ]:
        assert parse_part_file_name(name) is None, name


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b"1e999",
        b"-Infinity",
        b"9" * 5000,
        b"[" * 100_000,
        '"é"'.encode("utf-16"),
        b'"\xff"',
    ],
)
def test_json_that_two_readers_take_for_two_things(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_json(text)
