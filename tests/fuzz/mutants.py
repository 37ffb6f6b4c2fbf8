"""The library with one check taken out, to see that fuzzing notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deeppart.part.format as fmt
from deeppart.part import PartReader, Signing, parity, reader
from deeppart.state.document import part_document as document
from deeppart.state.document import structure_json as structure_decoding
from deeppart.state.tensors.leaves import LeafType


def _nothing(*arguments: Any, **named: Any) -> None:
    """Finds nothing wrong."""


def _without_digests() -> None:
    for module in (fmt, reader, parity):
        module.check_digest = _nothing  # type: ignore[attr-defined]
    PartReader.check_chunk = _nothing  # type: ignore[method-assign]


def _without_types() -> None:
    LeafType.check = _nothing  # type: ignore[method-assign]


def _without_aliases() -> None:
    structure_decoding.check_aliases = document.check_aliases = _nothing  # type: ignore[attr-defined]


def _without_signatures() -> None:
    Signing.check = _nothing  # type: ignore[method-assign]


#: What can be taken out, by name.
BREAKAGES: dict[str, Callable[[], None]] = {
    "digests": _without_digests,
    "types": _without_types,
    "aliases": _without_aliases,
    "signatures": _without_signatures,
}
