"""Paths of files that are repaired: which file each leads to, and which comes first."""

from __future__ import annotations

import os
from pathlib import Path

from deeppart import access
from deeppart.part import is_parity_file_name, parse_base_file_name, parse_section_path


def repair_order(path: Path) -> int:
    """Bases before the parts that refer to them, these before the parity that is computed of them."""
    if parse_base_file_name(path.name) is not None:
        return 0
    return 2 if is_parity_file_name(path.name) else 1


def file_of(path: Path) -> Path:
    """The file that a path leads to: of a section, the node file."""
    place = parse_section_path(path)
    return path if place is None else Path(place.file)


def are_one(path: Path, other: Path) -> bool:
    """True if two names belong to one file."""
    return access.exists(path) and os.path.samestat(access.lstat(path), access.lstat(other))
