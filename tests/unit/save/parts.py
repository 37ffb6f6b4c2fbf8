"""Shares in staging memory, and parts written of them."""

from __future__ import annotations

import io

import numpy as np
import torch

from deeppart.codec import Chooser
from deeppart.model import Attempt
from deeppart.part import MemorySource, PartReader
from deeppart.save import Encoders, Encoding, Workers
from deeppart.save.growing_file import GrowingFile
from deeppart.save.job import Staged
from deeppart.save.write import recode_part
from deeppart.state.capture.layout import lay_out
from deeppart.state.document.part_document import PartDocument
from deeppart.state.tensors.leaves import LeafType

RANDOM = np.random.default_rng(3)


ATTEMPT = Attempt("0" * 32, "1" * 32, 0, 5, 1)


def staged(*kinds: tuple[str, int]) -> Staged:
    """A share of one leaf per (dtype, elements), in random normals."""
    types = [LeafType("torch", dtype, (elements,)) for dtype, elements in kinds]
    layout = lay_out(types, [(i, 0, kind.nbytes) for i, kind in enumerate(types)], [])
    data = torch.cat(
        [
            torch.from_numpy(RANDOM.standard_normal(kind.shape[0])).to(getattr(torch, kind.dtype)).view(torch.uint8)
            for kind in sorted(types, key=lambda kind: -kind.itemsize)
        ]
    )
    document = PartDocument(["list", None, None, []], types, [], {}, np.zeros(len(types), bool), False)
    return Staged(layout, data.numpy(), document)


def recoded(growing: GrowingFile, share: Staged, chooser: Chooser) -> PartReader:
    sink = io.BytesIO()
    encoding = Encoding(chooser, Encoders(2))
    summary = recode_part(growing, share.layout, share.document, sink, encoding, ATTEMPT, 0, Workers(1, "behind"))
    reader = PartReader(MemorySource(sink.getvalue()), where="recoded")
    assert reader.verify() == summary.digest
    return reader
