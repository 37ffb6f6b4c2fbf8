"""The documents of a checkpoint's parts, to be looked at, edited and decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deeppart.errors import CorruptFileError
from deeppart.state.document.part_document import RankDocument, decode_meta
from deeppart.state.document.structure import Structure
from tests.fuzz.images import PartImage


def read_metas(root: Path) -> list[Any]:
    """Of the only step, by rank, as JSON has them."""
    (directory,) = root.glob("step-*")
    paths = sorted(directory.glob("part-*"))
    return [PartImage.parse(path.read_bytes()).meta for path in paths]


def decoded(metas: Sequence[Any]) -> tuple[list[RankDocument], list[Structure]]:
    """Decoded, checked and completed, as readers do it."""
    documents = [decode_meta(json.dumps(each).encode(), "here") for each in metas]
    structure = documents[0].structure
    if structure is None:
        raise CorruptFileError("part 0 carries no structure document")
    return documents, [document.check(structure, "here") for document in documents]
