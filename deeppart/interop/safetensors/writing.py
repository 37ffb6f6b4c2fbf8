"""Write a checkpoint as safetensors: one file, or a directory of files with an index, as Hugging Face has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deeppart.errors import StateError, UnsupportedLeafError
from deeppart.interop.safetensors.header import FORMAT, METADATA, MOST_HEADER_BYTES, NAMES, encode_header
from deeppart.interop.safetensors.loading import VALUES
from deeppart.interop.tensors import arrays_remark, torch_dtype_name
from deeppart.model.version import VERSION
from deeppart.offline.export.beside import BesideFile, BesideFolder
from deeppart.offline.export.reading import Content, Progress, Totals
from deeppart.state.document.structure import SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.tree.composites import COMPOSITES, SUBCLASS
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.runs import encode_leaf_value
from deeppart.state.tree.values import is_unicode


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to write.

    Attributes:
        leaf: its number. name, dtype, shape: as in the header. nbytes: of its elements.
    """

    leaf: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class SafetensorsWriter:
    """Writes safetensors."""

    form = "safetensors"

    def __init__(self, max_shard_bytes: int | None = None) -> None:
        self._most = max_shard_bytes
        self.is_directory = max_shard_bytes is not None

    def write(self, content: Content, beside: BesideFile | BesideFolder, told: Progress) -> Totals:
        """Write all of it."""
        content.refuse_repeats()
        names = _Names(content)
        tensors, ties = names.tensors()
        about = {"library": f"deeppart {VERSION}", "step": str(content.checkpoint.manifest.attempt.step)}
        # A text that is the name of a tensor would say that what it stands under is another name of it.
        metadata = {FORMAT: "pt"} | {key: text for key, text in about.items() if not names.has(text)}
        notes = ties | ({VALUES: json.dumps(names.values)} if names.values else {})
        writing = _Writing(content, told, sum(tensor.nbytes for tensor in tensors))
        files = 1
        if isinstance(beside, BesideFile):
            writing.file(beside, tensors, metadata | notes)
        else:
            files = self._write_directory(beside, writing, tensors, metadata, notes)
        remarks = list(arrays_remark(content))
        if ties:
            remarks.append(f"tied leaves stand there once, with their other names in the metadata: {_some(list(ties))}")
        if names.values:
            remarks.append(f"small values are in the metadata, as JSON, under {VALUES!r}")
        if names.empty:
            remarks.append(f"containers with nothing in them are not there: {_some(names.empty)}")
        return content.totals(len(names.values), names.own_values, remarks, files)

    def _write_directory(
        self,
        beside: BesideFolder,
        writing: _Writing,
        tensors: list[_Tensor],
        metadata: dict[str, str],
        notes: dict[str, str],
    ) -> int:
        shards: list[list[_Tensor]] = [[]]
        room = self._most or 0
        for tensor in tensors:
            if shards[-1] and tensor.nbytes > room:
                shards.append([])
                room = self._most or 0
            shards[-1].append(tensor)
            room -= tensor.nbytes
        placed: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            many = len(shards) > 1
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if many else "model.safetensors"
            placed |= {tensor.name: name for tensor in shard}
            with beside.file(name) as file:
                writing.file(file, shard, metadata | (notes if number == 1 else {}))
                file.finish()
        if len(shards) > 1:
            total = sum(tensor.nbytes for tensor in tensors)
            index = {"metadata": {"total_size": total}, "weight_map": placed}
            with beside.file("model.safetensors.index.json") as file:
                with file.stream() as stream:
                    stream.write(json.dumps(index, indent=2, ensure_ascii=False).encode("utf-8"))
                file.finish()
        return len(shards)


class _Writing:
    """Writes files, and tells how far it has come."""

    def __init__(self, content: Content, told: Progress, total: int) -> None:
        self._content, self._told, self._total, self._done = content, told, total, 0

    def file(self, beside: BesideFile, tensors: Sequence[_Tensor], metadata: dict[str, str]) -> None:
        """Write one file."""
        rows = [(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) for tensor in tensors]
        try:
            header, _ = encode_header(rows, metadata)
        except ValueError as error:
            raise StateError(
                "there are too many names, or too many small values, for the header of a safetensors file",
                expected=f"at most {MOST_HEADER_BYTES} bytes",
                found=str(error),
                todo="export some of it (--keys), the tensors alone for instance; or to another format",
            ) from error
        with beside.stream() as stream:
            stream.write(header)
            for _, pieces in self._content.stream([tensor.leaf for tensor in tensors]):
                for piece in pieces:
                    stream.write(piece)
                    self._done += piece.nbytes
                    self._told(self._done, self._total)


class _Names:
    """The names of tensors and values: the keys on the way to them, joined by dots, as in a module's state_dict."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._paths: dict[str, Path] = {}
        self._leaves: dict[int, str] = {}
        self.values: dict[str, Any] = {}
        self.own_values = 0
        self.empty: list[str] = []
        self._walk(content.tree, ())

    def has(self, name: str) -> bool:
        """True if a leaf or value has it."""
        return name in self._paths

    def tensors(self) -> tuple[list[_Tensor], dict[str, str]]:
        """The tensors in the order in which they are written, and second names of them."""
        content, ties = self._content, dict[str, str]()
        found: list[tuple[int, _Tensor]] = []
        for leaf, name in self._leaves.items():
            kind = content.types[leaf]
            if content.is_same(leaf):
                ties[name] = self._leaves[content.checkpoint.structure.aliases[leaf].owner]
                continue
            dtype = torch_dtype_name(content, leaf)
            if dtype not in NAMES or (dtype == "float4_e2m1fn_x2" and not kind.shape):
                raise UnsupportedLeafError(
                    "safetensors has no dtype for a leaf",
                    expected=", ".join(NAMES),
                    found=str(kind),
                    where=f"path {readable(self._paths[name])}",
                    todo="leave it out (--keys), or export to another format: --to torch, dcp or hdf5",
                )
            found.append((kind.itemsize, _Tensor(leaf, name, dtype, kind.shape, kind.nbytes)))
        # Wide elements first: so each begins at a multiple of its width. Otherwise in the order of the parts.
        found.sort(key=lambda pair: (-pair[0], pair[1].leaf))
        return [tensor for _, tensor in found], ties

    def _walk(self, node: SavedNode, path: Path) -> None:
        if isinstance(node, SavedArray):
            self._leaves[node.index] = self._name(path)
        elif isinstance(node, SavedValue):
            name, checkpoint = self._name(path), self._content.checkpoint
            self.values[name] = encode_leaf_value(checkpoint.target.values[node.index], readable(path))
            self.own_values += bool(checkpoint.structure.per_rank_values[node.index])
        elif isinstance(node, SavedBranch):
            if not node.children:
                self.empty.append(readable(path))
            if node.kind in COMPOSITES and node.kind != SUBCLASS:
                raise UnsupportedLeafError(
                    f"safetensors has no {node.kind} tensors",
                    where=f"path {readable(path)}",
                    todo="leave it out (--keys), or export to another format: --to torch or hdf5",
                )
            for key, child in zip(node.keys, node.children, strict=True):
                self._walk(child, path if node.kind == "object" else (*path, key))

    def _name(self, path: Path) -> str:
        name = ".".join(key if type(key) is str else readable((key,)) for key in path)
        if name in self._paths or name in (METADATA, FORMAT, VALUES) or not is_unicode(name):
            other = f"path {readable(self._paths[name])} has it" if name in self._paths else "it means something else"
            raise StateError(
                "a leaf cannot have the name that it would have in safetensors",
                found=f"{name!r}; {other}",
                where=f"path {readable(path)}",
                todo="leave one of them out (--keys), or export to another format: --to torch, dcp or hdf5",
            )
        self._paths[name] = path
        return name


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
