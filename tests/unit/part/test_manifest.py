"""A manifest comes back exactly as it was written, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
from tests.golden import forge, make_v1, make_v3, make_v4
from tests.unit.part.manifests import SOUND, changed, refused


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


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "\U0001f600", 'quote " \\ slash /', "\n", "\u2028"])
def test_any_string_survives(text: str) -> None:
    manifest = replace(sound(), structure={text: [text, {text: None}]})
    data = encode_manifest(manifest)
    assert data.isascii()
    assert decode_manifest(data, where="text") == manifest


# --- damaged: without new digests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x02, 0x80])
def test_every_flipped_byte_is_found(mask: int) -> None:
    damaged = bytearray(SOUND)
    for i in range(len(damaged)):
        damaged[i] ^= mask
        refused(bytes(damaged))
        damaged[i] ^= mask


def test_every_truncation_and_appended_bytes_are_found() -> None:
    for length in range(len(SOUND)):
        refused(SOUND[:length])
    for more in (b"\n", b" ", b"\0", SOUND):
        refused(SOUND + more)
        refused(more + SOUND)


def test_version_1_has_no_other_digest_for_nodes() -> None:
    document = forge.manifest_document()
    refused(forge.seal(document, version=1))
    for part in document["parts"]:
        del part["node_index_digest"], part["referenced_bytes"]
    refused(forge.seal(document, version=1))
    del document["compared"]
    parts = decode_manifest(forge.seal(document, version=1), where="version 1").parts
    assert [part.index_digests for part in parts] == [{part.index_digest} for part in parts]
    refused(forge.seal(document, version=2))


def test_older_versions_do_not_say_when_leaves_were_compared() -> None:
    document = forge.manifest_document()
    refused(forge.seal(document, version=2))
    del document["compared"]
    refused(forge.seal(document, version=3))
    manifest = decode_manifest(forge.seal(document, version=2), where="version 2")
    assert manifest.compared is None
    assert decode_manifest(encode_manifest(manifest), where="version 3") == manifest


@pytest.mark.parametrize(
    "compared",
    [
        [[1100]],
        [[1100, [[5, 1]], 1]],
        [[1100, []]],
        [[1100, [5]]],
        [[1100, [[5]]]],
        [[1100, [[5, 0]]]],
        [[1100, [[-1, 1]]]],
        [[1100, [[5, 1], [5, 1]]]],
        [[1100, [[5, 1], [6, 1]]]],
        [[1100, [[5, 2], [6, 1]]]],
        [[1100, [[2**32, 1]]]],
        [[1100, [[0, 2**32]]]],
        [[1100, [[True, 1]]]],
        [[1100, [[0, 1.0]]]],
        [[1100, {"0": 1}]],
        [[-1, [[5, 1]]]],
        [[2**63, [[5, 1]]]],
        [["1100", [[5, 1]]]],
        [[True, [[5, 1]]]],
        [[1100, [[5, 1]]], [1100, [[7, 1]]]],
        [[1100, [[5, 1]]], [1000, [[7, 1]]]],
        [[1100, [[5, 1]]], [None, [[7, 1]]]],
        [[None, [[5, 1]]], [None, [[7, 1]]]],
        [[1100, [[5, 10]]], [1101, [[14, 1]]]],
        [[None, [[14, 1]]], [1101, [[5, 10]]]],
        {"1100": [[5, 1]]},
    ],
    ids=str,
)
def test_impossible_comparisons(compared: object) -> None:
    refused(changed(("compared",), compared))


def test_comparisons_come_back() -> None:
    assert sound().compared == (ComparedEarlier(None, ((0, 2),)), ComparedEarlier(1100, ((5, 1), (9, 40))))
    for compared in (None, (), (ComparedEarlier(0, ((0, 1), (2, 2**32 - 1))),)):
        manifest = replace(sound(), compared=compared)
        assert decode_manifest(encode_manifest(manifest), where="again") == manifest


def test_newer_version() -> None:
    with pytest.raises(NewerFormatError, match=r"version 5; .* version 4"):
        decode_manifest(forge.seal({"anything": 1}, version=5), where="manifest under test")
    refused(forge.seal({"anything": 1}, version=5, digest="0" * 32))
    refused(forge.seal(forge.manifest_document(), version=0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"deeppart-manifest",
        SOUND.replace(b"\n", b"\r\n", 1),
        SOUND.replace(b"manifest 3", b"manifest 02", 1),
        SOUND.replace(b"manifest 3", b"manifest  2", 1),
        SOUND.replace(b"bytes=", b"bytes=0", 1),
        SOUND.replace(b"bytes=", b"bytes=+", 1),
        SOUND.replace(b"bytes=", b"bytes=" + b"9" * 5000, 1),
        SOUND.replace(b"manifest 3", b"manifest " + b"9" * 5000, 1),
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
    assert json.dumps(forge.manifest_document())  # the sound one is not changed by any of this


def test_circular_structure_is_not_written() -> None:
    structure: dict[str, Any] = {}
    structure["self"] = structure
    with pytest.raises(FormatError, match="cannot be written"):
        encode_manifest(replace(sound(), structure=structure))


GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


def in_node_files(ranks: int, node_size: int) -> Manifest:
    document = forge.in_node_files(forge.manifest_document(ranks), node_size)
    return decode_manifest(forge.seal(document, version=4), where="version 4")


def test_parts_in_node_files_make_it_one_of_version_4() -> None:
    for node_size in (1, 2, 3, 5):
        manifest = in_node_files(5, node_size)
        assert encode_manifest(manifest).startswith(b"deeppart-manifest 4 ")
        assert decode_manifest(encode_manifest(manifest), where="again") == manifest
    assert encode_manifest(sound()).startswith(b"deeppart-manifest 3 "), "earlier versions of the library read it"


def test_ranks_of_a_node_need_not_follow_each_other() -> None:
    document = forge.manifest_document(4)
    for part, first in zip(document["parts"], (0, 1, 0, 1), strict=True):
        part["file"] = f"node-{first:05d}-of-00004.dpn/{part['file']}"
    assert len(decode_manifest(forge.seal(document, version=4), where="in turn").parts) == 4


@pytest.mark.parametrize(
    ("rank", "name"),
    [
        (1, "part-00001-of-00004.dpp"),  # a file of its own beside sections
        (1, "node-00001-of-00004.dpn/part-00000-of-00004.dpp"),
        (1, "node-00002-of-00004.dpn/part-00001-of-00004.dpp"),  # not the lowest of that node
        (3, "node-00001-of-00004.dpn/part-00003-of-00004.dpp"),  # rank 1 is not there
        (2, "node-00000-of-00004.dpn/part-00002-of-00004.dpp"),  # rank 3 is in the node file of rank 2, and it is not
        (1, "node-00000-of-00005.dpn/part-00001-of-00005.dpp"),
        (1, "node-00000-of-00004.dpn/part-00001-of-00005.dpp"),
        (1, "node-00000-of-00004.dpn//part-00001-of-00004.dpp"),
        (1, "./node-00000-of-00004.dpn/part-00001-of-00004.dpp"),
        (1, "/node-00000-of-00004.dpn/part-00001-of-00004.dpp"),
        (1, "node-00000-of-00004.dpn/../part-00001-of-00004.dpp"),
        (1, "node-00000-of-00004.dpn"),
        (1, "node-0-of-4.dpn/part-00001-of-00004.dpp"),
        (1, ""),
        (1, None),
        (1, ["node-00000-of-00004.dpn/part-00001-of-00004.dpp"]),
    ],
)
def test_node_files_that_do_not_share_out_the_ranks(rank: int, name: object) -> None:
    document = forge.in_node_files(forge.manifest_document(4), 2)
    document["parts"][rank]["file"] = name
    refused(forge.seal(document, version=4))


def test_each_version_has_names_of_its_own() -> None:
    refused(forge.seal(forge.manifest_document(), version=4))
    refused(forge.seal(forge.in_node_files(forge.manifest_document(), 2), version=3))
    document = forge.in_node_files(forge.manifest_document(), 2)
    wrong: list[Any] = [[], [None, None], ["x", "y"], [{}, {}]]
    for parts in wrong:
        document["parts"] = parts
        refused(forge.seal(document, version=4))


def test_golden_manifest_of_node_files() -> None:
    data = (GOLDEN.parent / "v4" / "manifest").read_bytes()
    assert data == make_v4.make_manifest()
    manifest = decode_manifest(data, where="golden")
    assert encode_manifest(manifest) == data
    assert [part.file.split("/")[0] for part in manifest.parts] == [make_v4.NAME] * 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_golden_manifest(version: int) -> None:
    data = (GOLDEN.parent / f"v{version}" / "manifest").read_bytes()
    manifest = decode_manifest(data, where="golden")
    assert (encode_manifest(manifest) == data) == (version == 3)
    assert manifest.compared == (make_v3.COMPARED if version == 3 else None)
    assert manifest.attempt == make_v1.ATTEMPT
    assert (manifest.created, manifest.library) == ("2026-11-21T04:05:06+00:00", "deeppart 0.1.0")
    assert manifest.structure == {"kind": "dict", "leaves": [["w", 1, -2.5, None, True, "é☃"]]}
    for record in manifest.parts:
        with FileSource(GOLDEN / record.file) as source:
            reader = PartReader(source, where=record.file, expected_index_digest=record.index_digest)
            reader.verify(expected_digest=record.digest)
            assert (source.size, reader.raw_bytes) == (record.nbytes, record.raw_bytes)
    assert manifest.parts[0] == make_v1.make_part(0)[1].record(make_v1.ATTEMPT, 0)
