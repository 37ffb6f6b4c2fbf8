"""Paths of files that are repaired."""

from __future__ import annotations

import os
from pathlib import Path

from deeppart.offline.inspect.repair_paths import are_one, file_of, repair_order
from deeppart.part import base_file_name, part_file_name, section_file


def test_the_order() -> None:
    names = ["parity-0123456789abcdef-001-of-004.dpy", part_file_name(1, 2), base_file_name(1, 2, "a" * 32)]
    order = sorted(map(Path, names), key=repair_order)
    assert order[0].name.startswith("base-") and order[1].name.startswith("part-")


def test_the_file_of_a_section() -> None:
    assert file_of(Path("d", section_file(0, 3, 8))) == Path("d/node-00000-of-00008.dpn")
    assert file_of(Path("d", part_file_name(3, 8))) == Path("d", part_file_name(3, 8))


def test_two_names_of_one_file(tmp_path: Path) -> None:
    one, two, other = tmp_path / "one", tmp_path / "two", tmp_path / "other"
    one.write_bytes(b"x")
    other.write_bytes(b"x")
    os.link(one, two)
    assert are_one(one, two) and not are_one(one, other) and not are_one(tmp_path / "none", one)
