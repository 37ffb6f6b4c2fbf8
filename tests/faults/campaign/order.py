"""What the runner tells the ranks: one life, and where everything is. Travels as JSON."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import deeppart
from tests.faults.campaign.records import FileFault, Incident, Kill, Leaf, Life, RunningFault, Scenario, StorageFault

#: `local_dir`, the same path on all nodes, as on clusters; each rank works in a directory of its node.
LOCAL = "/proc/self/cwd/disk"


@dataclass(frozen=True, slots=True)
class Order:
    """One life to be played.

    Attributes:
        scenario: which it belongs to.
        number: of the life in it.
        base: directory of the scenario.
        next_step: the smallest step that was never used.
        members: ranks of the serving job that play it, in rank order.
        broken: how the library is to be broken, or "".
        stopped: process ids of ranks of earlier lives that were left behind.
    """

    scenario: Scenario
    number: int
    base: Path
    next_step: int
    members: tuple[int, ...]
    broken: str
    stopped: tuple[int, ...] = ()

    @property
    def life(self) -> Life:
        return self.scenario.lives[self.number]

    @property
    def persistent(self) -> Path:
        return self.base / "persistent"

    @property
    def away(self) -> Path:
        """Where persistent_dir is while it is not there."""
        return self.base / "away"

    def node(self, number: int) -> Path:
        """A node's storage."""
        return self.base / "nodes" / f"node{number}"

    def seen_from(self, number: int) -> Path:
        """The directory in which :attr:`LOCAL` is a node's storage."""
        place = self.base / "seen" / f"node{number}"
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (place / "disk").symlink_to(self.node(number))
        return place

    def record_of(self, rank: int) -> Path:
        """Where a rank writes down what happens."""
        return self.base / f"record-{self.number}-{rank}"

    def root_of(self, fault: StorageFault) -> Path:
        """The directory below which storage operations are refused."""
        if fault.root == "persistent":
            return self.persistent
        node = self.node(fault.rank // self.life.node_size)
        if fault.root == "node":
            return node
        lineage = json.loads((self.persistent / "deeppart.json").read_bytes())["lineage"]
        return node / str(lineage) / fault.root

    def config(self) -> deeppart.Config:
        """The library's configuration in this life, for a rank that works in :meth:`seen_from` its node."""
        life = self.life
        return deeppart.Config(
            persistent_dir=str(self.persistent),
            local_dir=LOCAL if life.every["local"] else None,
            every=life.every,
            keep=life.keep,
            compression=life.compression,
            capture=life.capture,
            on_busy=life.on_busy,
            node_size=life.node_size,
            parity_group=life.group,
            parity_tolerate=life.tolerate,
            scrub_bandwidth=20e6 if life.scrub else None,
            timeout=life.timeout_s,
            status="none",  # faults meet the operations of checkpoints by their number
        )

    def save(self, path: Path) -> None:
        """Write it so that readers see all of it or nothing."""
        document = asdict(self) | {"base": str(self.base)}
        part = path.with_suffix(".new")
        part.write_text(json.dumps(document))
        part.rename(path)

    @classmethod
    def load(cls, path: Path) -> Order:
        """Inverse of :meth:`save`."""
        document = json.loads(path.read_text())
        scenario = document.pop("scenario")
        lives = tuple(_life(each) for each in scenario.pop("lives"))
        leaves = tuple(Leaf(**each) for each in scenario.pop("leaves"))
        whole = Scenario(**scenario, leaves=leaves, lives=lives)
        document |= {"base": Path(document["base"]), "members": tuple(document["members"])}
        document["stopped"] = tuple(document["stopped"])
        return cls(scenario=whole, **document)


def _life(document: dict[str, Any]) -> Life:
    document["before"] = tuple(FileFault(**each) for each in document["before"])
    document["storage"] = tuple(StorageFault(**each | {"only": tuple(each["only"])}) for each in document["storage"])
    document["running"] = tuple(RunningFault(**each) for each in document["running"])
    document["kill"] = None if document["kill"] is None else Kill(**document["kill"])
    document["incident"] = None if document["incident"] is None else Incident(**document["incident"])
    return Life(**document)
