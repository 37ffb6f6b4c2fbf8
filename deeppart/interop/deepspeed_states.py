"""DeepSpeed's state dicts as tensors and one text: beside tensors, they have other structure on other ranks."""

from __future__ import annotations

from typing import Any

import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.training_state import pack, unpack

#: Tuples that begin with one of these stand for something else.
_TENSOR, _OBJECT, _TUPLE = "deeppart:tensor", "deeppart:object", "deeppart:tuple"
_MARKS = (_TENSOR, _OBJECT, _TUPLE)


def take_apart(states: Any, where: str) -> dict[str, Any]:
    """Tensors of a state dict as a list, and all else as a text."""
    tensors: list[torch.Tensor] = []
    outline = _outlined(states, tensors, where)
    return {"tensors": tensors, "rest": pack(outline, where)}


def put_together(file: dict[str, Any], where: str) -> Any:
    """Inverse of :func:`take_apart`. Makes objects of known classes only."""
    outline = unpack(file["rest"], where)
    try:
        return _filled(outline, file["tensors"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"[:300]
        raise CorruptFileError("states of DeepSpeed cannot be put together", found=found, where=where) from error


def _outlined(item: Any, tensors: list[torch.Tensor], where: str) -> Any:
    if isinstance(item, torch.Tensor):
        tensors.append(item.detach())
        return (_TENSOR, len(tensors) - 1)
    if isinstance(item, dict):
        return {key: _outlined(each, tensors, f"{where}/{key}") for key, each in item.items()}
    if type(item) is list:
        return [_outlined(each, tensors, f"{where}/{place}") for place, each in enumerate(item)]
    if type(item) is tuple:
        items = tuple([_outlined(each, tensors, f"{where}/{place}") for place, each in enumerate(item)])
        return (_TUPLE, items) if item and item[0] in _MARKS else items
    kind = type(item)
    if kind.__module__.startswith("deepspeed."):
        if (name := kind.__name__) not in _classes():
            raise UnsupportedLeafError(
                f"DeepSpeed's state holds a {kind.__qualname__}, which is not known",
                expected=", ".join(_classes()),
                where=f"path {where}",
                todo="use DeepSpeed's own checkpoint engine",
            )
        value = item.value if name == "ZeroStageEnum" else _outlined(dict(vars(item)), tensors, where)
        return (_OBJECT, name, value)
    return item


def _filled(item: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(item, dict):
        return {key: _filled(each, tensors) for key, each in item.items()}
    if type(item) is list:
        return [_filled(each, tensors) for each in item]
    if type(item) is not tuple:
        return item
    if not item or item[0] not in _MARKS:
        return tuple([_filled(each, tensors) for each in item])
    if item[0] == _TENSOR:
        return tensors[item[1]]
    if item[0] == _TUPLE:
        return tuple([_filled(each, tensors) for each in item[1]])
    kind = _classes()[item[1]]
    if item[1] == "ZeroStageEnum":
        return kind(item[2])
    made = object.__new__(kind)
    vars(made).update(_filled(item[2], tensors))
    return made


def _classes() -> dict[str, Any]:
    """Classes of DeepSpeed whose objects stand in its states, and are nothing but their attributes."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    known = (LossScaler, DynamicLossScaler, fragment_address, ZeroStageEnum)
    return {kind.__name__: kind for kind in known}
