"""Signed parts and manifests: no bit of them can be changed without the key."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash

from deeppart.errors import FormatError, SignatureError
from deeppart.part import FileSource, MemorySource, PartReader, Signing, decode_manifest
from tests.fuzz.images import PartImage
from tests.golden import forge, make

SECRET, OTHER = bytes(range(32)), b"another key, long enough to be one"
SIGNING = Signing([SECRET])
#: What a signature takes in the first line of a manifest.
SIGNATURE = " blake2b=" + 64 * "0"


# --- formats ----------------------------------------------------------------------------------------------------------

Edit = Callable[[PartImage], object]


def small_part() -> bytes:
    """Signed, by hand: two chunks, of which one is compressed."""
    import zstandard

    packed = zstandard.compress(bytes(5000))
    first = bytes(range(200))
    rows = [
        forge.chunk_row(first, dtype=b"uint8"),
        forge.chunk_row(packed, offset=4296, raw_length=5000, codec=1, raw_digest=xxhash.xxh3_128_digest(bytes(5000))),
    ]
    return forge.part(
        first + packed,
        rows,
        [forge.span_row(0, 0, 200, 0), forge.span_row(1, 0, 5000, 200)],
        raw_bytes=5200,
        head=forge.header(signed=1),
        meta=b'{"a":1}',
        secret=SECRET,
        strong=[forge.strong_digest(first), forge.strong_digest(packed)],
    )


def read_all(data: bytes, signing: Signing | None = SIGNING, **expected: Any) -> bytes:
    reader = PartReader(MemorySource(data), where="here", signing=signing, **expected)
    return b"".join(bytes(reader.read_chunk(chunk)) for chunk in range(len(reader.chunks)))


def test_a_part_signed_by_hand_is_read() -> None:
    assert read_all(small_part()) == bytes(range(200)) + bytes(5000)
    assert read_all(small_part(), None) == read_all(small_part())
    assert PartReader(MemorySource(small_part()), where="here").signed


def test_every_bit_of_index_and_header_is_covered() -> None:
    """Whatever is flipped, with the unkeyed digests computed anew."""
    data = bytearray(small_part())
    image = PartImage.parse(bytes(data))
    index_offset = 4096 + sum(len(row["encoded"]) for row in image.chunks)
    generator = np.random.default_rng(3)
    places = [*range(8, 72), *range(index_offset, len(data) - 64)]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(generator.integers(8))
        head = bytes(flipped[:4088])
        flipped[4088:4096] = xxhash.xxh3_64_digest(head)
        if not index_offset + 40 <= place < index_offset + 48:
            flipped[index_offset + 40 : index_offset + 48] = flipped[4088:4096]
        index = bytes(flipped[index_offset:-64])
        flipped[-32:-16] = xxhash.xxh3_128_digest(index)
        flipped[-8:] = xxhash.xxh3_64_digest(bytes(flipped[-64:-8]))
        with pytest.raises(FormatError):
            read_all(bytes(flipped))


def test_a_chunk_with_another_content_of_the_same_xxh3_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collisions of XXH3 can be made; here one is had by making both digests of the table hold."""
    reader = PartReader(MemorySource(small_part()), where="here", signing=SIGNING)
    without = PartReader(MemorySource(small_part()), where="here")
    wrong = bytes(200)
    expected = reader.chunks["encoded_digest"][0].tobytes()
    monkeypatch.setattr("deeppart.part.reader.xxhash.xxh3_128_digest", lambda _: expected)
    with pytest.raises(SignatureError, match="strong digest"):
        reader.check_chunk(0, memoryview(wrong))
    without.check_chunk(0, memoryview(wrong))


def test_unsigned_parts_and_other_keys_are_refused() -> None:
    with pytest.raises(SignatureError, match="part 0 of step 1200 is not signed"):
        PartReader(MemorySource(forge.simple_part()), where="here", signing=SIGNING)
    with pytest.raises(SignatureError, match="does not hold"):
        PartReader(MemorySource(small_part()), where="here", signing=Signing([OTHER]))
    read_all(small_part(), Signing([OTHER, SECRET]))
    stripped = PartImage.parse(small_part())
    stripped.head["signed"], stripped.tag = 0, b""
    read_all(stripped.encode(), None)
    with pytest.raises(SignatureError, match="is not signed"):
        read_all(stripped.encode())


def test_manifests() -> None:
    document = forge.manifest_document()
    signed = forge.seal(document, secret=SECRET)
    manifest = decode_manifest(signed, where="here", signing=SIGNING)
    assert manifest.signed and manifest == decode_manifest(forge.seal(document), where="here")
    assert not decode_manifest(forge.seal(document), where="here").signed
    assert decode_manifest(signed, where="here").signed
    change: Callable[[Any], object]
    for change in (
        lambda d: d["attempt"].update(step=1300),
        lambda d: d["attempt"].update(session="ab" * 16),
        lambda d: d.update(created="2026-11-22T04:05:06+00:00"),
        lambda d: d["parts"][0].update(index_digest="0" * 32),
        lambda d: d["parts"][1].update(nbytes=6000),
        lambda d: d.update(compared=[]),
        lambda d: d["structure"].update(kind="list"),
    ):
        changed = forge.manifest_document()
        change(changed)
        body = forge.seal(changed).partition(b"\n")
        forged = body[0] + signed.partition(b"\n")[0][-len(SIGNATURE) :] + b"\n" + body[2]
        assert decode_manifest(forged, where="here").signed
        with pytest.raises(SignatureError, match="does not hold"):
            decode_manifest(forged, where="here", signing=SIGNING)
    with pytest.raises(SignatureError, match="is not signed"):
        decode_manifest(forge.seal(document), where="here", signing=SIGNING)
    with pytest.raises(SignatureError, match="does not hold"):
        decode_manifest(signed, where="here", signing=Signing([OTHER]))


def test_golden_files() -> None:
    data = (make.SIGNED / "manifest").read_bytes()
    assert data == make.make_manifest(make.SIGNING)
    assert decode_manifest(data, where="golden", signing=make.SIGNING).attempt == make.ATTEMPT
    part = (make.SIGNED / "part-00000-of-00002.dpp").read_bytes()
    assert part == make.make_signed_part()
    source = MemorySource(part)
    source.at_step = lambda place: FileSource(make.PARTS / "part-00000-of-00002.dpp")  # type: ignore[method-assign]
    reader = PartReader(source, where="golden", signing=make.SIGNING)
    assert b"".join(bytes(reader.read_chunk(chunk)) for chunk in range(2)) == make.LATER_RAW


def test_keys_are_never_shown() -> None:
    texts = [repr(SIGNING), str(SIGNING), repr(Signing([SECRET, OTHER])), *SIGNING.fingerprints]
    for text in texts:
        assert SECRET.hex() not in text and forge.key_of(SECRET).hex() not in text
    with pytest.raises(TypeError):
        pickle.dumps(SIGNING)
