"""A manifest comes back exactly as it was written, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.model import Attempt, ComparedEarlier, Manifest, PartRecord
from deeppart.part import (
    FileSource,
    PartReader,
    decode_manifest,
    encode_manifest,
    part_file_name,
)
from tests.golden import forge, make

SOUND = forge.seal(forge.manifest_document())


def refused(data: bytes) -> CorruptFileError:
    with pytest.raises(CorruptFileError) as caught:
        decode_manifest(data, where="manifest under test")
    assert caught.value.where == "manifest under test"
    assert len(str(caught.value)) < 2000
    return caught.value


def changed(path: tuple[Any, ...], value: object) -> bytes:
    """The sound document with ``value`` at ``path``, sealed anew."""
    document: Any = forge.manifest_document()
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return forge.seal(document)


def sound() -> Manifest:
    return decode_manifest(SOUND, where="sound")


def test_made_by_hand_and_by_the_library_alike() -> None:
    manifest = sound()
    assert manifest.attempt == Attempt(forge.LINEAGE.hex(), forge.SESSION.hex(), 7, 1200, 2)
    first = PartRecord(0, part_file_name(0, 2), 5000, 200, "0" * 32, "0" * 30 + "10")
    assert manifest.parts[0] == first
    assert manifest.structure == forge.manifest_document()["structure"]
    assert encode_manifest(manifest) == SOUND
    assert decode_manifest(memoryview(SOUND), where="view") == manifest


# --- damaged: without new digests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x02, 0x80])
def test_every_flipped_byte_is_found(mask: int) -> None:
    damaged = bytearray(SOUND)
    for i in range(len(damaged)):
        damaged[i] ^= mask
        with pytest.raises(FormatError):  # of another version, where the digit of the version is flipped
            decode_manifest(bytes(damaged), where="manifest under test")
        damaged[i] ^= mask


def test_every_truncation_and_appended_bytes_are_found() -> None:
    for length in range(len(SOUND)):
        refused(SOUND[:length])
    for more in (b"\n", b" ", b"\0", SOUND):
        refused(SOUND + more)
        refused(more + SOUND)


@pytest.mark.parametrize(
    "compared",
    [
        [[1100]],
        [[1100, [[5, 1]], 1]],
        [[1100, []]],
        [[1100, [[5, 0]]]],
        [[1100, [[-1, 1]]]],
        [[1100, [[5, 1], [6, 1]]]],
        [[1100, [[2**32, 1]]]],
        [[1100, [[True, 1]]]],
        [[1100, {"0": 1}]],
        [[-1, [[5, 1]]]],
        [["1100", [[5, 1]]]],
        [[1100, [[5, 1]]], [1100, [[7, 1]]]],
        [[1100, [[5, 1]]], [None, [[7, 1]]]],
        [[1100, [[5, 10]]], [1101, [[14, 1]]]],
        {"1100": [[5, 1]]},
    ],
    ids=str,
)
def test_impossible_comparisons(compared: object) -> None:
    refused(changed(("compared",), compared))


def test_comparisons_come_back() -> None:
    assert sound().compared == (ComparedEarlier(None, ((0, 2),)), ComparedEarlier(1100, ((5, 1), (9, 40))))
    for compared in ((), (ComparedEarlier(0, ((0, 1), (2, 2**32 - 1))),)):
        manifest = replace(sound(), compared=compared)
        assert decode_manifest(encode_manifest(manifest), where="again") == manifest


@pytest.mark.parametrize(("version", "kind"), [(0, FormatError), (8, FormatError), (10, NewerFormatError)])
def test_another_version_is_told_from_damage(version: int, kind: type[FormatError]) -> None:
    with pytest.raises(FormatError, match=f"version {version}; .* version 9") as caught:
        decode_manifest(forge.seal({"anything": 1}, version=version), where="manifest under test")
    assert type(caught.value) is kind
    refused(forge.seal({"anything": 1}, version=version, digest="0" * 32))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"deeppart-manifest",
        SOUND.replace(b"\n", b"\r\n", 1),
        SOUND.replace(b"manifest 9", b"manifest 09", 1),
        SOUND.replace(b"manifest 9", b"manifest  9", 1),
        SOUND.replace(b"bytes=", b"bytes=0", 1),
        SOUND.replace(b"bytes=", b"bytes=+", 1),
        SOUND.replace(b"bytes=", b"bytes=" + b"9" * 5000, 1),
        SOUND.replace(b"manifest 9", b"manifest " + b"9" * 5000, 1),
        SOUND.replace(b"xxh3-128=", b"xxh3-128=" + b"0" * 200, 1),
        forge.seal(b"", nbytes=0),
        forge.seal(forge.manifest_document(), nbytes=10**10),
        forge.seal(forge.manifest_document(), nbytes=10),
    ],
)
def test_malformed_first_line(data: bytes) -> None:
    refused(data)


# --- encoding --------------------------------------------------------------------------------------------------------


def with_structure(value: object) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(manifest, structure={"value": value})


@pytest.mark.parametrize(
    "change",
    [
        with_structure((1, 2)),
        with_structure({1: 2}),
        with_structure({None: 2}),
        with_structure({1: 1, "a": 2}),
        with_structure(float("nan")),
        with_structure(float("inf")),
        with_structure(b"bytes"),
        with_structure({1, 2}),
        with_structure(object()),
        lambda manifest: replace(manifest, parts=manifest.parts[:1]),
        lambda manifest: replace(manifest, parts=manifest.parts[::-1]),
        lambda manifest: replace(manifest, parts=(manifest.parts[0], replace(manifest.parts[1], file="x"))),
        lambda manifest: replace(manifest, parts=(manifest.parts[0], replace(manifest.parts[1], nbytes=-1))),
        lambda manifest: replace(manifest, attempt=replace(manifest.attempt, step=-1)),
        lambda manifest: replace(manifest, created="now"),
        lambda manifest: replace(manifest, library=""),
    ],
)
def test_what_would_not_come_back_is_not_written(change: Callable[[Manifest], Manifest]) -> None:
    with pytest.raises(FormatError, match="cannot be written") as caught:
        encode_manifest(change(sound()))
    assert not isinstance(caught.value, CorruptFileError)


def test_golden_manifest() -> None:
    data = (make.PARTS / "manifest").read_bytes()
    manifest = decode_manifest(data, where="golden")
    assert encode_manifest(manifest) == data == make.make_manifest()
    assert (manifest.compared, manifest.attempt) == (make.COMPARED, make.ATTEMPT)
    assert (manifest.created, manifest.library) == ("2026-11-21T04:05:06+00:00", "deeppart 0.1.0")
    assert manifest.structure == {"kind": "dict", "leaves": [["w", 1, -2.5, None, True, "é☃"]]}
    for record in manifest.parts:
        with FileSource(make.PARTS / record.file) as source:
            reader = PartReader(source, where=record.file, expected_index_digest=record.index_digest)
            reader.verify(expected_digest=record.digest)
            assert (source.size, reader.raw_bytes) == (record.nbytes, record.raw_bytes)
    assert manifest.parts[0] == make.make_part(0)[1].record(make.ATTEMPT, 0)


# --- forged: with sound digests, as no writer would write it ----------------------------------------------------------

ALL_FIELDS = [
    *((name,) for name in ("attempt", "compared", "created", "library", "parts", "structure")),
    *(("attempt", name) for name in ("lineage", "session", "sequence", "step", "world_size")),
    *(
        ("parts", 1, name)
        for name in (
            *("rank", "file", "nbytes", "raw_bytes", "digest", "index_digest"),
            *("node_index_digest", "referenced_bytes", "bases"),
        )
    ),
    *(("parts", 1, "bases", 0, name) for name in ("index_digest", "nbytes", "step", "sequence")),
    ("parts", 0),
]


@pytest.mark.parametrize("path", ALL_FIELDS, ids=str)
def test_wrong_type_missing_or_unknown_field(path: tuple[Any, ...]) -> None:
    value: Any
    for value in (None, True, False, -1, 1.0, 2**70, "", "\0", "x" * 10**6, [], [[]], [1]):
        if (path[-1], value) == ("node_index_digest", ""):
            continue  # there is no other file on nodes
        if path[-1] == "bases" and value == []:
            continue  # it refers to nothing
        if path == ("compared",) and (value is None or value == []):
            continue  # not known; all at this step
        refused(changed(path, value))
    if path != ("structure",):
        refused(changed(path, {}))
        refused(changed(path, {"a": 1}))
    document: Any = forge.manifest_document()
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    del inner[path[-1]]
    refused(forge.seal(document))
    if isinstance(inner, dict):
        inner[path[-1]] = value
        inner["more"] = 1
        assert "more" in str(refused(forge.seal(document)))


NAME = "part-00001-of-00002.dpp"


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        f"../{NAME}",
        f"{NAME}\0",
        "part-00000-of-00002.dpp",
        "part-00001-of-00003.dpp",
    ],
)
def test_file_names_of_others(name: str) -> None:
    assert NAME in str(refused(changed(("parts", 1, "file"), name)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("attempt", "lineage"), "A" * 32),
        (("attempt", "lineage"), "a" * 31),
        (("attempt", "session"), "a" * 31 + "\n"),
        (("attempt", "session"), "a" * 32 + "\n"),
        (("attempt", "step"), 2**63),
        (("attempt", "sequence"), 2**63),
        (("attempt", "world_size"), 0),
        (("attempt", "world_size"), 1),
        (("attempt", "world_size"), 3),
        (("attempt", "world_size"), 2**24 + 1),
        (("parts", 1, "digest"), "g" * 32),
        (("parts", 1, "index_digest"), "0x" + "0" * 30),
        (("parts", 1, "node_index_digest"), "0" * 31),
        (("parts", 1, "nbytes"), 4223),
        (("parts", 1, "nbytes"), 2**62),
        (("parts", 1, "raw_bytes"), 2**62),
        (("parts", 1, "referenced_bytes"), 2**62),
        (("parts", 1, "bases", 0, "sequence"), 7),
        (("parts", 1, "bases", 0, "sequence"), 2),
        (("parts", 1, "bases", 0, "step"), 2**63),
        (("parts", 1, "bases", 0, "nbytes"), 4223),
        (("parts", 1, "bases"), [forge.base_record(number, number % 7) for number in range(65)]),
        (("parts", 1, "rank"), 0),
        (("parts", 1, "rank"), 2),
        (("parts", 0, "rank"), False),
        (("parts", 1, "rank"), True),
        (("created",), "2026-11-21T04:05:06"),
        (("created",), "2026-11-21T04:05:06+01:00"),
        (("created",), "yesterday"),
        (("library",), "deeppart\x1b[31m"),
        (("library",), "d" * 201),
        (("parts",), forge.manifest_document()["parts"][::-1]),
        (("parts",), forge.manifest_document()["parts"][:1] * 2),
        (("parts",), forge.manifest_document()["parts"][:1]),
        (("parts",), forge.manifest_document(3)["parts"]),
    ],
    ids=str,
)
def test_impossible_value(path: tuple[Any, ...], value: object) -> None:
    refused(changed(path, value))
