"""The position of a data loader that has one, such as torchdata's StatefulDataLoader, in exact form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def own_generator(loader: Any) -> None:
    """Give a loader a random generator of its own, if it uses the process's.

    Loaders draw a seed whenever they begin, and a restart begins once more than a run that was never ended.
    """
    if hasattr(loader, "generator") and loader.generator is None:
        loader.generator = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63))


def position(loader: Any) -> dict[str, Any]:
    """Where a loader is: small values, to be packed. It differs between ranks."""
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
