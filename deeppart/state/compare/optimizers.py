"""What optimizers own, when they change it, and what they are seen to train.

torch tells of every ``step()`` of every optimizer before it begins (``register_optimizer_step_pre_hook``). What an
optimizer has in its parameter groups and its state changes there and nowhere else, as a rule (:class:`OwnedTensors`);
whoever relies on it has to check that nothing else did. Optimizers are known from the state that is saved, if they are
in it as objects, and from their steps since this module was first used. One whose ``step`` torch does not wrap, or that
may be replayed in a CUDA graph, gives no word: its tensors count as anybody's.

That an optimizer has a tensor does not say that it changes it: the parameter may be frozen or get no gradients, the
tensor may be somebody else's. So its first step after each checkpoint is watched (:class:`TrainingWatch`): what it
writes to then, and still owns at the next checkpoint, it trains. In doubt, nobody trains a tensor. The watch costs a
look at each of the optimizer's large tensors before and after one step per checkpoint.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from deeppart.errors import DeeppartError
from deeppart.state.tree.fingerprint import memory_over
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import PLAIN_TENSORS
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.sharded import is_sharded, local_tensors

#: As ``torch.compiler.disable``, which would bring in all of the compiler at once: two seconds of processor time for
#: each rank that starts. torch's own, which it decorates its optimizers with, does so when it is first called.
not_compiled = getattr(torch, "_disable_dynamo", torch.compiler.disable)
#: The name of the function that torch puts around ``step`` of an optimizer's class; it calls the hooks.
_WRAPPER = Optimizer.profile_hook_step(lambda optimizer: None).__code__.co_name
#: Words of a tensor that are looked at where its version counter does not tell.
_LOOKED_AT = 8
_WORD_BYTES = 8


class _Registry:
    """All optimizers that have stepped, and those who are told before the next step. One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._listeners: list[Callable[[], None]] = []
        self._hook: Any = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` before every step, in the thread that steps."""
        with self._lock:
            self._listeners.append(listener)
            if self._hook is None:
                self._hook = register_optimizer_step_pre_hook(self._before_step)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Do not any more."""
        with self._lock:
            self._listeners.remove(listener)
            if not self._listeners and self._hook is not None:
                self._hook.remove()
                self._hook = None

    def stepped(self) -> list[Optimizer]:
        """The optimizers that have stepped, while anyone listened."""
        with self._lock:
            return list(self._stepped)

    @not_compiled  # type: ignore[untyped-decorator]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with self._lock:
            if is_optimizer(optimizer):
                self._stepped.add(optimizer)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


REGISTRY = _Registry()


class OwnedTensors:
    """The large tensors that only a known optimizer changes.

    Most checkpoints find an optimizer with the very tensors of the last one: then the small ones are not looked at.
    """

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._found: weakref.WeakKeyDictionary[Optimizer, _Found] = weakref.WeakKeyDictionary()
        #: Address of a shard -> the sharded tensor, which counts the writes to it. Of the last call.
        self.counters: dict[int, torch.Tensor] = {}

    def of(self, flat: FlatState) -> dict[int, torch.Tensor]:
        """Address -> tensor; of a sharded one, that of this rank's shard."""
        owned: dict[int, torch.Tensor] = {}
        self.counters = {}
        for optimizer in _known_optimizers(flat):
            if _gives_word(optimizer):
                owned |= self._of(optimizer)
        return owned

    def _of(self, optimizer: Optimizer) -> dict[int, torch.Tensor]:
        items = _items_of(optimizer)
        found = self._found.get(optimizer)
        large = None if found is None else found.among(items)
        if large is None:
            large = [each for each in items if self._has_large(each)]
            self._found[optimizer] = _Found(items, large)
        self.counters |= {local.data_ptr(): each for each in large if _is_apart(each) for local in _plain((each,))}
        return {tensor.data_ptr(): tensor for tensor in _plain(large)}

    def _has_large(self, item: Any) -> bool:
        return any(each.numel() * each.element_size() > self._least_bytes for each in _plain((item,)))


class _Found:
    """The items of an optimizer that are, or hold, large tensors. Keeps none of them alive."""

    def __init__(self, items: list[Any], large: list[Any]) -> None:
        places = {id(item): place for place, item in enumerate(items)}
        self._ids = list(map(id, items))
        self._is_flat = all(isinstance(item, torch.Tensor) for item in large)  # and none in a list among the items
        self._places = [places[id(tensor)] for tensor in large] if self._is_flat else []

    def among(self, items: list[Any]) -> list[Any] | None:
        """The large ones among the items; None if the items may be others than they were.

        Of something that is gone, another item may have got the id. It is the optimizer's as well; and if it is larger
        or smaller, it counts as nobody's, as one that has grown, or is told by its bytes.
        """
        if not self._is_flat or list(map(id, items)) != self._ids:
            return None
        return [items[place] for place in self._places]


def holds_alone(owner: torch.Tensor | None, nbytes: int, held_bytes: int) -> bool:
    """True if an optimizer's tensor has all of a leaf at its address, in a storage that nobody else has.

    Parameters may be views of one flat buffer: who writes to that advances a version counter that nobody here knows of.
    """
    return owner is not None and owner.numel() * owner.element_size() >= nbytes >= held_bytes


def trained_leaves(flat: FlatState) -> frozenset[int]:
    """Numbers of the leaves that a known optimizer changes at every step: its state, and what it has gradients for."""
    addresses: set[int] = set()
    for optimizer in _known_optimizers(flat):
        parameters = [each for group in optimizer.param_groups for each in group["params"] if not each.requires_grad]
        frozen = {each.data_ptr() for each in _plain(parameters)}
        addresses |= {tensor.data_ptr() for tensor in _plain(_items_of(optimizer))} - frozen
    return frozenset(leaf for leaf, address in enumerate(flat.pointers) if address in addresses)


def _known_optimizers(flat: FlatState) -> Iterable[Optimizer]:
    """Those that have stepped and those in the state, each once."""
    in_state = [branch.container for branch in flat.objects if is_optimizer(branch.container)]
    return {id(each): each for each in (*REGISTRY.stepped(), *in_state)}.values()


def _gives_word(optimizer: Optimizer) -> bool:
    """True if a step really begins with the hook: torch's wrapper is around it.

    ``functools.wraps`` copies the mark from the step of another class; a schedule of the learning rate puts a step of
    its own, which calls the one of the class, before the instance.
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


def _is_apart(item: Any) -> bool:
    """True for a sharded tensor."""
    return isinstance(item, torch.Tensor) and type(item) not in PLAIN_TENSORS and is_sharded(item)


def shards_here(item: Any) -> list[torch.Tensor]:
    """The plain tensors of a sharded tensor on this rank; [] if it does not tell."""
    try:
        return local_tensors(item)
    except DeeppartError:
        return []


def _plain(items: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Those of the items, and of lists among them, that are strided tensors with a version counter.

    Of a sharded tensor it is what lies on this rank: the tensor itself has no memory.
    """
    for item in items:
        if _is_apart(item):
            yield from _plain(shards_here(item))
        elif isinstance(item, torch.Tensor):
            if item.layout is torch.strided and not item.is_inference() and not item.is_meta:
                yield item
        elif isinstance(item, (list, tuple)):
            yield from _plain(item)


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


# --- what is trained --------------------------------------------------------------------------------------------------


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


# --- tensors told apart -----------------------------------------------------------------------------------------------


class TensorIdentity:
    """The identity of a tensor object and its storage."""

    __slots__ = ("_id", "_storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._id = id(tensor)
        self._storage = StorageWeakRef(tensor.untyped_storage())

    def is_of(self, tensor: object) -> bool:
        """True if this is that tensor, with the storage that it had."""
        if id(tensor) != self._id or not isinstance(tensor, torch.Tensor):
            return False
        return bool(tensor.untyped_storage()._cdata == self._storage.cdata)
