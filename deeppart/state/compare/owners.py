"""The tensors that only an optimizer changes, and a call before it changes them.

torch tells of every ``step()`` of every optimizer before it begins (``register_optimizer_step_pre_hook``). What an
optimizer has in its parameter groups and its state changes there and nowhere else, as a rule; whoever relies on it has
to check that nothing else did.

Optimizers are known from the state that is saved, if they are in it as objects, and from their steps since this module
was first used. One whose ``step`` torch does not wrap, or that may be replayed in a CUDA graph, gives no word: its
tensors count as anybody's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from deeppart.errors import DeeppartError
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import PLAIN_TENSORS
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.sharded import is_sharded, local_tensors

#: As ``torch.compiler.disable``, which would bring in all of the compiler at once: two seconds of processor time for
#: each rank that starts. torch's own, which it decorates its optimizers with, does so when it is first called.
not_compiled = getattr(torch, "_disable_dynamo", torch.compiler.disable)

#: The name of the function that torch puts around ``step`` of an optimizer's class; it calls the hooks.
_WRAPPER = Optimizer.profile_hook_step(lambda optimizer: None).__code__.co_name


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
        addresses |= {tensor.data_ptr() for tensor in _tensors_of(optimizer)} - frozen
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


def _tensors_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return _plain(_items_of(optimizer))


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
