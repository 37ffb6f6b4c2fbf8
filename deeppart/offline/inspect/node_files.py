"""Verifies every byte of the parts, copies and parity in node-local directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from deeppart import access
from deeppart.errors import FormatError
from deeppart.model import Attempt, SuspectLeaf
from deeppart.part import Signing, is_hex32, parse_step_name
from deeppart.storage import NodeContents, Note, file_problem, is_copy, is_gone, read_lineage, take_stock

#: Node-local directories and their contents.
Stocks = Sequence[tuple[Path, NodeContents]]


@dataclass(frozen=True, slots=True)
class NodeDamage:
    """A damaged file on a node.

    Attributes:
        directory: the given node-local directory.
        path: the file.
        message: the damage.
    """

    directory: Path
    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files in node-local directories, after every byte of them was read. Fields: docs/commands.md, verify."""

    json_also: ClassVar = ("state",)

    stocks: Stocks = field(metadata={"json": False})
    damage: tuple[NodeDamage, ...]
    files: int
    nbytes: int
    remarks: tuple[str, ...]
    unread: tuple[str, ...] = ()
    suspect: tuple[tuple[Attempt, tuple[SuspectLeaf, ...]], ...] = ()

    @property
    def state(self) -> str:
        """The result: "damaged", "not read" (if some files could not be read), or "sound"."""
        return "damaged" if self.damage else "not read" if self.unread else "sound"


def lineage_of(root: Path, *, with_nodes: bool = True) -> str:
    """The lineage of a checkpoint directory, by which files on nodes belong to it."""
    lineage = read_lineage(root)
    if lineage is None:
        raise FormatError(
            "no job has checkpointed in this directory: it has no lineage record, by which files on nodes are known",
            where=str(root),
            todo="give the persistent_dir of a job" + (", or leave out --local" if with_nodes else ""),
        )
    if with_nodes and is_copy(root):
        raise FormatError(
            "the directory is a copy that no job has used yet: what lies on nodes belongs to the original",
            found=f"lineage {lineage}",
            where=str(root),
            todo="leave out --local, or give the original",
        )
    return lineage


def look_at_nodes(root: Path, directories: Sequence[Path], signing: Signing | None) -> Stocks:
    """List the files of a checkpoint directory in node-local directories, whose paths a user may have mistyped."""
    lineage = lineage_of(root) if directories else ""
    return [(directory, _stock_of(directory, lineage, signing)) for directory in directories]


def _stock_of(directory: Path, lineage: str, signing: Signing | None) -> NodeContents:
    found = NodeContents()
    try:
        names = access.names_in(directory)
    except OSError as error:
        found.notes.append(Note("unlisted", f"{directory}: {error.strerror}"))
        return found
    if lineage not in names:
        others = sum(map(is_hex32, names))
        hint = f" ({others} of other directories)" if others else ""
        found.notes.append(Note("remark", f"{directory}: no parts that belong to this checkpoint directory{hint}"))
        return found
    return take_stock(directory, lineage, signing)


def verify_nodes(stocks: Stocks, signing: Signing | None, step: int | None = None) -> NodeFiles:
    """Read all files that were found in node-local directories."""
    damage, remarks, unread = list[NodeDamage](), list[str](), list[str]()
    files = nbytes = 0
    for directory, stock in stocks:
        remarks += stock.lines("remark")
        unread += stock.lines("unlisted")
        unsound = [(note.path, note.text) for note in stock.notes if note.path is not None]
        damage += [NodeDamage(directory, path, text) for path, text in unsound if _is_of(path, step)]
        for path, length in _sound(stock, step):
            files, nbytes = files + 1, nbytes + length
            problem = file_problem(path, signing)
            if problem is not None:
                damage.append(NodeDamage(directory, path, problem))
    damage = [each for each in damage if not is_gone(each.path)]  # a running job may have retired it
    return NodeFiles(stocks, tuple(damage), files, nbytes, tuple(remarks), tuple(unread))


def _sound(stock: NodeContents, step: int | None) -> list[tuple[Path, int]]:
    files = [(Path(part.path), part.nbytes) for part in stock.parts if step in (None, part.attempt.step)]
    return files + [
        (Path(each.path), each.nbytes) for each in stock.parity if step in (None, each.identity.attempt.step)
    ]


def _is_of(path: Path, step: int | None) -> bool:
    """True if a file is in a directory of ``step`` (None: of any step)."""
    key = parse_step_name(path.parent.name)
    return step is None or (key is not None and key.step == step)
