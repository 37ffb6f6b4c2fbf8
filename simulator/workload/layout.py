"""Layouts of ranks: data, tensor, pipeline and expert parallelism, and sharding.

Ranks are numbered as in Megatron-LM: tensor parallelism is innermost, then data, then pipeline parallelism. Within data
parallelism, shards are adjacent and replicas further apart, as in hybrid sharding over a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import meant_todo
from deeppart.partition import IntArray

#: The keys of a layout, for messages.
KEYS = ("tp=N", "pp=N", "ep=N", "fsdp", "hsdp=N", "zero1")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a model over ranks; the remaining dimension is data parallel."""

    tensor: int = 1  # ranks that divide each matrix
    pipeline: int = 1  # stages that divide the layers
    expert: int = 1  # data-parallel ranks that divide the experts of a layer
    sharded: int = 1  # data-parallel ranks that divide every leaf; 1 for none, 0 for all data-parallel ranks
    #: true if the optimizer's state is divided among all data-parallel ranks (ZeRO stage 1: S. Rajbhandari et al.,
    #: ZeRO, SC 2020).
    optimizer_sharded: bool = False

    def fits(self, ranks: int) -> bool:
        """True if this layout is possible on this number of ranks."""
        data, rest = divmod(ranks, self.tensor * self.pipeline)
        return data > 0 and not rest and data % max(self.sharded or data, self.expert) == 0

    def at(self, ranks: int) -> RankGrid:
        """The layout on this number of ranks."""
        block = self.tensor * self.pipeline
        data = ranks // block
        if not self.fits(ranks):
            raise ConfigError(
                "the layout does not fit the number of ranks",
                expected=f"a multiple of {block * max(1, self.sharded, self.expert)} ranks for {self}",
                found=str(ranks),
                where="--ranks",
                todo="choose another number of ranks, or other numbers behind @ in --state",
            )
        shards = self.sharded or data
        return RankGrid(self.pipeline, data // shards, shards, self.tensor, self.expert, self.optimizer_sharded)

    def __str__(self) -> str:
        sizes = {"tp": self.tensor, "pp": self.pipeline, "ep": self.expert}
        parts = [f"{name}={size}" for name, size in sizes.items() if size > 1]
        parts += ["fsdp"] if self.sharded == 0 else [f"hsdp={self.sharded}"] if self.sharded > 1 else []
        parts += ["zero1"] if self.optimizer_sharded else []
        return ",".join(parts) or "data parallel"


@dataclass(frozen=True, slots=True)
class RankGrid:
    """A layout on a number of ranks. The number of data-parallel ranks is ``replicas * shards``."""

    stages: int  # stages, replicas, shards, tensor, expert: sizes of the dimensions
    replicas: int
    shards: int
    tensor: int
    expert: int
    optimizer_sharded: bool  # see :class:`Layout`

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.stages * self.data * self.tensor

    @property
    def data(self) -> int:
        """Data-parallel ranks."""
        return self.replicas * self.shards

    def ranks_of(self, stage: int, expert: int | None, shards: int, *, divided: bool) -> IntArray:
        """int64[shards, tensor-parallel ranks or 1, ranks that hold the same]: the ranks that divide leaves."""
        first = stage * self.data * self.tensor
        ranks: IntArray = np.arange(first, first + self.data * self.tensor, dtype=np.int64)
        ranks = ranks.reshape(self.data, self.tensor)
        if expert is not None:
            ranks = ranks.reshape(self.data // self.expert, self.expert, self.tensor)[:, expert, :]
        ranks = ranks.reshape(len(ranks) // shards, shards, self.tensor)  # replica, shard, tensor
        if divided:
            return ranks.transpose(1, 2, 0)
        return ranks.transpose(1, 0, 2).reshape(shards, 1, -1)


def read_layout(text: str) -> Layout:
    """Parse a layout such as ``tp=8,pp=4,zero1``."""
    found: dict[str, int] = {}
    for item in text.split(","):
        key, separator, value = item.strip().partition("=")
        plain = key in ("fsdp", "zero1") and not separator
        sized = key in ("tp", "pp", "ep", "hsdp") and value.isdigit() and int(value) > 0
        if not (plain or sized) or key in found:
            raise _refusal(f"{item!r} in {text!r}", key)
        found[key] = int(value) if sized else 0
    if "fsdp" in found and "hsdp" in found:
        raise _refusal("both fsdp and hsdp")
    sharded = 0 if "fsdp" in found else found.get("hsdp", 1)
    if found.get("ep", 1) > 1 and sharded != 1:
        raise _refusal("ep together with sharding of all leaves, which is not modelled")
    return Layout(
        found.get("tp", 1), found.get("pp", 1), found.get("ep", 1), sharded, "zero1" in found and sharded == 1
    )


def _refusal(found: str, key: str = "") -> ConfigError:
    names = [known.partition("=")[0] for known in KEYS]
    return ConfigError(
        "the layout cannot be read",
        expected="after @, separated by commas, each once: " + ", ".join(KEYS),
        found=found,
        where="--state",
        todo=meant_todo(
            "" if key in names else key, names, "write it as for example in llama3-70b+adam-mixed@tp=8,pp=4"
        ),
    )
