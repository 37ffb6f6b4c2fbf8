"""The checkpoint workloads of MLPerf Storage: four states, and what each rank of the benchmark writes of them.

The benchmark (github.com/mlcommons/storage, v2.0: Submission_guidelines.md, table 2, and configs/dlio/workload/) has
Llama 3 in four sizes, float16 parameters and an Adam in float32. In the closed division the numbers of processes are
fixed. Its sizes are in units of 2^30 bytes, which it calls GB.

DLIO (github.com/argonne-lcf/dlio_benchmark, checkpointing/base_checkpointing.py) makes the checkpoints: each rank
writes three optimizer tensors, an equal part of all parameters each, and three of 5 * hidden elements. With ZeRO stage
3 each rank writes its part of the model, with stage 1 only the first of the data-parallel ranks do; norms are written
by all tensor-parallel ranks. So its files have a few bytes more than the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from deeppart.partition.cost import IntArray

from .shapes import Model, llama

_SOURCE = "MLCommons, MLPerf Storage v2.0, Submission_guidelines.md, table 2"
_VOCABULARY = 128256
_ITEM, _OPTIMIZER_ITEM, _OPTIMIZER_TENSORS, _SMALL = 2, 4, 3, 5


@dataclass(frozen=True, slots=True)
class Workload:
    """One of the benchmark's models, in its closed division.

    Attributes:
        name: as a state.
        layers, hidden, feed_forward, heads, key_heads: of the model.
        tensor, pipeline, data: parallel ranks of each kind.
        zero: its stage, 1 or 3.
        processes: that write a checkpoint; in the open division a multiple.
        published: the size that the benchmark's table gives, in its GB of 2^30 bytes.
    """

    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_heads: int
    tensor: int
    pipeline: int
    data: int
    zero: int
    published: float

    @property
    def processes(self) -> int:
        """That write a checkpoint in the closed division."""
        return self.tensor * self.pipeline * self.data

    @property
    def specification(self) -> str:
        """What stands behind the model's name in a state: dtype, optimizer, layout."""
        sizes = [f"tp={self.tensor}"] if self.tensor > 1 else []
        sizes += [f"pp={self.pipeline}"] if self.pipeline > 1 else []
        return ":fp16+adam-mixed@" + ",".join([*sizes, "fsdp" if self.zero == 3 else "zero1"])

    def model(self) -> Model:
        """Its parameters."""
        shape = (self.layers, self.hidden, self.feed_forward, self.heads, self.key_heads, _VOCABULARY)
        return Model(self.name, tuple(llama(*shape)), self.layers, 0, _SOURCE)

    def rank_bytes(self) -> IntArray:
        """int64[processes], the bytes that each rank of the benchmark writes."""
        parts = self.data if self.zero == 3 else 1
        keys = self.hidden // self.heads * self.key_heads
        embedding = _VOCABULARY * self.hidden
        norms = (self.hidden, self.hidden)
        matrices = (
            self.hidden * (self.hidden + 2 * keys),
            self.hidden * self.hidden,
            2 * self.hidden * self.feed_forward,
            self.hidden * self.feed_forward,
        )
        elements = 2 * embedding + self.hidden + (sum(norms) + sum(matrices)) * self.layers
        layer = sum(norm // parts for norm in norms) + sum(matrix // self.tensor // parts for matrix in matrices)
        ends = embedding // self.tensor // parts
        # The first stages have a layer more where the layers cannot be divided evenly; DLIO numbers ranks tensor
        # parallelism first, then pipeline, then data parallelism.
        each, more = divmod(self.layers, self.pipeline)
        stages = np.array([(each + (stage < more)) * layer for stage in range(self.pipeline)], dtype=np.int64)
        stages[0] += ends
        stages[-1] += ends + self.hidden // parts
        model = np.tile(np.repeat(stages, self.tensor), self.data) * _ITEM
        if self.zero != 3:
            model[self.tensor * self.pipeline :] = 0
        optimizer = _OPTIMIZER_TENSORS * (elements // self.processes + _SMALL * self.hidden) * _OPTIMIZER_ITEM
        found: IntArray = model + optimizer
        return found


#: Name of the state -> the workload.
WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        each.name: each
        for each in (
            Workload("mlperf-8b", 32, 4096, 14336, 32, 8, 1, 1, 8, 3, 105),
            Workload("mlperf-70b", 80, 8192, 28672, 128, 8, 8, 1, 8, 3, 912),
            Workload("mlperf-405b", 126, 16384, 53248, 128, 8, 8, 32, 2, 1, 5290),
            Workload("mlperf-1t", 128, 25872, 98304, 192, 32, 8, 64, 2, 1, 18000),
        )
    }
)
