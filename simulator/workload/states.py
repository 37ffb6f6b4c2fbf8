"""States by shape: what a training job holds on so many ranks, and how the library's partitioner shares it out.

``bert-large+adam`` is a model with an optimizer, ``llama3-405b+adam-mixed@tp=8,pp=16`` one spread over ranks. Leaves
are sizes without tensors. Ranks fall into groups that hold the same leaves; groups that hold leaves of equal sizes
are cut alike, so one of them is partitioned and the others follow, which is what makes a trillion parameters over
65,536 ranks a matter of seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import LeafSpec
from deeppart.partition import Leaves, partition
from deeppart.partition.cost import IntArray

from .layout import Layout, RankGrid, read_layout
from .shapes import Model, Parameter, model_named

ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
_SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
#: Optimizer -> dtype of the model's parameters where none is named, and dtypes of what is kept for each parameter.
#: Adam keeps two moments and a step count (a float32 tensor of one element, as torch.optim.Adam); with mixed
#: precision a float32 copy of the parameters too.
OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "": ("float32", ()),
    "adam": ("float32", (("exp_avg", "float32"), ("exp_avg_sq", "float32"))),
    "adam-mixed": (
        "bfloat16",
        (("master", "float32"), ("exp_avg", "float32"), ("exp_avg_sq", "float32")),
    ),
    "sgd-momentum": ("float32", (("momentum_buffer", "float32"),)),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One leaf of the whole state, before any division.

    Attributes:
        parameter: the parameter to which it belongs.
        path: in the state.
        dtype: torch's name.
        elements: how many.
        optimizer: true if it is the optimizer's.
    """

    parameter: Parameter
    path: str
    dtype: str
    elements: int
    optimizer: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of ranks that hold leaves of equal sizes: within a group the same bytes, from group to group others.

    Attributes:
        leaves: the leaves of each group.
        ranks: int64[groups, members].
        bytes_by_dtype: bytes of the leaves.
    """

    leaves: Leaves
    ranks: IntArray
    bytes_by_dtype: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The share of each rank.

    Attributes:
        nbytes: int64[ranks].
        spans: int64[ranks].
        split: how many leaves are in more than one share.
        by_dtype: share of all bytes that each dtype has; adds up to 1.
    """

    nbytes: IntArray
    spans: IntArray
    split: int
    by_dtype: dict[str, float]


@dataclass(frozen=True, slots=True)
class State:
    """A state, on any number of ranks.

    Attributes:
        name: the name by which it was asked for.
        tensors: its leaves, before any division.
        layers: that a pipeline can divide.
        experts: per layer.
        layout: how it is spread.
        source: the source of its shapes.
        own: leaves that every rank has for itself, such as states of random number generators.
    """

    name: str
    tensors: tuple[Tensor, ...]
    layers: int
    experts: int
    layout: Layout
    source: str
    own: tuple[Tensor, ...] = ()
    _known: dict[int, tuple[Groups, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _cut: dict[tuple[object, ...], tuple[Leaves, dict[str, int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def nbytes(self) -> int:
        """Bytes of everything, each once."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Elements that are not the optimizer's."""
        return sum(tensor.elements for tensor in self.tensors if not tensor.optimizer)

    def on(self, ranks: int) -> tuple[Groups, ...]:
        """The leaves of each group of ranks, smaller groups first: in this order they are partitioned.

        Raises:
            ConfigError: the layout does not fit that number of ranks.
        """
        if ranks not in self._known:
            groups = tuple(self._groups(self.layout.at(ranks)))
            self._known[ranks] = tuple(sorted(groups, key=lambda group: group.ranks.shape[1]))
        return self._known[ranks]

    def shares(self, ranks: int, strategy: str = "deeppart", kappa: float | None = None) -> Shares:
        """Share the state out with the library's partitioner.

        Raises:
            ConfigError: the layout does not fit, or no such strategy.
        """
        load = np.zeros(ranks, dtype=np.int64)
        nbytes, spans, split = np.zeros_like(load), np.zeros_like(load), 0
        by_dtype: dict[str, int] = {}
        for groups in self.on(ranks):
            carried = load[groups.ranks]
            for dtype, count in groups.bytes_by_dtype.items():
                by_dtype[dtype] = by_dtype.get(dtype, 0) + count * len(groups.ranks)
            # One plan serves all groups whose members carry the same already: all, unless sets overlap unevenly.
            kinds, kind_of = np.unique(carried, axis=0, return_inverse=True)
            for kind, preload in enumerate(kinds):
                members = groups.ranks[kind_of.ravel() == kind]
                plan = partition(groups.leaves, groups.ranks.shape[1], kappa, strategy, preload)
                nbytes[members] += plan.bytes_per_rank()
                spans[members] += plan.spans_per_rank()
                load[members] += plan.bytes_per_rank() + plan.kappa * plan.spans_per_rank()
                split += plan.split_leaves() * len(members)
        total = sum(by_dtype.values())
        shares = {dtype: count / total for dtype, count in by_dtype.items()} if total else {}
        return Shares(nbytes, spans, split, shares)

    def _groups(self, world: RankGrid) -> Iterator[Groups]:
        if self.own:
            sizes = [tensor.elements for tensor in self.own]
            yield self._group(("own",), self.own, sizes, np.arange(world.ranks, dtype=np.int64)[:, None])
        kinds: dict[tuple[int, bool, int | None, bool], list[Tensor]] = {}
        for tensor in self.tensors:
            parameter = tensor.parameter
            stage = world.stage_of(parameter.layer, self.layers)
            expert = None
            if parameter.expert is not None and world.expert > 1:
                expert = parameter.expert * world.expert // self.experts
            divided = parameter.divided and world.tensor > 1 and tensor.elements > 1
            sharded_alone = tensor.optimizer and world.optimizer_sharded
            kinds.setdefault((stage, divided, expert, sharded_alone), []).append(tensor)
        for (stage, divided, expert, optimizer), tensors in kinds.items():
            ranks = world.groups(stage, divided=divided, expert=expert, optimizer=optimizer)
            kind = (world.stages, stage, divided, expert, optimizer)
            among = world.tensor if divided else 1
            if world.shards > 1 and not optimizer:
                yield from self._by_rows(kind, tensors, world.shards, among, ranks)
                continue
            divisor = world.divisor(divided=divided, expert=expert is not None, optimizer=optimizer)
            sizes = [-(-tensor.elements // divisor) for tensor in tensors]
            yield self._group((*kind, divisor), tensors, sizes, ranks)

    def _by_rows(
        self, kind: tuple[object, ...], tensors: Sequence[Tensor], shards: int, among: int, ranks: IntArray
    ) -> Iterator[Groups]:
        """Leaves that FSDP divides: each by whole rows, as many for every shard, so that the last ones may have none.

        Shards that have as many rows of every leaf are one kind.

        Args:
            among: tensor-parallel ranks that divide each leaf before.
            ranks: int64[shards * among, members], shard by shard.
        """
        cuts = [_RowCut.of(tensor, shards, among) for tensor in tensors]
        ends = sorted({0, shards}.union(*(cut.ends for cut in cuts)))
        for first, end in pairwise(ends):
            sizes = [cut.elements(first) for cut in cuts]
            held = [(tensor, size) for tensor, size in zip(tensors, sizes, strict=True) if size]
            if held:
                members = ranks.reshape(shards, -1, ranks.shape[1])[first:end].reshape(-1, ranks.shape[1])
                these, counts = zip(*held, strict=True)
                yield self._group((*kind, shards, among, first), these, counts, members)

    def _group(
        self, key: tuple[object, ...], tensors: Sequence[Tensor], sizes: Sequence[int], ranks: IntArray
    ) -> Groups:
        """Groups that hold so many elements of each tensor.

        Args:
            key: the same for the same tensors and sizes, on any number of ranks.
        """
        if key not in self._cut:
            specs, by_dtype = [], dict[str, int]()
            for tensor, elements in zip(tensors, sizes, strict=True):
                item = ITEM_BYTES[tensor.dtype]
                specs.append(LeafSpec(tensor.path, elements * item, item))
                by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + elements * item
            self._cut[key] = Leaves.of(specs, ranks.shape[1]), by_dtype
        leaves, by_dtype = self._cut[key]
        return Groups(leaves, ranks, by_dtype)


@dataclass(frozen=True, slots=True)
class _RowCut:
    """One leaf in shards of whole rows, as ``torch.chunk`` cuts it: FSDP of PyTorch 2.4 and later, ``fully_shard``.

    Attributes:
        rows, row: how many, and elements of each, on one tensor-parallel rank.
        each: rows of a shard that has its full count.
    """

    rows: int
    row: int
    each: int

    @classmethod
    def of(cls, tensor: Tensor, shards: int, among: int) -> _RowCut:
        elements = -(-tensor.elements // among)
        rows = min(elements, -(-(tensor.parameter.rows or elements) // among)) if tensor.elements > 1 else 1
        return cls(rows, -(-elements // rows) if rows else 0, -(-rows // shards))

    @property
    def ends(self) -> tuple[int, ...]:
        """Shards at which another count of rows begins."""
        full = self.rows // self.each if self.each else 0
        return (full, full + 1) if self.each and self.rows % self.each else (full,)

    def elements(self, shard: int) -> int:
        """Of a shard."""
        return self.row * max(0, min(self.each, self.rows - shard * self.each))


def read_state(text: str, model: Model | None = None, dtype: str | None = None) -> State:
    """A state from ``MODEL[:DTYPE][+OPTIMIZER][@LAYOUT]``.

    Args:
        model: of an external source; then MODEL must be left out.
        dtype: of the model's parameters, if the text names none.

    Raises:
        ConfigError: no such model, dtype, optimizer or layout.
    """
    rest, at, layout_text = text.partition("@")
    name, plus, optimizer = rest.partition("+")
    name, colon, dtype_name = name.partition(":")
    if bool(plus) != bool(optimizer) or optimizer not in OPTIMIZERS:
        raise _refusal("optimizer", [f"+{known}" for known in OPTIMIZERS if known], f"+{optimizer}", text)
    usual, kept = OPTIMIZERS[optimizer]
    chosen = _SHORT.get(dtype_name, dtype_name) if colon else dtype or usual
    if chosen not in ITEM_BYTES:
        raise _refusal("dtype", [*_SHORT, *ITEM_BYTES], f":{dtype_name}", text)
    found = model_named(name) if model is None else model
    layout = read_layout(layout_text) if at else Layout()
    _check_layout(found, layout, text)
    return State(text, tuple(_tensors(found, chosen, kept)), found.layers, found.experts, layout, found.source)


def state_of(name: str, tensors: Sequence[Tensor], source: str, layout: Layout) -> State:
    """A state from leaves that are known already."""
    layers = max([1, *(tensor.parameter.layer + 1 for tensor in tensors)])
    return State(name, tuple(tensors), layers, 0, layout, source)


def _tensors(model: Model, dtype: str, kept: tuple[tuple[str, str], ...]) -> Iterator[Tensor]:
    for parameter in model.parameters:
        yield Tensor(parameter, f"model/{parameter.path}", dtype, parameter.elements)
    for number, parameter in enumerate(model.parameters):
        path = f"optimizer/state/{number}"
        for key, kind in kept:
            yield Tensor(parameter, f"{path}/{key}", kind, parameter.elements, True)
        if any(key.startswith("exp_avg") for key, _ in kept):
            yield Tensor(parameter, f"{path}/step", "float32", 1, True)


def _check_layout(model: Model, layout: Layout, text: str) -> None:
    if layout.pipeline > model.layers:
        raise _refusal("pipeline", [f"pp of at most {model.layers}, the layers of {model.name}"], str(layout), text)
    if layout.expert > 1 and (not model.experts or model.experts % layout.expert):
        allowed = f"ep that divides the {model.experts} experts of {model.name}" if model.experts else "no ep"
        raise _refusal("expert parallelism", [allowed], str(layout), text)


def _refusal(what: str, allowed: Sequence[str], found: str, text: str) -> ConfigError:
    return ConfigError(
        f"the state's {what} is not possible",
        expected=", ".join(allowed),
        found=repr(found),
        where=f"--state {text}",
        todo="for example bert-large+adam, llama3-8b:bf16 or llama3-70b+adam-mixed@tp=8,pp=4",
    )
