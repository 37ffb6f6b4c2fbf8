"""States of the user: from a checkpoint, or from a Python file that builds one.

A checkpoint is read by ``deeppart show --json`` in another process, since only the library's upper layers can read one.
A Python file is executed: one of its functions builds a model (best on the meta device, where tensors take no memory)
or nested tensors. Tensors are recognized by their attributes, so this module does not import torch.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deeppart.errors import ConfigError

from .layout import Layout, read_layout
from .shapes import ITEM_BYTES, Model, Parameter, Tensor
from .states import State, read_state, state_of

#: The function of a Python file that is called by default.
DEFAULT_FUNCTION = "build"
_SHOW_TIMEOUT_S = 600.0
_NUMBER = re.compile(r"[0-9]+")
_DEEPEST = 200


def read_external(source: Path, text: str) -> State:
    """Read the state of a checkpoint directory, or of a Python file."""
    path, _, function = str(source).partition(".py:")
    file = Path(f"{path}.py") if function else source
    if file.suffix == ".py":
        return _from_python(file, function or DEFAULT_FUNCTION, text)
    return _from_checkpoint(source, text)


def _from_checkpoint(directory: Path, text: str) -> State:
    command = [sys.executable, "-m", "deeppart.cli", "show", str(directory), "--json"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SHOW_TIMEOUT_S, check=False)
        document = json.loads(answer.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise _unreadable(directory, str(error)) from error
    if "leaves" not in document:
        raise _unreadable(directory, document.get("error", {}).get("summary", answer.stderr.strip()))
    optimizer, layout = _options(text)
    if optimizer:
        raise _refusal(f"+{optimizer}", "a checkpoint, which has its optimizer's state already", directory)
    shared: list[Tensor] = []
    per_rank: list[Tensor] = []
    leaves = [leaf for leaf in document["leaves"] if leaf["kind"] == "leaf" and leaf["alias_of"] is None]
    sharded = any(leaf["shards"] is not None for leaf in leaves)
    shapes = [(leaf["path"], leaf["type"]["shape"]) for leaf in leaves]
    for leaf, parameter in zip(leaves, _parameters(shapes), strict=True):
        dtype, shape = str(leaf["type"]["dtype"]), parameter.shape
        if dtype not in ITEM_BYTES:
            dtype, shape = "uint8", (*shape, int(leaf["nbytes"]) // max(1, parameter.elements))
        plain = sharded and leaf["shards"] is None
        (per_rank if leaf["per_rank"] else shared).append(Tensor(parameter, leaf["path"], dtype, shape, plain=plain))
    state = state_of(f"{directory}, step {document['step']}", shared, f"checkpoint {directory}", layout)
    return replace(state, per_rank=tuple(per_rank))


def _from_python(file: Path, function: str, text: str) -> State:
    if not file.is_file():
        raise _unreadable(file, "there is no such file")
    try:
        names = runpy.run_path(str(file))
        if not callable(names.get(function)):
            raise _unreadable(file, f"it has no function {function}(): name one by --from {file}:FUNCTION")
        built = names[function]()
    except ConfigError:
        raise
    except Exception as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    optimizer, layout = _options(text)
    if hasattr(built, "named_parameters"):
        return _of_module(file, built, text, layout)
    if optimizer:
        raise _refusal(f"+{optimizer}", "nested tensors; an optimizer can be added to a module only", file)
    tensors = list(_flatten("", built, 0))
    if not tensors:
        raise _unreadable(file, f"{function}() returned {type(built).__name__} without a tensor in it")
    leaves = [
        Tensor(parameter, path, _dtype(tensor, path, file), parameter.shape)
        for (path, tensor), parameter in zip(
            tensors, _parameters([(path, list(tensor.shape)) for path, tensor in tensors]), strict=True
        )
    ]
    return state_of(f"{file}:{function}", leaves, f"Python file {file}", layout)


def _of_module(file: Path, module: Any, text: str, layout: Layout) -> State:
    """The state of a module, and of the optimizer for its trained parameters; buffers are not divided."""
    found = [(name, tensor) for name, tensor in module.state_dict().items() if _is_tensor(tensor)]
    named = list(module.named_parameters(remove_duplicate=False))
    trained = {name for name, tensor in named if tensor.requires_grad}
    divided = {name for name, _ in named}
    parameters = _parameters([(name, list(tensor.shape)) for name, tensor in found])
    model = Model(file.name, parameters, _layers(parameters), 0, f"Python file {file}")
    dtypes = {
        parameter.path: _dtype(tensor, name, file) for parameter, (name, tensor) in zip(parameters, found, strict=True)
    }
    state = read_state(text, model, "float32")
    kept = [
        tensor
        if tensor.optimizer
        else replace(tensor, dtype=dtypes[tensor.parameter.path], plain=tensor.parameter.path not in divided)
        for tensor in state.tensors
        if not tensor.optimizer or tensor.parameter.path in trained
    ]
    return replace(state, name=f"{file.name}{text}", tensors=tuple(kept), layout=layout)


def _options(text: str) -> tuple[str, Layout]:
    """(optimizer, layout) from ``+adam@tp=2``."""
    rest, at, layout = text.partition("@")
    name, _, optimizer = rest.partition("+")
    if name:
        raise ConfigError(
            "both --from and a model are given",
            expected="with --from, a --state of only +OPTIMIZER and @LAYOUT",
            found=repr(text),
            where="--state",
        )
    return optimizer, read_layout(layout) if at else Layout()


def _parameters(named: Iterable[tuple[str, Sequence[int]]]) -> tuple[Parameter, ...]:
    """Parameters; the first number in a path is the layer, and tensor parallelism divides the rows of matrices."""
    found: list[Parameter] = []
    order: dict[str, int] = {}
    layer = -1
    for path, shape in named:
        match = _NUMBER.search(path)
        if match:
            layer = order.setdefault(path[: match.end()], len(order))
        elif order:
            layer = len(order)
        found.append(Parameter(path, tuple(map(int, shape)), layer, 0 if len(shape) > 1 else None))
    return tuple(found)


def _layers(parameters: Iterable[Parameter]) -> int:
    return max([1, *(parameter.layer + 1 for parameter in parameters if _NUMBER.search(parameter.path))])


def _flatten(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of nested containers with their paths."""
    if depth > _DEEPEST:
        return
    if _is_tensor(value):
        yield path, value
    elif hasattr(value, "state_dict"):
        yield from _flatten(path, value.state_dict(), depth + 1)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{path}/{key}" if path else str(key), inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _flatten(f"{path}/{number}" if path else str(number), inner, depth + 1)


def _is_tensor(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("numel", "element_size", "dtype", "shape"))


def _dtype(tensor: Any, path: str, file: Path) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise _unreadable(file, f"{path} has the dtype {name}, which is not known here")
    return name


def _unreadable(where: Path, found: str) -> ConfigError:
    return ConfigError(
        "no state can be read there",
        expected="a directory with a checkpoint, or a Python file that builds a model",
        found=found,
        where=f"--from {where}",
        todo="`deeppart ls DIR` shows what a directory holds",
    )


def _refusal(found: str, what: str, where: Path) -> ConfigError:
    return ConfigError(
        "the state cannot be had like this", expected=f"no {found} with {what}", found=found, where=f"--from {where}"
    )
