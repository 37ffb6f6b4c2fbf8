"""What one run of the benchmark is to do: made by the driver, read by every rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

#: Everything that can be measured, in the order of a round.
CONTESTANTS = (
    "limits",
    "deeppart",
    "deeppart lazy",
    "deeppart verify",
    "deeppart tensor",
    "deeppart auto",
    "torch.save",
    "safetensors",
    "ZipNN",
    "dcp",
    "dcp zstd",
    "dcp.async_save",
    "torchsnapshot",
    "Orbax",
)
#: States that can be saved: BERT-large by shapes with its Adam state, its parameters alone, tensors of 4 KiB.
STATES = ("bert-large+adam", "bert-large", "small")


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        ranks: MPI ranks, each with a whole replica of the state.
        state: one of :data:`STATES`.
        scale: share of its bytes; 1 is 4.02 GB with Adam, 1.34 GB without, 0.41 GB in 100,000 small tensors.
        layers: how many of its 24 layers.
        repetitions: timed rounds; one more comes first and is not counted.
        disk: empty directory on the disk, which the run removes again.
        tmpfs: the same for the local level, in memory.
        contestants: what to measure, some of :data:`CONTESTANTS`.
        seed: of the random state.
        node_size: ranks taken for a node; 0: by their names.
    """

    ranks: int
    state: str
    scale: float
    layers: int
    repetitions: int
    disk: str
    tmpfs: str
    contestants: tuple[str, ...]
    seed: int = 1
    node_size: int = 0

    def save(self, path: Path) -> None:
        """Write the settings for the ranks to read."""
        path.write_text(self.as_json(), encoding="utf-8")

    def as_json(self) -> str:
        """What :meth:`read` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Read what :meth:`save` wrote."""
        document = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**document, "contestants": tuple(document["contestants"])})
