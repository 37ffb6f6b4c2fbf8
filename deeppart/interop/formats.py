"""The formats that an export can write, and which of them the name of a file asks for.

What needs torch is imported by who writes: completion of the commands need not wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deeppart.errors import ConfigError

if TYPE_CHECKING:
    from deeppart.offline.export import Writer

#: What can be read: names of :data:`deeppart.interop.loading.READERS`.
SOURCES = ("dcp", "torch", "safetensors", "hdf5")
_SUFFIX = ".safetensors"
FORMATS = ("hdf5", "safetensors", "torch", "dcp")
#: Endings of names that ask for one.
ENDINGS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".h5": "hdf5", ".hdf5": "hdf5"}
#: Of the files in a directory of safetensors, as Hugging Face's library has it.
SHARD_BYTES = 5_000_000_000
COMPRESSIONS = ("none", "gzip")
_GZIP_LEVEL = 1


def form_of(out: Path) -> str:
    """The format that a name asks for."""
    form = ENDINGS.get(out.suffix.lower())
    if form is None:
        raise ConfigError(
            "the name of the archive does not say its format",
            expected=f"a name that ends in {', '.join(ENDINGS)}",
            found=repr(out.name),
            todo=f"give it such a name, or name the format: --to {', '.join(FORMATS)}",
        )
    return form


def writer_for(form: str, out: Path, max_shard_bytes: int | None = None, compression: str = "none") -> Writer:
    """What writes a format."""
    one_file = form in ("hdf5", "torch") or (form == "safetensors" and out.suffix.lower() == _SUFFIX)
    if max_shard_bytes is not None and one_file:
        raise ConfigError(
            "what is one file has no shards",
            expected="DCP, or safetensors in a directory",
            found=f"{form}, {out.name}",
            todo=f"name a directory, without {_SUFFIX}, or leave --max-shard-size out",
        )
    if compression != "none" and form != "hdf5":
        raise ConfigError(f"{form} has no compression", found=compression, todo="leave --compression out")
    if form == "safetensors":
        from deeppart.interop.safetensors.writing import SafetensorsWriter

        return SafetensorsWriter(None if one_file else max_shard_bytes or SHARD_BYTES)
    if form == "torch":
        from deeppart.interop.torch_file.writing import TorchWriter

        return TorchWriter()
    if form == "dcp":
        from deeppart.interop.dcp.writing import DcpWriter

        return DcpWriter(max_shard_bytes)
    from deeppart.offline.export.hdf5 import Filter, Hdf5Writer

    return Hdf5Writer(Filter(_GZIP_LEVEL) if compression == "gzip" else None)
