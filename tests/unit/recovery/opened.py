"""Steps recovered into memory, as a restore finds them before it looks at the live state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppart.comm import Comm, SingleComm
from deeppart.model import Attempt
from deeppart.recovery import Ranks, Recovered, SavedStep, check_chunks, load_step, recover, take_inventory
from deeppart.recovery.absent import share_out_absent
from deeppart.recovery.distribute import Delivery
from deeppart.recovery.matching import Matched, check_step, match
from deeppart.recovery.narrowing import flatten_live, narrowed
from deeppart.recovery.saved import Documents
from deeppart.recovery.tables import PartIndexView, Tables, find_copies, share_tables
from deeppart.state.paths.globs import PerRank, PerRankPolicies
from deeppart.state.restore import Request
from deeppart.storage import PersistentLevel, PosixStore
from tests.fuzz.images import ManifestImage, PartImage

TIMEOUT_S = 100.0


@dataclass(frozen=True)
class Opened:
    """A step of which every part has been read and checked, by one of the ranks."""

    ranks: Ranks
    recovered: Recovered
    saved: SavedStep
    tables: Tables

    @property
    def indexes(self) -> list[PartIndexView]:
        return self.tables.indexes

    @property
    def delivery(self) -> Delivery:
        """A new one (collective)."""
        return Delivery(self.ranks, self.recovered, self.tables, find_copies(self.ranks, self.recovered, "copies"))

    @property
    def attempt(self) -> Attempt:
        return self.recovered.attempt

    @property
    def documents(self) -> Documents:
        return self.saved.documents

    def matched(self, state: Any, per_rank: PerRank = "strict") -> Matched:
        """As a restore does it (collective)."""
        saved, policies = self.saved, PerRankPolicies(per_rank)
        held = check_step(saved, self.tables, self.recovered, policies, self.ranks.comm)
        flat = flatten_live(state)
        _, choice = narrowed(saved, flat, Request(), None)
        share_out_absent(saved, flat, choice, self.ranks, "matching")
        return match(saved, held, flat, choice, policies, self.ranks.rank, cast=False)


def open_step(root: Path, comm: Comm | None = None, *, on_nodes: bool = False) -> Opened:
    """The newest step of a persistent directory, read by this process or by the ranks together.

    Args:
        on_nodes: each rank is taken for one of another node, whose memory the others cannot see.
    """
    comm = SingleComm() if comm is None else comm
    node_of = tuple(range(comm.size)) if on_nodes else (0,) * comm.size

    ranks = Ranks(comm, node_of, TIMEOUT_S)
    inventory = take_inventory(ranks, None, PersistentLevel(PosixStore(root)), "")

    def whole(recovered: Recovered) -> Recovered:
        check_chunks(ranks, recovered)
        return recovered

    recovered, _, told = recover(ranks, [inventory], None, whole)
    assert recovered is not None, told
    saved = load_step(ranks, recovered)
    return Opened(ranks, recovered, saved, share_tables(ranks, recovered, saved.documents.structure))


def edit_parts(root: Path, edit: Callable[[int, PartImage], object]) -> None:
    """Change the parts of the only step, by rank, and make all digests right."""
    (directory,) = root.glob("step-*")
    paths = sorted(directory.glob("part-*"))
    for rank, path in enumerate(paths):
        part = PartImage.parse(path.read_bytes())
        edit(rank, part)
        path.write_bytes(part.encode())
    manifest = ManifestImage.parse((directory / "manifest").read_bytes())
    manifest.name({path.name: path.read_bytes() for path in paths})
    (directory / "manifest").write_bytes(manifest.encode())
