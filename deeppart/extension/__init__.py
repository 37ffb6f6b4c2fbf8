"""What an adapter of a trainer, or of a format, needs of the library beside its public face (docs/api/extension.md).

:mod:`deeppart.interop` and :mod:`deeppart.elastic` use these names and the public ones, and nothing else of the core.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeppart.extension.codecs import codec
    from deeppart.extension.export import Content
    from deeppart.extension.foreign import ForeignFile
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
    from deeppart.storage.files import write_file

__all__ = [
    "Box",
    "Content",
    "ForeignFile",
    "JobRanks",
    "LeafType",
    "Step",
    "StopRequest",
    "choose",
    "codec",
    "decode",
    "encode",
    "leaf_bytes",
    "readable",
    "write_file",
    "write_step",
]

#: Name -> module and name there, imported at first use: most come with torch, which the commands' help does without.
_LATER = {
    "Box": ("deeppart.model", "Box"),
    "Content": ("deeppart.extension.export", "Content"),
    "ForeignFile": ("deeppart.extension.foreign", "ForeignFile"),
    "JobRanks": ("deeppart.extension.ranks", "JobRanks"),
    "LeafType": ("deeppart.state.tensors.leaves", "LeafType"),
    "Step": ("deeppart.extension.steps", "Step"),
    "StopRequest": ("deeppart.extension.stop_request", "StopRequest"),
    "choose": ("deeppart.extension.nested", "choose"),
    "codec": ("deeppart.extension.codecs", "codec"),
    "decode": ("deeppart.state.values", "decode_value"),
    "encode": ("deeppart.state.values", "encode_value"),
    "leaf_bytes": ("deeppart.state.tensors.leaves", "flat_bytes"),
    "readable": ("deeppart.state.paths.keys", "readable"),
    "write_file": ("deeppart.storage.files", "write_file"),
    "write_step": ("deeppart.extension.importing", "write_step"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module, inner = _LATER[name]
        return getattr(import_module(module), inner)
    raise AttributeError(f"module 'deeppart.extension' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
