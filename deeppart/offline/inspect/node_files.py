"""Verifying what lies on nodes: every byte of the parts, copies and parity under node-local directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import xxhash

from deeppart import access
from deeppart.errors import FormatError, StorageError
from deeppart.model import Attempt, Level, ParityIdentity, ParityMember, SuspectLeaf
from deeppart.part import FileSource, ParityReader, Signing, is_hex32
from deeppart.plan.redundancy import Stripes
from deeppart.plan.restart import StoredParity, StoredPart
from deeppart.storage import NodeContents, file_problem, is_copy, is_gone, parse_step_name, read_lineage, take_stock

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
    """The files in node-local directories, after every byte of them was read. Fields: docs/commands.md, verify."""

    json_also: ClassVar = ("state",)

    stocks: tuple[tuple[Path, NodeContents], ...] = field(metadata={"json": False})
    damage: tuple[NodeDamage, ...]
    files: int
    nbytes: int
    remarks: tuple[str, ...]
    unread: tuple[str, ...] = ()
    suspect: tuple[tuple[Attempt, tuple[SuspectLeaf, ...]], ...] = ()

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
    return files + [
        (Path(each.path), each.nbytes) for each in stock.parity if step in (None, each.identity.attempt.step)
    ]


def _is_of(path: Path, step: int | None) -> bool:
    """True if a file lies in a directory of a step; None for any."""
    key = parse_step_name(path.parent.name)
    return step is None or (key is not None and key.step == step)


#: [row, block] -> 16 digest bytes.
_Digests = list[list[bytes]]


def shares_of_other_bytes(parity: Sequence[StoredParity], parts: Sequence[StoredPart]) -> dict[Path, str]:
    """Parity files that were computed of other bytes than parts have, with what is wrong.

    Sound in itself, such a share gives nothing back, and nothing in it says so: the digests of all blocks that it was
    computed of are compared with those of the parts.
    """
    found: dict[Path, str] = {}
    known: dict[tuple[ParityIdentity, int], _Digests | None] = {}
    for share in parity:
        whole = replace(share.identity, place=0)
        try:
            with FileSource(share.path) as source:
                reader = ParityReader(source, where=share.path)
        except (FormatError, StorageError):  # a running job has retired it meanwhile
            continue
        for place, member in enumerate(share.identity.members):
            if (whole, place) not in known:
                known[whole, place] = _digests_of(share.identity, member, parts, reader.stripes)
            digests = known[whole, place]
            if digests is not None and (wrong := _first_wrong(reader, share.identity.place, place, digests)):
                found[Path(share.path)] = (
                    f"{share.path}: parity of other bytes than part {member.part} has, though both are sound: {wrong}"
                )
                break
    return found


def _digests_of(
    identity: ParityIdentity, member: ParityMember, parts: Sequence[StoredPart], stripes: Stripes
) -> _Digests | None:
    """Of the blocks of one member's part, filled up with zeros; None where the part is not there."""
    for part in parts:
        if (part.attempt, part.rank, part.index_digest) == (identity.attempt, member.part, member.index_digest):
            try:
                with FileSource(part.path) as source:
                    digests = [
                        [_digest(source, stripes, row, block, member.nbytes) for block in range(stripes.data_blocks)]
                        for row in range(stripes.rows)
                    ]
            except (FormatError, StorageError):
                continue
            if not is_gone(Path(part.path)):  # otherwise a running job may have written over it meanwhile
                return digests
    return None


def _digest(source: FileSource, stripes: Stripes, row: int, block: int, nbytes: int) -> bytes:
    memory = np.zeros(stripes.length(row), dtype=np.uint8)
    filled = stripes.filled(row, block, nbytes)
    if filled:
        source.read_into(stripes.start(row, block), memory[:filled].data)
    return xxhash.xxh3_128_digest(memory.data)


def _first_wrong(reader: ParityReader, keeper: int, place: int, digests: _Digests) -> str | None:
    """The first place at which a share and a member's part differ."""
    stripes = reader.stripes
    for index in range(stripes.tolerate):
        stripe = stripes.kept_stripe(keeper, index)
        for block in range(stripes.data_blocks):
            if stripes.source(stripe, block) != place:
                continue
            for row in range(stripes.rows):
                if reader.digests[row, index, block].tobytes() != digests[row][block]:
                    start = stripes.start(row, block)
                    return f"bytes {start} to {start + stripes.length(row)} of the part"
    return None


def parts_without_parity(parity: Sequence[StoredParity], parts: Sequence[StoredPart]) -> list[str]:
    """A line about each part that parity in reach was computed of, but not as the part is encoded now.

    It may have been restored from the persistent level, and is as good as ever; parity cannot tell.
    """
    members: dict[tuple[Attempt, int], set[str]] = {}
    for share in parity:
        for member in share.identity.members:
            if member.part is not None:
                members.setdefault((share.identity.attempt, member.part), set()).add(member.index_digest)
    return [
        f"{part.path}: sound, but changed since its parity was computed, which does not protect it: the next "
        "checkpoint is protected again"
        for part in parts
        if part.level == Level.LOCAL
        and part.index_digest not in members.get((part.attempt, part.rank), {part.index_digest})
    ]
