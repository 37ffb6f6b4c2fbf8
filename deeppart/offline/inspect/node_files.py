"""Verifying what lies on nodes: every byte of the parts, copies and parity under node-local directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.errors import FormatError
from deeppart.offline.inspect.parity import parts_without_parity, shares_of_other_bytes
from deeppart.part import Signing, is_hex32
from deeppart.storage.lineage import is_copy, read_lineage
from deeppart.storage.node import NodeContents, file_problem, take_stock
from deeppart.storage.steps import is_gone, parse_step_directory_name

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class NodeDamage:
    """A file on a node that is not sound.

    Attributes:
        directory: the node-local directory that was given.
        path: the file.
        message: the fault.
    """

    directory: Path
    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files in node-local directories, after every byte of them was read.

    Attributes:
        stocks: per directory, what can be opened.
        damage: the files that are not sound.
        files, nbytes: how much was read.
        remarks: lines about files under wrong names, and directories without any of this lineage.
        unread: lines about directories that could not be looked at: what is in them may be sound or not.
    """

    stocks: tuple[tuple[Path, NodeContents], ...]
    damage: tuple[NodeDamage, ...]
    files: int
    nbytes: int
    remarks: tuple[str, ...]
    unread: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """One of "damaged", "not read", if some of it could not be, and "sound"."""
        return "damaged" if self.damage else "not read" if self.unread else "sound"


def lineage_on_nodes(root: Path) -> str:
    """The lineage of a checkpoint directory, which says what on nodes belongs to it."""
    lineage = read_lineage(root)
    if lineage is None:
        raise FormatError(
            "the directory has no lineage record, so nothing tells which node-local files belong to it",
            where=str(root),
            todo="leave out --local",
        )
    if is_copy(root):
        raise FormatError(
            "the directory is a copy that no job has used yet: what lies on nodes belongs to the original",
            found=f"lineage {lineage}",
            where=str(root),
            todo="leave out --local, or give the original",
        )
    return lineage


def stock_of(directory: Path, lineage: str, signing: Signing | None) -> NodeContents:
    """The files of a lineage under a node-local directory that a person has named, who may have mistyped it."""
    found = NodeContents()
    try:
        names = access.directories_in(directory)
    except OSError as error:
        found.not_listed(f"{directory}: {error.strerror}")
        return found
    if lineage not in names:
        others = sum(map(is_hex32, names))
        hint = f" ({others} of other directories)" if others else ""
        found.remark(f"{directory}: no parts that belong to this checkpoint directory{hint}")
        return found
    return take_stock(directory, lineage, signing)


def verify_nodes(
    directories: Sequence[Path],
    lineage: str,
    signing: Signing | None,
    step: int | None = None,
    advance: Advance = lambda nbytes: None,
) -> NodeFiles:
    """Read everything that a lineage has under node-local directories."""
    stocks, damage, remarks, unread = [], [], [], []
    files = nbytes = 0
    for directory in directories:
        stock = stock_of(directory, lineage, signing)
        stocks.append((directory, stock))
        remarks += stock.remarks
        unread += stock.unlisted
        unsound = [path for path in stock.damaged if _is_of(path, step)]
        lines = {path: line for path in unsound for line in stock.problems if line.startswith(str(path))}
        damage += [NodeDamage(directory, path, lines.get(path, "cannot be opened")) for path in unsound]
        for path, length in _sound(stock, step):
            files, nbytes = files + 1, nbytes + length
            problem = file_problem(path, signing, advance)
            if problem is not None:
                damage.append(NodeDamage(directory, path, problem))
    damage += _of_other_bytes(stocks, {str(each.path) for each in damage}, step)
    damage = [each for each in damage if not is_gone(each.path)]  # a running job may have retired it meanwhile
    parts = [each for _, stock in stocks for each in stock.parts if step in (None, each.attempt.step)]
    remarks += parts_without_parity([each for _, stock in stocks for each in stock.parity], parts)
    return NodeFiles(tuple(stocks), tuple(damage), files, nbytes, tuple(remarks), tuple(unread))


def _of_other_bytes(
    stocks: Sequence[tuple[Path, NodeContents]], unsound: set[str], step: int | None
) -> list[NodeDamage]:
    """Parity that does not belong to the parts that are in reach."""
    parts = [part for _, stock in stocks for part in stock.parts if part.path not in unsound]
    shares = {
        Path(each.path): directory
        for directory, stock in stocks
        for each in stock.parity
        if each.path not in unsound and step in (None, each.identity.attempt.step)
    }
    parity = [each for _, stock in stocks for each in stock.parity if Path(each.path) in shares]
    wrong = shares_of_other_bytes(parity, parts)
    return [NodeDamage(shares[path], path, message) for path, message in wrong.items()]


def _sound(stock: NodeContents, step: int | None) -> list[tuple[Path, int]]:
    files = [(Path(part.path), part.nbytes) for part in stock.parts if step in (None, part.attempt.step)]
    for base in stock.bases:
        path = Path(base.path)
        if _is_of(path, step):
            files.append((path, base.nbytes))
    return files + [
        (Path(each.path), each.nbytes) for each in stock.parity if step in (None, each.identity.attempt.step)
    ]


def _is_of(path: Path, step: int | None) -> bool:
    """True if a file lies in a directory of a step; None for any."""
    key = parse_step_directory_name(path.parent.name)
    return step is None or (key is not None and key.step == step)
