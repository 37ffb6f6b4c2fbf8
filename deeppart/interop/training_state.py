"""Training state beside tensors: random generators, data loader positions, and nested small values."""

from __future__ import annotations

import base64
import enum
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from deeppart.errors import CorruptFileError
from deeppart.extension import LeafType, decode, encode, leaf_bytes

Array = torch.Tensor | npt.NDArray[Any]


def rng_state() -> dict[str, Any]:
    """The state of this process's random generators: Python's, numpy's, torch's, and its GPUs'.

    With ``torch.distributed`` initialized, only the current GPU is included; otherwise all visible ones. The result
    consists of tensors, arrays and small values, and goes into the state to save. It is rank-local.

    Example:
        >>> import random, torch
        >>> from deeppart.interop.training_state import rng_state, set_rng_state
        >>> before = rng_state()
        >>> drawn = random.random(), torch.rand(3)
        >>> set_rng_state(before)
        >>> (random.random(), torch.rand(3).tolist()) == (drawn[0], drawn[1].tolist())
        True
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        several = not (dist.is_available() and dist.is_initialized())
        state["cuda"] = torch.cuda.get_rng_state_all() if several else [torch.cuda.get_rng_state()]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Set this process's random generators to a state from :func:`rng_state`.

    Generators that are missing from ``state``, as after ``per_rank={"rng/*": "drop"}``, and states of GPUs that this
    process does not have, are ignored.
    """
    python = state.get("python", {})
    if python.keys() >= {"version", "words", "gauss"}:
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    if "numpy" in state:
        np.random.set_state(state["numpy"])
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    saved = state.get("cuda") or [None]
    if torch.cuda.is_available() and None not in saved:
        if len(saved) == 1:
            torch.cuda.set_rng_state(saved[0])
        else:
            torch.cuda.set_rng_state_all(saved[: torch.cuda.device_count()])


def own_generator(loader: Any) -> None:
    """Give a data loader its own random generator, if it uses the process's.

    A loader draws a seed whenever it is iterated, and a restarted run iterates once more than an uninterrupted one.
    """
    if hasattr(loader, "generator") and loader.generator is None:
        loader.generator = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63))


def position(loader: Any) -> dict[str, Any]:
    """The position of a stateful loader, such as torchdata's StatefulDataLoader, as values for ``pack``."""
    generator = getattr(loader, "generator", None)
    return {
        "state": _stateful(loader).state_dict(loader),
        "generator": None if generator is None else generator.get_state(),
    }


def seek(loader: Any, saved: Mapping[str, Any]) -> None:
    """Make the next iteration of a loader continue at a position from :func:`position`."""
    if saved["generator"] is not None and getattr(loader, "generator", None) is not None:
        loader.generator.set_state(saved["generator"])
    _stateful(loader).load_state_dict(loader, saved["state"])


def _stateful(loader: Any) -> Any:
    """The class whose ``state_dict`` to use: torchdata's own returns data, where subclasses may pickle it."""
    for kind in type(loader).__mro__:
        if kind.__module__.startswith("torchdata.") and "state_dict" in vars(kind):
            return kind
    return type(loader)


def pack(
    value: Any, where: str, tensors: list[torch.Tensor] | None = None, classes: Mapping[str, type] | None = None
) -> str:
    """Encode a nested value as one string, so that its structure may differ between ranks.

    Accepts dicts, lists, tuples, tensors, arrays and small values; subclasses of dict and tuple become plain ones. The
    string is JSON with arrays in base64: meant for kilobytes. If ``tensors`` is given, tensors are appended to it, and
    the string refers to them by index. Instances of ``classes`` are encoded as their attributes, enums as their values.
    """
    known = classes or {}

    def packed(value: Any, where: str) -> Any:
        kind = type(value)
        if known.get(kind.__name__) is kind:
            content = value.value if isinstance(value, enum.Enum) else dict(vars(value))
            return ["object", kind.__name__, packed(content, where)]
        if isinstance(value, dict):
            return ["{}", [[packed(key, where), packed(item, f"{where}/{key}")] for key, item in value.items()]]
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            return ["()", [packed(item, f"{where}/{index}") for index, item in enumerate(value)]]
        if kind is list:
            return ["[]", [packed(item, f"{where}/{index}") for index, item in enumerate(value)]]
        if isinstance(value, torch.Tensor) and tensors is not None:
            tensors.append(value.detach())
            return ["tensor", len(tensors) - 1]
        if isinstance(value, (torch.Tensor, np.ndarray)):
            return _packed_array(value, where)
        return encode(value, where)

    return json.dumps(packed(value, where), separators=(",", ":"))


def unpack(
    text: str, where: str, tensors: Sequence[torch.Tensor] = (), classes: Mapping[str, type] | None = None
) -> Any:
    """Inverse of :func:`pack`; creates objects of ``classes`` only, and executes no code from the string."""

    def unpacked(packed: Any) -> Any:
        if isinstance(packed, list):
            tag, *rest = packed
            if tag == "{}":
                return {unpacked(key): unpacked(item) for key, item in rest[0]}
            if tag == "()":
                return tuple([unpacked(item) for item in rest[0]])
            if tag == "[]":
                return [unpacked(item) for item in rest[0]]
            if tag == "array":
                (kind, dtype, shape), data = rest
                leaf_type = LeafType(kind, dtype, tuple(shape))
                leaf_type.check(where)
                return _unpacked_array(leaf_type, data)
            if tag == "tensor":
                return tensors[rest[0]]
            if tag == "object":
                return _object_of((classes or {})[rest[0]], unpacked(rest[1]))
        return decode(packed, where)

    try:
        return unpacked(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"[:300]
        raise CorruptFileError(
            "a nested value in the checkpoint cannot be decoded", found=found, where=where
        ) from error


def _object_of(kind: type, content: Any) -> Any:
    if issubclass(kind, enum.Enum):
        return kind(content)
    made = object.__new__(kind)
    vars(made).update(content)
    return made


def _packed_array(value: Array, where: str) -> Any:
    kind = LeafType.of(value, where)
    if isinstance(value, torch.Tensor):
        flat: Array = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    else:
        flat = np.ascontiguousarray(value)
    data = base64.b64encode(leaf_bytes(flat).data).decode("ascii")
    return ["array", [kind.kind, kind.dtype, list(kind.shape)], data]


def _unpacked_array(kind: LeafType, text: str) -> Array:
    data = base64.b64decode(text, validate=True)
    if kind.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes for {kind}")
    array = kind.new()
    leaf_bytes(array)[:] = np.frombuffer(data, dtype=np.uint8)
    return array
