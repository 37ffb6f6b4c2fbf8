"""The API for adapters of trainers and formats, beside the public one (docs/api/extension.md).

:mod:`deeppart.interop` and :mod:`deeppart.elastic` use only this and the public API, with what reads settings and
reports progress (:mod:`deeppart.config`, :mod:`deeppart.progress`), and the writer of HDF5 archives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names

if TYPE_CHECKING:
    from deeppart.extension.codecs import codec
    from deeppart.extension.export import Content
    from deeppart.extension.foreign import ForeignFile, Source
    from deeppart.extension.importing import write_step
    from deeppart.extension.nested import choose
    from deeppart.extension.ranks import JobRanks
    from deeppart.extension.steps import Step
    from deeppart.extension.stop_request import StopRequest
    from deeppart.model import Box
    from deeppart.state.paths import readable
    from deeppart.state.tensors import LeafType
    from deeppart.state.tensors import flat_bytes as leaf_bytes
    from deeppart.state.values import decode_value as decode
    from deeppart.state.values import encode_value as encode

__all__ = [
    "Box",
    "Content",
    "ForeignFile",
    "JobRanks",
    "LeafType",
    "Source",
    "Step",
    "StopRequest",
    "choose",
    "codec",
    "decode",
    "encode",
    "leaf_bytes",
    "readable",
    "write_step",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Box": "deeppart.model",
        "Content": "deeppart.extension.export",
        "ForeignFile": "deeppart.extension.foreign",
        "JobRanks": "deeppart.extension.ranks",
        "LeafType": "deeppart.state.tensors.leaves",
        "Source": "deeppart.extension.foreign",
        "Step": "deeppart.extension.steps",
        "StopRequest": "deeppart.extension.stop_request",
        "choose": "deeppart.extension.nested",
        "codec": "deeppart.extension.codecs",
        "decode": "deeppart.state.values:decode_value",
        "encode": "deeppart.state.values:encode_value",
        "leaf_bytes": "deeppart.state.tensors.leaves:flat_bytes",
        "readable": "deeppart.state.paths.keys",
        "write_step": "deeppart.extension.importing",
    },
    __all__,
)
