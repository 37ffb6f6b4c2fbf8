"""Which tensors optimizers own, when they change them, and which ones they train.

torch calls a hook before every ``step()`` of every optimizer (``register_optimizer_step_pre_hook``). Tensors in an
optimizer's parameter groups and state normally change only there (:class:`OwnedTensors`); code that relies on it has to
check for other writes. Known optimizers are those in the saved state as objects, and those that have stepped since this
module was first used. If torch does not wrap an optimizer's ``step``, or it may be replayed in a CUDA graph, the hook
is not reliable: its tensors do not count as owned.

An optimizer need not change all of its tensors: parameters may be frozen or get no gradients. So its first step after
each checkpoint is watched (:class:`TrainingWatch`): tensors that it writes to count as trained at the next checkpoint;
in doubt, a tensor does not. This costs a check of each of the optimizer's large tensors before and after one step per
checkpoint.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from deeppart.errors import DeeppartError
from deeppart.state.fingerprint import memory_over
from deeppart.state.objects import is_optimizer
from deeppart.state.tensors import PLAIN_TENSORS, is_sharded, local_tensors
from deeppart.state.tree import FlatState

#: Like ``torch.compiler.disable``, which imports the whole compiler at once: two seconds of processor time for each
#: rank at the start. The private one, with which torch decorates its optimizers, imports it when first called.
not_compiled = getattr(torch, "_disable_dynamo", torch.compiler.disable)
#: The name of torch's wrapper around ``step`` of an optimizer class; it calls the hooks.
_WRAPPER = Optimizer.profile_hook_step(lambda optimizer: None).__code__.co_name
#: Words of a tensor that are compared because its version counter is not reliable.
_LOOKED_AT = 8
_WORD_BYTES = 8


class Listener(Protocol):
    """Called at each step, in the stepping thread."""

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step."""


class _Registry:
    """All optimizers that have stepped, and the listeners that are called at each step. One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._hooks: list[Any] = []

    def listen(self, listener: Listener) -> None:
        """Tell a listener of every step, as long as it exists."""
        with self._lock:
            self._listeners.add(listener)
            if not self._hooks:
                before, after = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
                self._hooks = [before(self._before_step), after(self._after_step)]

    def unlisten(self, listener: Listener) -> None:
        """Stop telling a listener."""
        with self._lock:
            self._listeners.discard(listener)
            for hook in self._hooks if not self._listeners else ():
                hook.remove()
            self._hooks = self._hooks if self._listeners else []

    def stepped(self) -> list[Optimizer]:
        """The optimizers that have stepped while there was a listener."""
        with self._lock:
            return list(self._stepped)

    @not_compiled  # type: ignore[untyped-decorator]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with self._lock:
            if is_optimizer(optimizer):
                self._stepped.add(optimizer)
            listeners = list(self._listeners)
        for listener in listeners:
            listener.before_step(optimizer)

    @not_compiled  # type: ignore[untyped-decorator]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.after_step(optimizer)


REGISTRY = _Registry()


class OwnedTensors:
    """The large tensors that only known optimizers change."""

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        #: Address of a shard -> the sharded tensor, whose version counter counts writes to it. Set by the last call.
        self.counters: dict[int, torch.Tensor] = {}

    def of(self, flat: FlatState) -> dict[int, torch.Tensor]:
        """Address -> tensor; for a sharded tensor, this rank's shard."""
        owned: dict[int, torch.Tensor] = {}
        self.counters = {}
        for optimizer in _known_optimizers(flat):
            for item in _items_of(optimizer) if _signals_steps(optimizer) else ():
                if type(item) in PLAIN_TENSORS:  # the usual case
                    if item.numel() * item.element_size() > self._least_bytes and _has_memory(item):
                        owned[item.data_ptr()] = item
                    continue
                large = [each for each in _plain((item,)) if each.numel() * each.element_size() > self._least_bytes]
                owned |= {each.data_ptr(): each for each in large}
                if _is_sharded(item):
                    self.counters |= dict.fromkeys([each.data_ptr() for each in large], item)
        return owned


def holds_alone(owner: torch.Tensor | None, nbytes: int, held_bytes: int) -> bool:
    """True if an optimizer's tensor is all of the leaf at its address, in a storage of its own.

    Parameters may be views of one flat buffer, whose writes advance a version counter that is unknown here.
    """
    return owner is not None and owner.numel() * owner.element_size() >= nbytes >= held_bytes


def trained_leaves(flat: FlatState) -> frozenset[int]:
    """Numbers of the leaves that a known optimizer changes at every step: its state, and parameters with gradients."""
    addresses: set[int] = set()
    for optimizer in _known_optimizers(flat):
        parameters = [each for group in optimizer.param_groups for each in group["params"] if not each.requires_grad]
        frozen = {each.data_ptr() for each in _plain(parameters)}
        addresses |= {tensor.data_ptr() for tensor in _plain(_items_of(optimizer))} - frozen
    return frozenset(leaf for leaf, address in enumerate(flat.pointers) if address in addresses)


def _known_optimizers(flat: FlatState) -> Iterable[Optimizer]:
    """The optimizers that have stepped and those in the state, each once."""
    in_state = [branch.container for branch in flat.objects if is_optimizer(branch.container)]
    return {id(each): each for each in (*REGISTRY.stepped(), *in_state)}.values()


def _signals_steps(optimizer: Optimizer) -> bool:
    """True if every step begins with the hook: torch's wrapper is around it.

    ``functools.wraps`` copies the mark from the step of another class; a learning-rate schedule sets a ``step`` on the
    instance that calls the class's.
    """
    step, own = type(optimizer).step, vars(optimizer).get("step")
    wrapped = getattr(step, "hooked", False) and getattr(getattr(step, "__code__", None), "co_name", "") == _WRAPPER
    if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):
        return False
    return bool(wrapped) and not any(group.get("capturable") for group in optimizer.param_groups)


def _items_of(optimizer: Optimizer) -> list[Any]:
    """The tensors in an optimizer's parameter groups and its state."""
    items: list[Any] = []
    for group in optimizer.param_groups:
        items += group["params"]
    for values in optimizer.state.values():
        if isinstance(values, dict):
            items += values.values()
    return items


def _is_sharded(item: Any) -> bool:
    """True for a sharded tensor."""
    return isinstance(item, torch.Tensor) and type(item) not in PLAIN_TENSORS and is_sharded(item)


def _has_memory(tensor: torch.Tensor) -> bool:
    """True for a strided tensor with a version counter."""
    return tensor.layout is torch.strided and not tensor.is_inference() and not tensor.is_meta


def _plain(items: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The items, also in lists among them, that are strided tensors with a version counter.

    A sharded tensor has no memory itself; its local tensors are returned.
    """
    for item in items:
        if _is_sharded(item):
            with suppress(DeeppartError):  # a tensor whose shards cannot be read is refused where it is saved
                yield from _plain(local_tensors(item))
        elif isinstance(item, torch.Tensor):
            if _has_memory(item):
                yield item
        elif isinstance(item, (list, tuple)):
            yield from _plain(item)


# --- what is trained --------------------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """The memory of a tensor to which a step has written."""

    nbytes: int
    storage: StorageWeakRef

    def is_all_of(self, holder: object, nbytes: int) -> bool:
        """True if the leaf at the same address has the same length and storage."""
        return nbytes == self.nbytes and getattr(holder, "_cdata", None) == self.storage.cdata


class _Before(NamedTuple):
    """A tensor before a step, with its version counter and a few words, to detect writes."""

    tensor: torch.Tensor
    version: int
    words: bytes | None


class _Watched:
    """The state of one watched optimizer."""

    def __init__(self) -> None:
        self.armed = True
        self.before: list[_Before] = []
        self.trained: dict[int, Trained] = {}


class TrainingWatch:
    """Watches all optimizers of the process."""

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        REGISTRY.listen(self)

    def close(self) -> None:
        """Stop watching."""
        REGISTRY.unlisten(self)

    def trained(self) -> dict[int, Trained]:
        """By address, the host tensors to which an optimizer has written in its first step since the last call; then
        watch the next one.
        """
        found: dict[int, Trained] = {}
        for watched in list(self._optimizers.values()):
            found |= watched.trained
            watched.armed, watched.before, watched.trained = True, [], {}
        return found

    def before_step(self, optimizer: Optimizer) -> None:
        """Remember the tensors of an optimizer."""
        if is_optimizer(optimizer):
            watched = self._optimizers.setdefault(optimizer, _Watched())
            watched.before = self._snapshot(optimizer) if watched.armed else []

    def after_step(self, optimizer: Optimizer) -> None:
        """Find out to which of them it has written."""
        watched = self._optimizers.get(optimizer)
        if watched is None or not watched.armed:
            return
        before = {id(each.tensor): each for each in watched.before}
        after = self._snapshot(optimizer)
        for tensor, version, words in after:
            earlier = before.get(id(tensor))
            if earlier is not None and (version, words) != (earlier.version, earlier.words):
                memory = Trained(tensor.numel() * tensor.element_size(), StorageWeakRef(tensor.untyped_storage()))
                watched.trained[tensor.data_ptr()] = memory
        # Again after a step that made new tensors, as the first one does.
        watched.armed, watched.before = len(after) != len(before), []

    def _snapshot(self, optimizer: Optimizer) -> list[_Before]:
        tensors = [
            each
            for each in _plain(_trained_items(optimizer))
            if each.is_cpu and each.numel() * each.element_size() > self._least_bytes
        ]
        return [_Before(tensor, tensor._version, words) for tensor, words in zip(tensors, _words(tensors), strict=True)]


def _trained_items(optimizer: Optimizer) -> Iterator[Any]:
    """The parameters of an optimizer that have dense gradients, and their optimizer state."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is not None and grad.layout is torch.strided and parameter.requires_grad:
                state = optimizer.state.get(parameter)
                yield from (parameter, *(state.values() if isinstance(state, dict) else ()))


def _words(tensors: list[torch.Tensor]) -> list[bytes | None]:
    """A few words of each tensor, to detect steps that advance no version counter (``fused=True``)."""
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
