"""States by shape: the leaves of a training job on any number of ranks, and their shares by the library's partitioner.

``bert-large+adam`` is a model with an optimizer, ``llama3-405b+adam-mixed@tp=8,pp=16`` one with a layout over ranks.
Leaves are sizes without tensors. Groups of ranks whose leaves have equal sizes are divided in the same way, so only one
of them is partitioned: a trillion parameters on 65,536 ranks take seconds.
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
#: Optimizer -> default dtype of the model's parameters, and name and dtype of each tensor that it keeps per parameter.
#: Adam also keeps a step count (a float32 tensor of one element, as torch.optim.Adam does).
OPTIMIZERS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "": ("float32", ()),
    "adam": ("float32", (("exp_avg", "float32"), ("exp_avg_sq", "float32"))),
    "adam-mixed": ("bfloat16", (("master", "float32"), ("exp_avg", "float32"), ("exp_avg_sq", "float32"))),
    "sgd-momentum": ("float32", (("momentum_buffer", "float32"),)),
}


@dataclass(frozen=True, slots=True)
class State:
    """A state, on any number of ranks."""

    name: str  # as given by the user
    tensors: tuple[Tensor, ...]  # its leaves, undivided
    layers: int  # that a pipeline can divide
    experts: int  # per layer
    layout: Layout
    source: str  # of the shapes
    per_rank: tuple[Tensor, ...] = ()  # leaves that differ between ranks, such as states of random number generators
    _known: dict[int, tuple[Groups, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _held: dict[object, Held] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves, each counted once."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Elements outside of the optimizer."""
        return sum(tensor.elements for tensor in self.tensors if not tensor.optimizer)

    def on(self, ranks: int) -> tuple[Groups, ...]:
        """The groups of ranks with their leaves, smaller sets first: the order in which they are partitioned."""
        if ranks not in self._known:
            grid = self.layout.at(ranks)
            groups = list(groups_of(self.tensors, grid, self.layers, self.experts, self._held))
            if self.per_rank:
                groups.append(per_rank_groups(self.per_rank, ranks, self._held))
            self._known[ranks] = tuple(sorted(groups, key=lambda group: group.ranks.shape[1]))
        return self._known[ranks]

    def shares(self, ranks: int, strategy: str = "deeppart", kappa: float | None = None) -> Shares:
        """Compute the shares of all ranks with the library's partitioner."""
        groups = self.on(ranks)
        return share_out(groups, ranks, strategy, kappa_of(groups, ranks) if kappa is None else whole_kappa(kappa))


def read_state(text: str, model: Model | None = None, dtype: str | None = None) -> State:
    """Parse ``MODEL[:DTYPE][+OPTIMIZER][@LAYOUT]``, or the name of a workload such as ``mlperf-8b``."""
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
    """A state with given leaves."""
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
