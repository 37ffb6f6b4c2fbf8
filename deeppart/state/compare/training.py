"""The tensors to which an optimizer was seen to write since the last checkpoint.

That an optimizer has a tensor in its parameter groups or in its state does not say that it changes it: the parameter
may be frozen or get no gradients, the tensor may be somebody else's. So its first step after each checkpoint is
watched: what it writes to then, and still owns at the next checkpoint, it trains. In doubt, nobody trains a tensor.

The watch costs a look at each of the optimizer's large tensors before and after one step per checkpoint, and nothing at
the steps between.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from deeppart.state.compare.identity import TensorIdentity
from deeppart.state.compare.owners import not_compiled, shards_here
from deeppart.state.tree.fingerprint import memory_over
from deeppart.state.tree.leaves import PLAIN_TENSORS
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.sharded import is_sharded

#: Words of a tensor that are looked at where its version counter does not tell.
_LOOKED_AT = 8
_WORD_BYTES = 8


@dataclass(slots=True)
class _Owned:
    """A tensor of an optimizer.

    Attributes:
        tensor: by which it is known again.
        parameter_id: of the parameter that it belongs to, which may be itself.
        key: its key in the parameter's state; None for the parameter.
        address: its address when it was seen to be written to.
        version: of its counter, before the step; later, at the last checkpoint.
        words: of it, before the step; None where the version counter tells.
    """

    tensor: TensorIdentity
    parameter_id: int
    key: Any
    address: int
    version: int
    words: bytes | None = None


class _Watched:
    """The state of one watched optimizer."""

    def __init__(self) -> None:
        self.armed = True
        self.before: list[_Owned] = []
        self.seen: list[_Owned] = []
        self.fresh = False


class TrainingWatch:
    """Watches all optimizers of the process."""

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        me = weakref.ref(self)  # the hooks must not keep it alive
        self._hooks = [
            register_optimizer_step_pre_hook(_hook(me, TrainingWatch._before_step)),
            register_optimizer_step_post_hook(_hook(me, TrainingWatch._after_step)),
        ]

    def close(self) -> None:
        """Watch no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def trained(self) -> dict[int, int]:
        """Address -> bytes, of the host tensors that an optimizer trains; and begin to watch for the next checkpoint.

        A tensor counts if its optimizer lives, has it, has written to it in the first step since the last call, and its
        parameter asks for gradients. Without any step since then, it counts as before as long as nobody has written
        to it.
        """
        found: dict[int, int] = {}
        for optimizer, watched in list(self._optimizers.items()):
            kept = []
            for each, tensor in _still_owned(optimizer, watched.seen):
                version = tensor._version
                if watched.fresh or version == each.version:
                    each.version = version
                    kept.append(each)
                    found[each.address] = tensor.numel() * tensor.element_size()
            watched.seen, watched.before = kept, []
            watched.armed, watched.fresh = True, False
        return found

    def _before_step(self, optimizer: Optimizer) -> None:
        if not is_optimizer(optimizer):
            return
        watched = self._optimizers.setdefault(optimizer, _Watched())
        watched.before = []
        if watched.armed:
            found = [*self._owned_by(optimizer)]
            for (each, _), words in zip(found, _words([tensor for _, tensor in found]), strict=True):
                each.words = words
            watched.before = [each for each, _ in found]

    def _after_step(self, optimizer: Optimizer) -> None:
        watched = self._optimizers.get(optimizer)
        if watched is None or not watched.armed:
            return
        still = [*_still_owned(optimizer, watched.before)]
        seen = []
        for (each, tensor), words in zip(still, _words([tensor for _, tensor in still]), strict=True):
            if tensor._version != each.version or words != each.words:
                seen.append(each)
        # Once more where this step has made new tensors, as the first of all does.
        watched.armed = sum(1 for _ in self._owned_by(optimizer)) != len(watched.before)
        watched.seen, watched.before, watched.fresh = seen, [], True

    def _owned_by(self, optimizer: Optimizer) -> Iterator[tuple[_Owned, torch.Tensor]]:
        """Its large host tensors: parameters with dense gradients, and what it keeps for them."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad, mine = parameter.grad, id(parameter)
                if grad is None or grad.layout is not torch.strided or not parameter.requires_grad:
                    continue
                plain = _plain_of(parameter)
                if plain is not None and self._is_of_interest(plain):
                    yield _owned(plain, mine, None), plain
                state = optimizer.state.get(parameter)
                for key, value in state.items() if isinstance(state, dict) else ():
                    plain = _plain_of(value)
                    if plain is not None and self._is_of_interest(plain):
                        yield _owned(plain, mine, key), plain

    def _is_of_interest(self, tensor: torch.Tensor) -> bool:
        return (
            tensor.is_cpu
            and tensor.layout is torch.strided
            and tensor.numel() * tensor.element_size() > self._least_bytes
            and not tensor.is_inference()
        )


def _hook(
    watch: weakref.ref[TrainingWatch], act: Callable[[TrainingWatch, Optimizer], None]
) -> Callable[[Optimizer, Any, Any], None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        found = watch()
        if found is not None:
            act(found, optimizer)

    uncompiled: Callable[[Optimizer, Any, Any], None] = not_compiled(hook)
    return uncompiled


def _owned(tensor: torch.Tensor, parameter_id: int, key: Any) -> _Owned:
    return _Owned(TensorIdentity(tensor), parameter_id, key, tensor.data_ptr(), tensor._version)


def _still_owned(optimizer: Optimizer, seen: list[_Owned]) -> Iterator[tuple[_Owned, torch.Tensor]]:
    """Those that the optimizer still has where they were, and of which it still trains the parameter."""
    parameters = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    states: dict[int, Any] = {id(parameter): values for parameter, values in optimizer.state.items()}
    for each in seen:
        parameter = parameters.get(each.parameter_id)
        if parameter is None or not parameter.requires_grad:
            continue
        tensor: Any = parameter
        if each.key is not None:
            values = states.get(each.parameter_id)
            tensor = values.get(each.key) if isinstance(values, dict) else None
        tensor = _plain_of(tensor)
        if tensor is not None and each.tensor.is_of(tensor) and tensor.data_ptr() == each.address:
            yield each, tensor


def _plain_of(tensor: Any) -> torch.Tensor | None:
    """A tensor, or of a sharded one the shard of this rank; None if it is no tensor, or has not one shard here.

    A sharded tensor itself has no memory. Writes by way of it do not advance the counter of its shard.
    """
    if not isinstance(tensor, torch.Tensor):
        return None
    if type(tensor) in PLAIN_TENSORS or not is_sharded(tensor):
        return tensor
    found = shards_here(tensor)
    return found[0] if len(found) == 1 and type(found[0]) in PLAIN_TENSORS else None


def _words(tensors: list[torch.Tensor]) -> list[bytes | None]:
    """A few words of each tensor, by which a step shows that advances no version counter (``fused=True``)."""
    found: list[bytes | None] = [None] * len(tensors)
    flat = [(at, tensor) for at, tensor in enumerate(tensors) if tensor.is_contiguous()]
    if not flat:
        return found
    lengths = np.array([tensor.numel() * tensor.element_size() for _, tensor in flat], dtype=np.int64)
    starts = np.array([tensor.data_ptr() for _, tensor in flat], dtype=np.int64)
    memory, first = memory_over(starts, starts + lengths)
    places = (np.arange(_LOOKED_AT) * ((lengths - _WORD_BYTES) // _LOOKED_AT)[:, None]).astype(np.int64)
    count = len(memory) - _WORD_BYTES + 1
    everywhere: Any = np.ndarray((count,), dtype=np.int64, buffer=memory.data, strides=(1,))
    for (at, _), row in zip(flat, everywhere[(starts - first)[:, None] + places], strict=True):
        found[at] = row.tobytes()
    return found
