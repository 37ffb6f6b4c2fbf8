"""Modules and optimizers in a restore: whether a live one fits the saved one, and what torch changes on loading."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.objects import is_optimizer
from deeppart.state.paths import Path, readable, some_names
from deeppart.state.restore.request import bare_name
from deeppart.state.restore.target import Target
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, RankLocal, ShardedLeaf, UnmadeLeaf, ValueLeaf

#: Names of the tensors that torch's optimizers keep for each element of a parameter.
_OF_ELEMENTS = frozenset(
    "acc_delta ax exp_avg exp_avg_sq exp_inf grad_avg max_exp_avg_sq momentum_buffer prev square_avg sum".split()
)
#: Names in an error, at most.
MOST_NAMED = 10


class Parameters(NamedTuple):
    """The parameters of a live optimizer, in the order of their numbers in its state.

    Attributes:
        path: the optimizer's path.
        tensors: the parameters.
    """

    path: Path
    tensors: list[Any]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, path: Path) -> Parameters:
        """Those of an optimizer at a path."""
        return cls(path, [each for group in optimizer.param_groups for each in group["params"]])

    def at(self, path: Path) -> Any:
        """The parameter of an item at ``state/NUMBER/NAME`` of the optimizer; None for other paths."""
        number = path[-2] if path[:-2] == (*self.path, "state") else None
        return self.tensors[number] if type(number) is int and 0 <= number < len(self.tensors) else None


def check_module(saved: Branch, live: Branch, kind: str, path: Path) -> None:
    """Refuse keys that a module lacks, before anything is changed."""
    theirs, mine = set(saved.keys), set(live.keys)
    extra = [key for key in saved.keys if key not in mine]
    lacking = [key for key in live.keys if key not in theirs]
    if extra:
        raise StructureMismatchError(
            f"the checkpoint has leaves that the live module lacks: {readable((*path, extra[0]))}",
            expected=f"keys {some(lacking)} (live {kind})" if lacking else f"no other keys than those of the {kind}",
            found=f"also {some(extra)} (checkpoint)",
            where=f"path {readable(path)}",
            todo="build the module as it was when it was saved; rename= if only names have changed; or leave them "
            f"out (strict=False{', which leaves what the checkpoint lacks at random values' if lacking else ''}); "
            'if ranks have parts of one model, such as pipeline stages, say so: replicated={"the/path/*": "parts"}',
        )


def check_optimizer(
    saved: Branch, live: Branch, optimizer: torch.optim.Optimizer, parameters: Parameters, target: Target
) -> None:
    """Refuse other parameter groups than an optimizer has, before anything is changed."""
    path = parameters.path
    if any(each.is_meta for each in parameters.tensors):
        raise StructureMismatchError(
            f"an optimizer has parameters on the meta device, where its state would be lost: {readable(path)}",
            where=f"path {readable(path)}",
            todo="call module.to_empty(device=...) first, and build the optimizer over its parameters then",
        )
    if texts := [key for key in _state_keys(saved) if isinstance(key, str) and key.isdecimal()]:
        raise StructureMismatchError(
            f"an optimizer's state was saved with texts as parameter numbers: {readable(path)}",
            expected="numbers, as the live optimizer has them",
            found=some(texts),
            where=f"path {readable(path)}",
            todo="DCP makes texts of them: import that checkpoint again, or give what deeppart.load gives, with "
            "numbers, to its load_state_dict()",
        )
    groups = [_groups(saved, target.values), _groups(live)]
    shapes = [[len(_sequence(group, "params")) for group in each] for each in groups]
    if shapes[0] != shapes[1]:
        raise StructureMismatchError(
            f"an optimizer has other parameter groups than in the checkpoint: {readable(path)}",
            expected=f"parameters per group {shapes[0]} (checkpoint)",
            found=f"{shapes[1]} (live)",
            where=f"path {readable(path)}",
            todo="build the optimizer over the same parameters, in the same groups",
        )
    # torch only uses the numbers of the parameters, and would give one parameter the state of another.
    names = [chain.from_iterable(_sequence(group, "param_names") for group in each) for each in groups]
    pairs = [pair for pair in zip(*names, strict=False) if all(isinstance(name, str) for name in pair)]
    if differing := [pair for pair in pairs if bare_name(pair[0]) != bare_name(pair[1])]:
        raise StructureMismatchError(
            f"an optimizer has other parameters than in the checkpoint, or in another order: {readable(path)}",
            expected=f"{some([theirs for theirs, _ in differing])} (checkpoint)",
            found=f"{some([mine for _, mine in differing])} (live)",
            where=f"path {readable(path)}",
            todo="give the optimizer named_parameters() in the order in which they were saved; or, if only the "
            "names have changed, parameters()",
        )
    if type(optimizer).__module__.startswith("torch.optim."):  # others may keep them in other shapes
        _check_moments(saved, parameters, target.types)


def _check_moments(saved: Branch, parameters: Parameters, types: Mapping[int, LeafType]) -> None:
    """What an optimizer keeps for each element of a parameter has the shape of the one that gets it by its number."""
    path, state = parameters.path, saved.by_key().get("state")
    for inner, moments in state.items((*path, "state")) if isinstance(state, Branch) else ():
        for where, leaf in moments.items(inner) if isinstance(moments, Branch) else ():
            if not isinstance(leaf, ArrayLeaf) or where[-1] not in _OF_ELEMENTS:
                continue
            like, shape = parameters.at(where), types[leaf.index].shape
            if like is None or shape == tuple(like.shape):
                continue
            raise StructureMismatchError(
                f"an optimizer has other parameters than in the checkpoint, or in another order: {readable(path)}",
                expected=f"shape {list(shape)} of parameter {inner[-1]}, as its {where[-1]} (checkpoint)",
                found=f"shape {list(like.shape)} (live)",
                where=f"path {readable(where)}",
                todo="give the optimizer the parameters in the order in which they were saved",
            )


def _state_keys(state_dict: Branch) -> Sequence[object]:
    """The keys of an optimizer's state, one for each parameter that has any."""
    state = state_dict.by_key().get("state")
    return state.keys if isinstance(state, Branch) else ()


def _groups(state_dict: Branch, values: Mapping[int, Any] | None = None) -> list[dict[Any, Any]]:
    """The parameter groups of an optimizer's state_dict."""
    groups = plain(state_dict.by_key().get("param_groups"), values)
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def class_name_of(saved: Branch) -> str:
    """The name of a saved object's class, without its module."""
    return saved.name.rpartition(".")[2]


def goes_by(optimizer: torch.optim.Optimizer) -> set[str]:
    """Names of an optimizer's class and of the torch class that it extends, also of a wrapped optimizer.

    For torch's own classes only the first: AdamW extends Adam, but differs from it.
    """
    names = set()
    for each in (optimizer, getattr(optimizer, "optimizer", None)):
        if is_optimizer(each):
            classes = type(each).__mro__
            torchs = (at for at, kind in enumerate(classes) if kind.__module__.startswith("torch.optim."))
            names |= {kind.__name__ for kind in classes[: next(torchs, 0) + 1]}
    return names


def is_unreached(saved: Branch, live: Branch, values: Mapping[int, Any]) -> bool:
    """True if a dict is the result of an optimizer's ``state_dict()``, and not all that is restored reaches it.

    The dict is not the optimizer's. Their tensors are the same if it has stepped, but items created in the dict do not
    reach it, nor do settings such as the learning rate.
    """
    if live.kind not in DICTS or not set(saved.keys) == set(live.keys) == {"state", "param_groups"}:
        return False
    before, after = _state_keys(live), _state_keys(saved)
    if not after or all(type(key) is str for key in after):
        return False  # with names: from get_optimizer_state_dict, whose caller uses set_optimizer_state_dict
    groups = zip(_groups(saved, values), _groups(live), strict=False)
    return not before or any(old[key] != new[key] for new, old in groups for key in old.keys() & new.keys())


def _sequence(group: dict[Any, Any], name: str) -> Sequence[Any]:
    """A list in a group; empty if there is none."""
    found = group.get(name)
    return found if isinstance(found, (list, tuple)) else ()


def plain(node: Any, values: Mapping[int, Any] | None = None) -> Any:
    """Lists, dicts and small values of a tree, with None for its other leaves; a container of values is one already.

    Args:
        values: those of a saved tree; a live one has its own.
    """
    if isinstance(node, ValueLeaf):
        return node.value if values is None else values[node.index]
    if not isinstance(node, Branch):
        return None if isinstance(node, (ArrayLeaf, ShardedLeaf, RankLocal, UnmadeLeaf)) else node
    items = [plain(child, values) for child in node.children]
    return items if node.kind in ("list", "tuple") else dict(zip(node.keys, items, strict=False))


def some(keys: Any) -> str:
    """The first keys, and how many there are."""
    return some_names(list(map(repr, keys)), most=MOST_NAMED)


def undo_casts(
    optimizer: torch.optim.Optimizer,
    state_dict: Any,
    before: Mapping[Any, Any],
    is_cast: Callable[[torch.Tensor], bool],
) -> None:
    """Give optimizer state its saved dtype again: torch casts it to its parameter's dtype on loading.

    torch also makes new containers, and copies of texts. A state_dict() of another form is left alone.
    """
    if not isinstance(state_dict, dict) or not state_dict.keys() >= {"state", "param_groups"}:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    if len(numbers) != len(parameters):
        return
    by_torch = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict

    def as_saved(restored: Any, loaded: Any, parameter: torch.Tensor, had: bool) -> Any:
        if not isinstance(restored, torch.Tensor):
            return _on_device(restored, parameter.device) if by_torch else loaded
        if not isinstance(loaded, torch.Tensor) or loaded.dtype == restored.dtype:
            return loaded
        return restored.to(loaded.device) if had or not is_cast(parameter) else loaded

    for number, parameter in zip(numbers, parameters, strict=True):
        if number not in state_dict["state"] or parameter not in optimizer.state:
            continue
        restored, loaded, had = state_dict["state"][number], optimizer.state[parameter], before.get(parameter, ())
        if isinstance(restored, dict) and isinstance(loaded, dict):
            for name in restored.keys() & loaded.keys():
                loaded[name] = as_saved(restored[name], loaded[name], parameter, name in had)
        else:  # a tensor, or a list of them
            optimizer.state[parameter] = as_saved(restored, loaded, parameter, parameter in before)


def _on_device(item: Any, device: torch.device) -> Any:
    """The item with its tensors on a device."""
    if isinstance(item, torch.Tensor):
        return item.to(device)
    if type(item) in (list, tuple):
        return type(item)(_on_device(each, device) for each in item)
    if type(item) in (dict, OrderedDict):
        return type(item)((key, _on_device(each, device)) for key, each in item.items())
    if isinstance(item, tuple) and hasattr(item, "_make"):
        return item._make(_on_device(each, device) for each in item)
    return item
