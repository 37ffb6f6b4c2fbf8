"""Node files: what a table says comes back as it was written, or not at all; sections are read as parts are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError, StorageError
from deeppart.part import (
    SECTION_ALIGNMENT,
    FileSource,
    NodeTable,
    PartReader,
    Section,
    node_file_name,
    parse_node_file_name,
    parse_part_file_name,
    parse_section_path,
    part_file_name,
    read_table,
    section_file,
)
from tests.golden import forge, make_v4

GOLDEN = Path(__file__).parents[2] / "golden" / "v4"
MIB = 1 << 20
#: Parts of ranks 0 and 1 of 2.
FIRST = forge.simple_part()
SECOND = forge.simple_part(bytes(9000), head=forge.header(rank=1))
SOUND = forge.node_file({0: FIRST, 1: SECOND})


def test_names() -> None:
    assert node_file_name(8, 64) == "node-00008-of-00064.dpn"
    for first, world_size in [(0, 1), (3, 8), (99_999, 100_000), (1_234_567, 2_000_000)]:
        assert parse_node_file_name(node_file_name(first, world_size)) == (first, world_size)
        assert parse_part_file_name(node_file_name(first, world_size)) is None
    for name in [
        "node-00008-of-00008.dpn",
        "node-3-of-8.dpn",
        "node-000003-of-00008.dpn",
        "node-00003-of-00008.dpp",
        "node-00003-of-00008.dpn\n",
        "../node-00003-of-00008.dpn",
        "node-٠٠٠٠٣-of-00008.dpn",
        "",
    ]:
        assert parse_node_file_name(name) is None, name


def test_paths_of_sections() -> None:
    path = Path("/some/where") / section_file(4, 5, 8)
    place = parse_section_path(path)
    assert place is not None
    assert (place.file, place.first, place.rank, place.world_size) == (
        "/some/where/node-00004-of-00008.dpn",
        4,
        5,
        8,
    )
    for wrong in [
        "part-00005-of-00008.dpp",
        "/some/where/part-00005-of-00008.dpp",
        "/some/where/node-00004-of-00008.dpn",
        section_file(6, 5, 8),  # the lowest rank of a node is not above another one
        "node-00004-of-00008.dpn/part-00005-of-00009.dpp",
        "node-00004-of-00008.dpn/base-00005-of-00008-" + "0" * 32 + ".dpp",
        "node-00004-of-00008.dpn/part-00005-of-00008.dpp/",
    ]:
        assert parse_section_path(wrong) is None, wrong


def test_made_by_hand_and_by_the_library_alike() -> None:
    sections = (
        Section(0, 0, len(FIRST), FIRST[-32:-16].hex()),
        Section(1, MIB, len(SECOND), SECOND[-32:-16].hex()),
    )
    table = NodeTable(0, 2, sections)
    data = table.encode()
    assert SOUND.endswith(data)
    assert table.offset == len(SOUND) - len(data)
    assert SECTION_ALIGNMENT == MIB


# --- read -------------------------------------------------------------------------------------------------------------


def put(directory: Path, data: bytes, name: str = node_file_name(0, 2)) -> Path:
    (directory / name).write_bytes(data)
    return directory / name


def refused(directory: Path, data: bytes, rank: int = 0) -> CorruptFileError:
    path = put(directory, data)
    with pytest.raises(CorruptFileError) as caught:
        FileSource(path / part_file_name(rank, 2))
    assert caught.value.where is not None and caught.value.where.startswith(str(path))
    assert len(str(caught.value)) < 2000
    return caught.value


def test_sections_are_read_as_files_are(tmp_path: Path) -> None:
    path = put(tmp_path, SOUND)
    for rank, part in enumerate((FIRST, SECOND)):
        section = path / part_file_name(rank, 2)
        with FileSource(section) as source:
            assert (source.size, source.path, source.file_path) == (len(part), str(section), str(path))
            assert source.section is not None and source.section.rank == rank
            assert bytes(source.read_at(0, source.size)) == part
            assert bytes(source.read_at(10, 20)) == part[10:30]
            assert source.mapped(0, source.size) == part and source.viewed() == part
            assert source.mapped(7, source.size - 1) == part[7:-1]
            for offset, length in [(len(part), 1), (-1, 1), (0, len(part) + 1)]:
                with pytest.raises(CorruptFileError, match="ends before"):
                    source.read_at(offset, length)
            status = path.stat()
            assert source.identity == (status.st_dev, status.st_ino, rank * MIB)
            assert source.has_its_name()
            assert PartReader(source, where="section", expected_rank=rank).verify()
            path.rename(tmp_path / "elsewhere")
            assert not source.has_its_name()
            (tmp_path / "elsewhere").rename(path)
            os.truncate(path, status.st_size - 1)  # what is mapped of its last page is zeros now
            assert not source.has_its_name()
            path.write_bytes(SOUND)


def test_beside_a_section_are_the_files_beside_its_file(tmp_path: Path) -> None:
    path = put(tmp_path, SOUND)
    (tmp_path / "other").write_bytes(b"beside")
    with FileSource(path / part_file_name(0, 2)) as source:
        assert bytes(source.beside("other").read_at(0, 6)) == b"beside"


def test_what_does_not_know_sections_is_refused_by_the_system(tmp_path: Path) -> None:
    section = put(tmp_path, SOUND) / part_file_name(0, 2)
    with pytest.raises(NotADirectoryError):
        section.read_bytes()


def test_a_section_that_is_not_there(tmp_path: Path) -> None:
    assert "no section of a rank" in str(refused(tmp_path, forge.node_file({0: FIRST}), rank=1))
    with pytest.raises(StorageError):
        FileSource(tmp_path / node_file_name(1, 2) / part_file_name(1, 2))
    (tmp_path / node_file_name(1, 2)).symlink_to(tmp_path / node_file_name(0, 2))
    with pytest.raises(CorruptFileError, match="not a regular file"):
        FileSource(tmp_path / node_file_name(1, 2) / part_file_name(1, 2))


def test_every_flipped_byte_of_table_and_footer_is_found(tmp_path: Path) -> None:
    begin = len(forge.node_file({0: FIRST, 1: FIRST}, offsets=[0, MIB])) - 64 - 64 - 80
    data = bytearray(forge.node_file({0: FIRST, 1: FIRST}, offsets=[0, MIB]))
    for i in range(begin, len(data)):
        for mask in (0xFF, 0x01):
            data[i] ^= mask
            refused(tmp_path, bytes(data))
            data[i] ^= mask


def test_every_truncation_near_the_end_and_appended_bytes_are_found(tmp_path: Path) -> None:
    for length in (0, 1, 63, 64, len(FIRST), MIB, *range(len(SOUND) - 300, len(SOUND))):
        refused(tmp_path, SOUND[:length])
    for more in (b"\0", bytes(64), SOUND):
        refused(tmp_path, SOUND + more) if more != SOUND else refused(tmp_path, bytes(4096) + SOUND)


def test_newer_version(tmp_path: Path) -> None:
    path = put(tmp_path, forge.node_file({0: FIRST}, version=2))
    with pytest.raises(NewerFormatError, match=r"version 2; .* version 1"):
        FileSource(path / part_file_name(0, 2))
    refused(tmp_path, forge.node_file({0: FIRST}, version=2, table_digest=bytes(16)))


ROW = forge.section_row


@pytest.mark.parametrize(
    "wrong",
    [
        {"magic": b"DPNTABLX"},
        {"version": 0},
        {"count": 0},
        {"count": 1},
        {"count": 3},
        {"count": 2**63},
        {"reserved": bytes(39) + b"\1"},
        {"world_size": 3},
        {"footer_magic": b"DPNFOOTX"},
        {"footer_reserved": bytes(7) + b"\1"},
        {"table_offset": 4096 * 1024},
        {"table_length": 0},
        {"table_length": 2**63},
        {"table_length": 2**64 - 1},
        {"file_length": 0},
        {"file_length": 2**64 - 1},
        {"rows": []},
        {"rows": [ROW(0, 0, FIRST)], "count": 2},
        {"rows": [ROW(0, 0, FIRST, reserved=1), ROW(1, MIB, SECOND)]},
        {"rows": [ROW(1, 0, FIRST), ROW(0, MIB, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(0, MIB, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(2, MIB, SECOND)]},
        {"rows": [ROW(1, MIB, SECOND)]},
        {"rows": [ROW(0, MIB, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, 0, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, 4096, SECOND)]},
        {"rows": [ROW(0, 0, FIRST, nbytes=MIB + 1), ROW(1, MIB, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, MIB, SECOND, nbytes=len(SECOND) + 8192)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, MIB, SECOND, nbytes=2**64 - MIB)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, 2**63, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, 2**64 - MIB, SECOND)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, MIB, SECOND, nbytes=100)]},
        {"rows": [ROW(0, 0, FIRST), ROW(1, 2 * MIB, FIRST)]},
    ],
    ids=lambda wrong: ", ".join(wrong),
)
def test_forged(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """All digests hold."""
    refused(tmp_path, forge.node_file({0: FIRST, 1: SECOND}, **wrong))


def test_a_table_that_no_reader_takes_is_not_written() -> None:
    good = Section(0, 0, 5000, "0" * 32)
    for sections in [
        (),
        (Section(1, 0, 5000, "0" * 32),),
        (good, Section(1, MIB + 1, 5000, "0" * 32)),
        (good, Section(1, 0, 5000, "0" * 32)),
        (good, Section(2, MIB, 5000, "0" * 32)),
        (Section(0, 0, 10, "0" * 32),),
        (Section(0, 0, 5000, "x"),),
        (Section(0, 0, -1, "0" * 32),),
    ]:
        with pytest.raises(FormatError):
            NodeTable(0, 2, sections).encode()


def test_a_section_that_is_told(tmp_path: Path) -> None:
    """Where the table is not to be asked: for repairs."""
    path = put(tmp_path, SOUND[:-64])
    with FileSource(path, Section(1, MIB, len(SECOND), "")) as source:
        assert bytes(source.read_at(0, source.size)) == SECOND
    with pytest.raises(CorruptFileError):
        FileSource(path, Section(1, MIB, len(SOUND), ""))


def test_golden() -> None:
    assert (GOLDEN / make_v4.NAME).read_bytes() == make_v4.make_node_file()
    with contextlib.closing(FileSource(GOLDEN / section_file(0, 1, 2))) as source:
        where = parse_section_path(source.path)
        assert where is not None
        with FileSource(where.file) as whole:
            table = read_table(whole, where)
        assert [section.rank for section in table.sections] == [0, 1]
        PartReader(source, where="golden", expected_index_digest=table.sections[1].index_digest).verify()
