"""Recognizes paths that are not checkpoint directories, and suggests the right one."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from deeppart.access.hanging import storage_operation
from deeppart.errors import RestoreError
from deeppart.part import is_hex32, parse_part_file_name
from deeppart.storage import LINEAGE_NAME, MANIFEST_NAME

#: The step; session and sequence number may follow.
_STEP_DIRECTORY = re.compile(r"step-([0-9]{12,19})(-[0-9a-f]{32}-[0-9]+)?", re.ASCII)
_DCP_METADATA = ".metadata"
_ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A path that is not a checkpoint directory.

    Attributes:
        what: its kind, for messages: "this is the directory of one step".
        todo: advice on what to use instead.
        root: the checkpoint directory that contains it, if any.
        step: the step that was meant, if known.
    """

    what: str
    todo: str
    root: Path | None = None
    step: int | None = None


def recognize(path: Path) -> Mistaken | None:
    """Recognize a path that is not a checkpoint directory; None if it may be one, or cannot be read."""
    try:
        with storage_operation("stat", path):
            return _recognize(path.absolute())
    except OSError:  # reported when the path is used
        return None


def similar_directories(path: Path) -> list[Path]:
    """Sibling checkpoint directories with steps and a similar name."""
    path = path.absolute()
    try:
        with storage_operation("list", path.parent):
            names = [name for name in os.listdir(path.parent) if name != path.name]
            close = [path.parent / name for name in difflib.get_close_matches(path.name, names)]
            return [each for each in close if each.is_dir() and any(map(_is_step, os.listdir(each)))]
    except OSError:
        return []


def meant_todo(path: Path, otherwise: str) -> str:
    """Advice that names similar directories, or ``otherwise`` if there are none."""
    similar = similar_directories(path)
    return f"did you mean {' or '.join(map(str, similar))}?" if similar else otherwise


def no_such_directory(path: Path) -> RestoreError:
    """The error for a path that does not exist."""
    existing = next(each for each in path.absolute().parents if each.is_dir())
    otherwise = "pass the persistent_dir of the job; a relative path starts at the job's working directory"
    return RestoreError(
        "there is no such checkpoint directory",
        found=f"of this path, only {existing} exists",
        where=str(path.absolute()),
        todo=meant_todo(path, otherwise),
    )


def _recognize(path: Path) -> Mistaken | None:
    if path.is_file():
        return _file(path)
    if not path.is_dir():
        return None
    step = _step_of(path)
    if (path / MANIFEST_NAME).is_file() or step is not None:
        return _inside("this is the directory of one step", path.parent, step)
    if (path / _DCP_METADATA).is_file():
        return Mistaken(
            "this is a checkpoint of torch.distributed.checkpoint",
            _import_todo("dcp.load"),
        )
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return None
    if not names:
        return Mistaken("this directory is empty", "pass the persistent_dir of the job's configuration")
    if LINEAGE_NAME in names:
        return None
    if is_hex32(path.name) or (any(map(is_hex32, names)) and not any(map(_is_step, names))):
        return Mistaken(
            "this is a local_dir: the files of one node, not a checkpoint directory",
            f"pass the persistent_dir of the job; `deeppart ls DIR --local {path}` shows both",
        )
    return None


def _file(path: Path) -> Mistaken:
    if path.name == MANIFEST_NAME or parse_part_file_name(path.name) is not None:
        return _inside("this is a file of one step", path.parent.parent, _step_of(path.parent))
    try:
        with path.open("rb") as file:
            magic = file.read(len(_ZIP_MAGIC))
    except OSError:
        magic = b""
    if path.suffix == ".safetensors":
        return Mistaken("this is a safetensors file", _import_todo("safetensors.torch.load_file"))
    if magic == _ZIP_MAGIC or path.suffix in (".pt", ".pth", ".ckpt", ".bin"):
        return Mistaken("this looks like a file of torch.save", _import_todo("torch.load"))
    return Mistaken("this is a file, not a checkpoint directory", "pass the persistent_dir of the job")


def _import_todo(reader: str) -> str:
    """Advice for a checkpoint in a foreign format."""
    return f"load it with deeppart.interop.load or {reader}, or convert it to a step: `deeppart import PATH DIR`"


def _inside(what: str, root: Path, step: int | None) -> Mistaken:
    number = "..." if step is None else str(step)
    return Mistaken(what, f'pass the checkpoint directory and the step: load("{root}", step={number})', root, step)


def _step_of(path: Path) -> int | None:
    match = _STEP_DIRECTORY.fullmatch(path.name)
    return None if match is None else int(match[1])


def _is_step(name: str) -> bool:
    return _STEP_DIRECTORY.fullmatch(name) is not None
