"""What a training is made of beside its tensors: random generators, and small nested values such as data positions."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.state.document.structure_json import checked_type, encode_type
from deeppart.state.tree.leaves import check_array, check_tensor, flat_bytes, leaf_type, new_array
from deeppart.state.tree.values import decode_value, encode_value


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


def pack(value: Any, where: str) -> str:
    """A nested value as one text, so that ranks may have values of different structure at one place of the state.

    Takes dicts, lists, tuples, tensors, arrays and small values; what derives from a dict or a tuple comes back as a
    plain one. The text is JSON, arrays in base64: for kilobytes, not for weights.
    """
    return json.dumps(_packed(value, where), separators=(",", ":"))


def unpack(text: str, where: str) -> Any:
    """Inverse of :func:`pack`. Executes nothing."""
    try:
        return _unpacked(json.loads(text), where)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"[:300]
        raise CorruptFileError(
            "a nested value in the checkpoint cannot be decoded", found=found, where=where
        ) from error


def _packed(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return ["{}", [[_packed(key, where), _packed(item, f"{where}/{key}")] for key, item in value.items()]]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return ["()", [_packed(item, f"{where}/{place}") for place, item in enumerate(value)]]
    if type(value) is list:
        return ["[]", [_packed(item, f"{where}/{place}") for place, item in enumerate(value)]]
    if isinstance(value, torch.Tensor):
        return _packed_tensor(value, where)
    if isinstance(value, np.ndarray):
        check_array(value, where)
        return ["array", encode_type(leaf_type(value)), _base64(np.ascontiguousarray(value))]
    return encode_value(value, where)


def _packed_tensor(tensor: torch.Tensor, where: str) -> Any:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise UnsupportedLeafError(
            f"a {type(tensor).__qualname__} stands among small values",
            expected="plain tensors",
            where=f"path {where}",
            todo="save it as a leaf of the state of its own",
        )
    check_tensor(tensor, where)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return ["array", encode_type(leaf_type(tensor)), _base64(flat)]


def _base64(flat: Any) -> str:
    return base64.b64encode(flat_bytes(flat).data).decode("ascii")


def _unpacked(packed: Any, where: str) -> Any:
    if isinstance(packed, list):
        tag, *rest = packed
        if tag == "{}":
            return {_unpacked(key, where): _unpacked(item, where) for key, item in rest[0]}
        if tag == "()":
            return tuple([_unpacked(item, where) for item in rest[0]])
        if tag == "[]":
            return [_unpacked(item, where) for item in rest[0]]
        if tag == "array":
            (kind, dtype, shape), text = rest
            data = base64.b64decode(text, validate=True)
            found = checked_type(kind, dtype, shape, where)
            if found.nbytes != len(data):
                raise ValueError(f"{len(data)} bytes of {found}")
            array = new_array(found)
            flat_bytes(array)[:] = np.frombuffer(data, dtype=np.uint8)
            return array
    return decode_value(packed, where)
