"""Records of what survives, short to write: what the tests of the planner share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from deeppart.model import Attempt, ParityIdentity, ParityMember, PartRecord
from deeppart.plan.restart import Candidate, Committed, Inventory, StoredParity, StoredPart

LINEAGE = "a" * 32


def attempt(step: int, *, ranks: int = 4, session: str = "1", sequence: int = 0) -> Attempt:
    return Attempt(LINEAGE, session * 32, sequence, step, ranks)


def digest(part: int, of: Attempt) -> str:
    return f"{part + 1:x}".rjust(8, of.session[0]) * 4


def stored(of: Attempt, part: int, *, path: str = "", nbytes: int = 1000, index_digest: str = "") -> StoredPart:
    path = path or f"/local/{of.session[0]}/{of.step}/{part}"
    return StoredPart("local", of, part, path, nbytes, index_digest or digest(part, of))


def committed(of: Attempt, *, nbytes: int = 1000) -> Committed:
    records = [
        PartRecord(part, f"part-{part}", nbytes, nbytes, "0" * 32, digest(part, of)) for part in range(of.world_size)
    ]
    return Committed(of, f"/ckpt/{of.step}", tuple(records))


def inventory(*found: list[StoredPart], node_of: tuple[int, ...] | None = None, commits: object = ()) -> Inventory:
    nodes = tuple(range(len(found))) if node_of is None else node_of
    lists = [*found, *([] for _ in range(len(nodes) - len(found)))]
    return Inventory(tuple(tuple(parts) for parts in lists), nodes, tuple(commits))  # type: ignore[arg-type]


def steps(outlook: object) -> list[int]:
    return [candidate.attempt.step for candidate in outlook.candidates]  # type: ignore[attr-defined]


def copied(of: Attempt, part: int, *, path: str = "", index_digest: str = "") -> StoredPart:
    path = path or f"/partner/{of.session[0]}/{of.step}/{part}"
    return StoredPart("partner", of, part, path, 1000, index_digest or digest(part, of))


def share(
    of: Attempt,
    place: int,
    *,
    parts: Sequence[int | None] = (0, 1, 2, 3),
    tolerate: int = 1,
    path: str = "",
    other: Mapping[int, str] = MappingProxyType({}),
) -> StoredParity:
    """The parity that the member at ``place`` stores; ``other``: digests of parts that were others when encoded."""
    members = [
        ParityMember(None, 0, "") if part is None else ParityMember(part, 1000, other.get(part, digest(part, of)))
        for part in parts
    ]
    path = path or f"/parity/{of.session[0]}/{of.step}/{place}"
    return StoredParity(ParityIdentity(of, tuple(members), tolerate, 64, place), path, 9000)


def shares(of: Attempt, lost: Collection[int] = (), **options: Any) -> list[list[StoredParity]]:
    """Per rank, its share of the one set of four nodes."""
    return [[] if place in lost else [share(of, place, **options)] for place in range(4)]


def parts_left(of: Attempt, lost: Collection[int] = ()) -> list[list[StoredPart]]:
    """Per rank, its part, on nodes of one rank each."""
    return [[] if part in lost else [stored(of, part)] for part in range(of.world_size)]


def protected(
    found: Sequence[list[StoredPart]],
    parity: Sequence[list[StoredParity]] = (),
    *,
    node_of: tuple[int, ...] | None = None,
    commits: object = (),
) -> Inventory:
    return replace(inventory(*found, node_of=node_of, commits=commits), parity=tuple(map(tuple, parity)))


def levels(candidate: Candidate) -> list[list[str]]:
    return [[source.level for source in places] for places in candidate.sources]


PARITY_NAME = "parity set of parts 0, 1, 2, 3"
