"""Checkpoints of Megatron-core's sharded state dicts, instead of ``dist_checkpointing.save`` and ``load``.

found = load(checkpointer, sharded_state_dict)  # None, or .step and .state_dict
save(checkpointer, sharded_state_dict, step)
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from deeppart import Checkpointer, Pending
from deeppart.errors import UnsupportedLeafError
from deeppart.interop.saving import Saving, require
from deeppart.interop.training_state import pack, unpack
from deeppart.types import PerRank

require("megatron-core", "0.15", "deeppart.interop.megatron")

from megatron.core.dist_checkpointing.dict_utils import (
    dict_list_map_outplace,
    extract_matching_values,
    merge,
    nested_values,
)
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    apply_factories,
    apply_factory_merges,
    is_main_replica,
)
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess
from megatron.core.dist_checkpointing.strategies.checkpointable import (
    CheckpointableShardedTensor,
    LocalShardsContainer,
)
from megatron.core.dist_checkpointing.utils import (
    extract_nonpersistent,
    extract_sharded_base,
    force_all_tensors_to_non_fp8,
)


class Loaded(NamedTuple):
    """What :func:`load` has found.

    Attributes:
        step: of the checkpoint.
        state_dict: for ``load_state_dict`` of model, optimizer and schedulers. Its tensors are those of the sharded
            state dict, which hold the saved elements now.
    """

    step: int
    state_dict: dict[str, Any]


def save(
    checkpointer: Checkpointer,
    sharded_state_dict: dict[str, Any],
    step: int,
    *,
    force: bool = False,
    share_replicas: bool = False,
) -> Pending:
    """Save a sharded state dict (collective); returns as soon as its tensors may change.

    Each ``ShardedTensor`` is saved as a shard of the tensor of its ``key``, each ``ShardedObject`` under its unique
    key; of each, what the main replica has (``replica_id`` of zeros alone). Factories are applied,
    ``LocalNonpersistentObject`` is left out, and all else is common to the ranks. On disk is no layout: ``load`` takes
    any other one.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`.
        sharded_state_dict: as for ``dist_checkpointing.save``; it is not changed.
        step, force: as of :meth:`deeppart.Checkpointer.checkpoint`.
        share_replicas: True: all replicas of a tensor take part, so that each copies and writes a share of it; and they
            are compared. They must be equal: if not, a warning tells, and each rank's is saved.

    Raises:
        UnsupportedLeafError: there is something that cannot be stored exactly.
        DeeppartError: as of :meth:`deeppart.Checkpointer.checkpoint`.

    Example:
        >>> from deeppart.interop.megatron import load, save  # doctest: +SKIP
        >>> found = load(checkpointer, {"model": model.sharded_state_dict()})  # doctest: +SKIP
        >>> save(checkpointer, {"model": model.sharded_state_dict()}, step)  # doctest: +SKIP
    """
    return Saving(checkpointer).save(lambda: _state(sharded_state_dict, share_replicas), step, force=force)


def load(
    checkpointer: Checkpointer,
    sharded_state_dict: dict[str, Any],
    step: int | None = None,
    per_rank: PerRank | None = None,
) -> Loaded | None:
    """Restore into a sharded state dict, in place (collective): of any layout, on any number of ranks.

    A part will do: sharded tensors and objects that only the checkpoint has are neither read nor returned. Common
    values are all returned.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`.
        sharded_state_dict: as for ``dist_checkpointing.load``; its tensors are written into.
        step: which one; None for the newest that can be recovered.
        per_rank: what becomes of what differed between ranks on another number of ranks, as of
            :meth:`deeppart.Checkpointer.restore`; what it does not name is rank 0's.

    Returns:
        None if there is no checkpoint.

    Raises:
        DeeppartError: as of :meth:`deeppart.Checkpointer.restore`; the tensors are unchanged.
    """
    force_all_tensors_to_non_fp8(sharded_state_dict)
    preprocessed, nonpersistent, factories = load_preprocess(sharded_state_dict)
    sharded, _ = extract_sharded_base(preprocessed)
    live = _by_key(_leaves(sharded))
    objects = {each.unique_key: "" for each in _leaves(sharded) if isinstance(each, ShardedObject)}
    restored: dict[str, Any] = live | objects
    state: dict[str, Any] = {"common": {}} | ({"sharded": restored} if restored else {})  # an empty dict asks for all
    restored_step = Saving(checkpointer).restore(state, step, per_rank, others="rank0", strict=_is_unexpected)
    if restored_step is None:
        return None

    def data_of(each: Any) -> Any:
        if isinstance(each, ShardedObject):
            found = unpack(restored[each.unique_key], each.unique_key)
            if isinstance(found, io.BytesIO):  # extra states of Transformer Engine, written up to their end
                found.seek(0)
            return found
        _copy_repeated(each, live[each.key])
        return each.data

    result = state["common"]
    merge(result, nonpersistent)
    merge(result, dict_list_map_outplace(data_of, sharded))
    return Loaded(restored_step, apply_factory_merges(result, factories))


def _state(sharded_state_dict: dict[str, Any], share_replicas: bool) -> dict[str, Any]:
    """What is saved of a sharded state dict on this rank."""
    copied, _ = extract_matching_values(sharded_state_dict, lambda _: True)
    apply_factories(copied)
    _, persistent = extract_nonpersistent(copied)
    sharded, common = extract_sharded_base(persistent)
    found = _by_key(each for each in _leaves(sharded) if share_replicas or is_main_replica(each.replica_id))
    for each in _leaves(sharded):
        if isinstance(each, ShardedObject) and is_main_replica(each.replica_id):
            found[each.unique_key] = pack(each.data, each.unique_key)
    return {"sharded": found, "common": common}


def _leaves(sharded: Any) -> Iterator[Any]:
    """All sharded tensors and objects of a nested dict."""
    return iter(list(nested_values(sharded)))


def _by_key(leaves: Iterator[Any]) -> dict[str, Any]:
    """The shards of this rank, as one leaf for each key."""
    shards: dict[str, dict[tuple[int, ...], Any]] = {}
    for each in leaves:
        if isinstance(each, ShardedTensor):
            of_key = shards.setdefault(each.key, {})
            of_key.setdefault(tuple(each.global_offset), CheckpointableShardedTensor.from_sh_ten(_full(each)))
        elif not isinstance(each, ShardedObject):
            raise UnsupportedLeafError(
                f"a {type(each).__name__} in a sharded state dict",
                expected="ShardedTensor, ShardedObject, ShardedTensorFactory, LocalNonpersistentObject",
                where=f"key {getattr(each, 'key', '?')}",
                todo="convert it before",
            )
    return {key: LocalShardsContainer(list(of_key.values())) for key, of_key in shards.items()}


def _full(tensor: Any) -> Any:
    """A sharded tensor whose local tensor has all dimensions of the global one, such as that of layers."""
    if tensor.data is None:
        raise UnsupportedLeafError(
            "a ShardedTensor without data", expected="a tensor", found="None", where=f"key {tensor.key}"
        )
    data = tensor.data.detach()
    for _ in range(tensor.prepend_axis_num):
        data = data.unsqueeze(0)
    return replace(tensor, data=data, local_shape=tuple(data.shape), prepend_axis_num=0)


def _copy_repeated(tensor: Any, container: Any) -> None:
    """The same shard may be in the state dict twice, as separate tensors, of which one was restored."""
    for shard in container._local_shards:
        if tuple(shard._sh_ten.global_offset) == tuple(tensor.global_offset):
            source = shard._sh_ten.data.reshape(tensor.data.shape)
            if source.data_ptr() != tensor.data.data_ptr():
                tensor.data.detach().copy_(source)


def _is_unexpected(path: str, difference: str) -> bool:
    """What this rank has no place for is left out; what it has must be in the checkpoint."""
    return difference == "unexpected"
