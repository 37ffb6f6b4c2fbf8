"""What a training is made of beside its tensors: random generators, positions of data loaders, small nested values."""

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
    """The state of this process's random generators: Python's, numpy's, torch's, and those of its GPUs.

    A process of a group of ``torch.distributed`` is taken to use one GPU, the current one; any other to use all it
    sees. The parts are tensors, arrays and small values: put it into the state to save as it is. It differs between
    ranks and is therefore saved for each.

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
    """Let the random generators of this process go on from what :func:`rng_state` gave.

    Those of GPUs that were saved and are not here are left out. What a restore has left alone
    (``per_rank={"rng/*": "drop"}``) and the state lacks therefore, goes on as it was seeded here.
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
    """Give a data loader a separate random generator, if it uses the process's.

    Loaders draw a seed whenever they begin, and a restart begins once more than a run that was never ended.
    """
    if hasattr(loader, "generator") and loader.generator is None:
        loader.generator = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63))


def position(loader: Any) -> dict[str, Any]:
    """Where a loader that has a position is, such as torchdata's StatefulDataLoader: small values, to be packed.

    It differs between ranks.
    """
    generator = getattr(loader, "generator", None)
    return {
        "state": _stateful(loader).state_dict(loader),
        "generator": None if generator is None else generator.get_state(),
    }


def go_to(loader: Any, saved: Mapping[str, Any]) -> None:
    """Let a loader go on from what :func:`position` gave, when it is iterated next."""
    if saved["generator"] is not None and getattr(loader, "generator", None) is not None:
        loader.generator.set_state(saved["generator"])
    _stateful(loader).load_state_dict(loader, saved["state"])


def _stateful(loader: Any) -> Any:
    """The class whose state is taken: torchdata's own, which is data, where a subclass would pickle it."""
    for kind in type(loader).__mro__:
        if kind.__module__.startswith("torchdata.") and "state_dict" in vars(kind):
            return kind
    return type(loader)


def pack(
    value: Any,
    where: str,
    tensors: list[torch.Tensor] | None = None,
    classes: Mapping[str, type] | None = None,
) -> str:
    """A nested value as one text, so that ranks may have values of different structure at one place of the state.

    Takes dicts, lists, tuples, tensors, arrays and small values; what derives from a dict or a tuple comes back as a
    plain one. The text is JSON, arrays in base64: for kilobytes, not for weights. Given a list of ``tensors``, these
    are put there, and the text has their places. Objects of ``classes`` are taken by their attributes, enums by their
    values.
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
            return ["()", [packed(item, f"{where}/{place}") for place, item in enumerate(value)]]
        if kind is list:
            return ["[]", [packed(item, f"{where}/{place}") for place, item in enumerate(value)]]
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
    """Inverse of :func:`pack`. Executes nothing, and makes objects of these classes only."""

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
                of = LeafType(kind, dtype, tuple(shape))
                of.check(where)
                return _unpacked_array(of, data)
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
    flat: Array = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else _flat(value)
    data = base64.b64encode(leaf_bytes(flat).data).decode("ascii")
    return ["array", [kind.kind, kind.dtype, list(kind.shape)], data]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _unpacked_array(kind: LeafType, text: str) -> Array:
    data = base64.b64decode(text, validate=True)
    if kind.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes of {kind}")
    array = kind.new()
    leaf_bytes(array)[:] = np.frombuffer(data, dtype=np.uint8)
    return array
