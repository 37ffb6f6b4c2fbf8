"""Checkpoints of Megatron-core's sharded state dicts, in place of ``dist_checkpointing.save`` and ``load``.

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
from megatron.core.dist_checkpointing.strategies.checkpointable import CheckpointableShardedTensor, LocalShardsContainer
from megatron.core.dist_checkpointing.utils import (
    extract_nonpersistent,
    extract_sharded_base,
    force_all_tensors_to_non_fp8,
)


class Loaded(NamedTuple):
    """The result of :func:`load`.

    Attributes:
        step: the restored step.
        state_dict: for ``load_state_dict`` of model, optimizer and schedulers. Its tensors are those of the sharded
            state dict, with the restored elements.
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
    """Save a sharded state dict (collective); returns once its tensors may change.

    Each ``ShardedTensor`` is saved as a shard of the global tensor ``key``, each ``ShardedObject`` under its unique
    key, both from the main replica (all zeros in ``replica_id``). Factories are applied, ``LocalNonpersistentObject``
    is left out, and everything else is common to the ranks. The checkpoint can be loaded with any other layout.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`.
        sharded_state_dict: as for ``dist_checkpointing.save``; not modified.
        step, force: as for :meth:`deeppart.Checkpointer.checkpoint`.
        share_replicas: divide each tensor among its replicas, so that each rank copies and writes a part of it.
            Replicas are compared; if they differ, a warning is issued and each rank's replica is saved.

    Raises:
        UnsupportedLeafError: an item cannot be stored exactly.
        DeeppartError: as for :meth:`deeppart.Checkpointer.checkpoint`.
    """
    return Saving(checkpointer).save(lambda: _state(sharded_state_dict, share_replicas), step, force=force)


def load(
    checkpointer: Checkpointer,
    sharded_state_dict: dict[str, Any],
    step: int | None = None,
    per_rank: PerRank | None = None,
) -> Loaded | None:
    """Restore into a sharded state dict in place (collective), with any layout and world size.

    The state dict may be partial: other sharded tensors and objects of the checkpoint are not read. All common values
    are returned.

    Args:
        checkpointer: an open :class:`deeppart.Checkpointer`.
        sharded_state_dict: as for ``dist_checkpointing.load``; its tensors are overwritten.
        step: the step; None for the newest recoverable one.
        per_rank: policies for rank-local leaves on another world size, as for
            :meth:`deeppart.Checkpointer.restore`; rank 0's by default.

    Returns:
        The step and state dict; None if there is no checkpoint.

    Raises:
        DeeppartError: as for :meth:`deeppart.Checkpointer.restore`; the tensors are unchanged.
    """
    force_all_tensors_to_non_fp8(sharded_state_dict)
    preprocessed, nonpersistent, factories = load_preprocess(sharded_state_dict)
    sharded, _ = extract_sharded_base(preprocessed)
    live = _by_key(nested_values(sharded))
    objects = {each.unique_key: "" for each in nested_values(sharded) if isinstance(each, ShardedObject)}
    restored: dict[str, Any] = live | objects
    # An empty dict would restore everything.
    state: dict[str, Any] = {"common": {}} | ({"sharded": restored} if restored else {})

    def ignores(path: str, difference: str) -> bool:
        return difference == "unexpected"  # leaves that only the checkpoint has

    restored_step = Saving(checkpointer).restore(state, step, per_rank, defaults="rank0", strict=ignores)
    if restored_step is None:
        return None

    def data_of(each: Any) -> Any:
        if isinstance(each, ShardedObject):
            found = unpack(restored[each.unique_key], each.unique_key)
            if isinstance(found, io.BytesIO):  # extra state of Transformer Engine, positioned at its end
                found.seek(0)
            return found
        _copy_repeated(each, live[each.key])
        return each.data

    result = state["common"]
    merge(result, nonpersistent)
    merge(result, dict_list_map_outplace(data_of, sharded))
    return Loaded(restored_step, apply_factory_merges(result, factories))


def _state(sharded_state_dict: dict[str, Any], share_replicas: bool) -> dict[str, Any]:
    """The state to save on this rank."""
    copied, _ = extract_matching_values(sharded_state_dict, lambda _: True)
    apply_factories(copied)
    _, persistent = extract_nonpersistent(copied)
    sharded, common = extract_sharded_base(persistent)
    found = _by_key(each for each in nested_values(sharded) if share_replicas or is_main_replica(each.replica_id))
    for each in nested_values(sharded):
        if isinstance(each, ShardedObject) and is_main_replica(each.replica_id):
            found[each.unique_key] = pack(each.data, each.unique_key)
    return {"sharded": found, "common": common}


def _by_key(leaves: Iterator[Any]) -> dict[str, Any]:
    """This rank's shards, grouped by key."""
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
                todo="convert it to one of these",
            )
    return {key: LocalShardsContainer(list(of_key.values())) for key, of_key in shards.items()}


def _full(tensor: Any) -> Any:
    """A sharded tensor whose local tensor has all dimensions of the global one, prepended ones included."""
    if tensor.data is None:
        raise UnsupportedLeafError(
            "a ShardedTensor without data", expected="a tensor", found="None", where=f"key {tensor.key}"
        )
    data = tensor.data.detach()
    for _ in range(tensor.prepend_axis_num):
        data = data.unsqueeze(0)
    return replace(tensor, data=data, local_shape=tuple(data.shape), prepend_axis_num=0)


def _copy_repeated(tensor: Any, container: Any) -> None:
    """Copy a shard to its duplicates in the state dict, of which only one is restored."""
    for shard in container._local_shards:
        if tuple(shard._sh_ten.global_offset) == tuple(tensor.global_offset):
            source = shard._sh_ten.data.reshape(tensor.data.shape)
            if source.data_ptr() != tensor.data.data_ptr():
                tensor.data.detach().copy_(source)
