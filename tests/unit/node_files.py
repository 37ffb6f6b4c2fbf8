"""Checkpoints whose parts are sections of node files, made of those whose parts are files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deeppart.part import (
    SECTION_ALIGNMENT,
    NodeTable,
    Section,
    decode_manifest,
    encode_manifest,
    node_file_name,
    section_file,
)


def gather(directory: Path, node_size: int) -> list[Path]:
    """Put the parts of a step directory into node files of so many ranks each; returns these."""
    path = directory / "manifest"
    manifest = decode_manifest(path.read_bytes(), where=str(path))
    world = manifest.attempt.world_size
    made: dict[int, bytearray] = {}
    rows: dict[int, list[Section]] = {}
    for part in manifest.parts:
        first = part.rank // node_size * node_size
        data, sections = made.setdefault(first, bytearray()), rows.setdefault(first, [])
        at = -(-len(data) // SECTION_ALIGNMENT) * SECTION_ALIGNMENT
        data.extend(bytes(at - len(data)) + (directory / part.file).read_bytes())
        (directory / part.file).unlink()
        sections.append(Section(part.rank, at, part.nbytes, part.index_digest))
    files = []
    for first, data in made.items():
        table = NodeTable(first, world, tuple(rows[first]))
        files.append(directory / node_file_name(first, world))
        files[-1].write_bytes(bytes(data).ljust(table.offset, b"\0") + table.encode())
    parts = tuple(
        replace(part, file=section_file(part.rank // node_size * node_size, part.rank, world))
        for part in manifest.parts
    )
    path.write_bytes(encode_manifest(replace(manifest, parts=parts)))
    return files
