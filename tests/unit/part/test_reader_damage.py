"""Damage of every kind at every place: always one of the format's errors, never other bytes, never another error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import xxhash
import zstandard

from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.part import MemorySource, PartReader
from tests.golden import forge, make_v1
from tests.unit.part.read_whole import read_all, refused

PARTS = [make_v1.make_part(rank)[0] for rank in range(2)]
RAW = bytes(range(200))


# --- without new digests: what storage does --------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_flipped_byte_is_found(rank: int, mask: int) -> None:
    damaged = bytearray(PARTS[rank])
    for i in range(len(damaged)):
        damaged[i] ^= mask
        assert type(refused(bytes(damaged))) is CorruptFileError, i
        damaged[i] ^= mask
    assert read_all(bytes(damaged)) == make_v1.RAW[rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_truncation_is_found(rank: int) -> None:
    for length in range(len(PARTS[rank])):
        refused(PARTS[rank][:length])
        # the file keeps its length but its end was never written
        refused(PARTS[rank][:length].ljust(len(PARTS[rank]), b"\xee"))


def test_appended_bytes_are_found() -> None:
    for more in (b"\0", b"garbage", bytes(4096), PARTS[0][-64:], PARTS[0]):
        refused(PARTS[0] + more)


def test_mixed_files_are_found() -> None:
    """A header and payload of one file with index and footer of another: every digest by itself holds."""
    other = forge.simple_part(RAW, head=forge.header(step=1201))
    mixed = forge.simple_part(RAW)[:4296] + other[4296:]
    assert len(mixed) == len(other)
    assert "mixed" in str(refused(mixed))


def test_verify_finds_what_reading_finds() -> None:
    data = bytearray(PARTS[1])
    reader = PartReader(MemorySource(data), where="part under test")
    data[4200] ^= 1
    with pytest.raises(CorruptFileError, match="digest of a chunk"):
        reader.verify()


class Liar(MemorySource):
    """Gives fewer bytes than it was asked for."""

    def read_at(self, offset: int, length: int) -> memoryview:
        return super().read_at(offset, length)[: length - 1]


def test_short_answers_of_a_source_are_found() -> None:
    with pytest.raises(CorruptFileError, match="completely"):
        PartReader(Liar(PARTS[0]), where="part under test")


# --- with new digests: what an evil or mad writer does ---------------------------------------------------------------


def test_forged_sound_part_is_read() -> None:
    assert read_all(forge.simple_part(RAW)) == RAW


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"magic": b"\x89DPP\n\n\x1a\n"}, "not a deeppart part file"),
        ({"version": 0}, "not one of format versions 1 to 3"),
        ({"length": 8192}, "not one of format versions 1 to 3"),
        ({"padding": b"\0\0\1"}, "not one of format versions 1 to 3"),
        ({"rank": 2}, "rank 2 is not in a world of 2"),
        ({"world_size": 0}, "rank 0 is not in a world of 0"),
        ({"world_size": 2**24 + 1}, "world_size"),
        ({"sequence": 2**63}, "sequence"),
        ({"step": 2**64 - 1}, "step"),
    ],
)
def test_impossible_header(wrong: dict[str, int], text: str) -> None:
    error = refused(forge.simple_part(RAW, head=forge.header(**wrong)))  # type: ignore[arg-type]
    assert text in str(error)
    assert type(error) is CorruptFileError


def test_newer_version_is_told_from_damage() -> None:
    error = refused(forge.simple_part(RAW, head=forge.header(version=4)))
    assert type(error) is NewerFormatError
    assert "version 4" in str(error)
    assert "version 3" in str(error)
    assert "newer deeppart" in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"footer_magic": b"DPPFOOTX"},
        {"footer_reserved": b"\1" + bytes(7)},
        {"file_length": 0},
        {"file_length": 2**64 - 1},
        {"index_offset": 0},
        {"index_offset": 4095},
        {"index_offset": 4295},
        {"index_offset": 2**64 - 1},
        {"index_length": 0},
        {"index_length": 63},
        {"index_length": 2**64 - 1},
        {"index_length": 2**64 - 4296, "index_offset": 4296},
        # adds up, but modulo 2**64 only
        {"index_offset": 4296 + 2**63, "index_length": 2**63 + 178},
        # adds up, but not to where the payload ends
        {"index_offset": 4297, "index_length": 177},
    ],
)
def test_impossible_footer(wrong: dict[str, int]) -> None:
    assert type(refused(forge.simple_part(RAW, **wrong))) is CorruptFileError


# --- zstd inside sound tables ----------------------------------------------------------------------------------------


def zstd_part(frame: bytes, raw_length: int, raw_digest: bytes) -> bytes:
    row = forge.chunk_row(frame, codec=1, raw_length=raw_length, raw_digest=raw_digest)
    spans = [forge.span_row(0, 0, raw_length, 0)]
    return forge.simple_part(frame, chunk_rows=[row], span_rows=spans, raw_bytes=raw_length)


def compressed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(raw)


def test_zstd_that_does_not_hold_what_the_table_says() -> None:
    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    sound = zstd_part(compressed(bytes(1000)), 1000, digest(bytes(1000)))
    assert read_all(sound) == bytes(1000)
    bomb = zstd_part(compressed(bytes(64 * 1024**2)), 1024**2, digest(bytes(1024**2)))
    assert "frame of 67108864 bytes" in str(refused(bomb))
    assert "chunk 0 of 1" in str(refused(bomb))
    refused(zstd_part(compressed(bytes(999)), 1000, digest(bytes(1000))))
    refused(zstd_part(compressed(bytes(1001)), 1000, digest(bytes(1000))))
    refused(zstd_part(compressed(bytes(1000)) + b"more", 1000, digest(bytes(1000))))
    refused(zstd_part(compressed(bytes(1000))[:-1], 1000, digest(bytes(1000))))
    other = zstd_part(compressed(b"\1" * 1000), 1000, digest(bytes(1000)))
    assert "decoded bytes of a chunk" in str(refused(other))
