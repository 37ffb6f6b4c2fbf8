"""States by shape: what a training job holds on so many ranks, and how the library's partitioner shares it out.

``bert-large+adam`` is a model with an optimizer, ``llama3-405b+adam-mixed@tp=8,pp=16`` one spread over ranks. Leaves
are sizes without tensors. Ranks fall into groups that hold the same leaves; groups that hold leaves of equal sizes
are cut alike, so one of them is partitioned and the others follow, which is what makes a trillion parameters over
65,536 ranks a matter of seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from deeppart.errors import ConfigError
from deeppart.model import meant_todo
from deeppart.partition import whole_kappa

from .holding import Groups, Held, Shares, groups_of, kappa_of, per_rank_groups, share_out
from .layout import Layout, read_layout
from .shapes import ITEM_BYTES, WORKLOADS, Model, Tensor, model_named

_SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
#: Optimizer -> dtype of the model's parameters where none is named, and dtypes of what is kept for each parameter.
#: Adam keeps two moments and a step count (a float32 tensor of one element, as torch.optim.Adam); with mixed
#: precision a float32 copy of the parameters too.
OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "": ("float32", ()),
    "adam": ("float32", (("exp_avg", "float32"), ("exp_avg_sq", "float32"))),
    "adam-mixed": ("bfloat16", (("master", "float32"), ("exp_avg", "float32"), ("exp_avg_sq", "float32"))),
    "sgd-momentum": ("float32", (("momentum_buffer", "float32"),)),
}


@dataclass(frozen=True, slots=True)
class State:
    """A state, on any number of ranks."""

    name: str  # the name by which it was asked for
    tensors: tuple[Tensor, ...]  # its leaves, before any division
    layers: int  # that a pipeline can divide
    experts: int  # per layer
    layout: Layout  # how it is spread
    source: str  # the source of its shapes
    per_rank: tuple[Tensor, ...] = ()  # leaves that differ on each rank, such as states of random number generators
    _known: dict[int, tuple[Groups, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _held: dict[object, Held] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of everything, each once."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Elements that are not the optimizer's."""
        return sum(tensor.elements for tensor in self.tensors if not tensor.optimizer)

    def on(self, ranks: int) -> tuple[Groups, ...]:
        """The leaves of each group of ranks, smaller groups first: in this order they are partitioned."""
        if ranks not in self._known:
            grid = self.layout.at(ranks)
            groups = list(groups_of(self.tensors, grid, self.layers, self.experts, self._held))
            if self.per_rank:
                groups.append(per_rank_groups(self.per_rank, ranks, self._held))
            self._known[ranks] = tuple(sorted(groups, key=lambda group: group.ranks.shape[1]))
        return self._known[ranks]

    def shares(self, ranks: int, strategy: str = "deeppart", kappa: float | None = None) -> Shares:
        """Share the state out with the library's partitioner."""
        groups = self.on(ranks)
        return share_out(groups, ranks, strategy, kappa_of(groups, ranks) if kappa is None else whole_kappa(kappa))


def read_state(text: str, model: Model | None = None, dtype: str | None = None) -> State:
    """A state from ``MODEL[:DTYPE][+OPTIMIZER][@LAYOUT]``, or a whole workload such as ``mlperf-8b``."""
    if model is None and text in WORKLOADS:
        workload = WORKLOADS[text]
        return replace(read_state(workload.specification, workload.model()), name=text)
    rest, at, layout_text = text.partition("@")
    name, plus, optimizer = rest.partition("+")
    name, colon, dtype_name = name.partition(":")
    if bool(plus) != bool(optimizer) or optimizer not in OPTIMIZERS:
        raise _refusal("optimizer", [f"+{known}" for known in OPTIMIZERS if known], f"+{optimizer}", text)
    usual, kept = OPTIMIZERS[optimizer]
    chosen = _SHORT.get(dtype_name, dtype_name) if colon else dtype or usual
    if chosen not in ITEM_BYTES:
        raise _refusal("dtype", [*_SHORT, *ITEM_BYTES], f":{dtype_name}", text)
    if name in WORKLOADS:
        raise _refusal("workload", [name], text, text)
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
        yield Tensor(parameter, f"model/{parameter.path}", dtype, parameter.shape)
    for number, parameter in enumerate(model.parameters):
        path = f"optimizer/state/{number}"
        for key, kind in kept:
            yield Tensor(parameter, f"{path}/{key}", kind, parameter.shape, True)
        if any(key.startswith("exp_avg") for key, _ in kept):
            yield Tensor(parameter, f"{path}/step", "float32", (), True)


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
        todo=meant_todo(
            found,
            allowed,
            "a workload of MLPerf has its own dtype, optimizer and layout"
            if what == "workload"
            else "write it as in bert-large+adam, llama3-8b:bf16, llama3-70b+adam-mixed@tp=8,pp=4",
        ),
    )
