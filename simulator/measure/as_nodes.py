"""One host whose ranks are taken for nodes: what each of them has of it while all do the same."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from deeppart.model import Level

from ..machine.record import Machine


def as_nodes(machine: Machine, nodes: int, lost: str | None = None) -> Machine:
    """The machine that consists of such nodes, one rank on each.

    Each of them has its part of the memory and of the local storage, whether or not the others use theirs: that is what
    nodes are. The file system is one for all, and one node alone has what one rank has of it.
    """
    crowding = machine.crowding(nodes)
    memory, local, network, persistent = machine.memory, machine.local, machine.network, machine.persistent
    copy = min(memory.copy, memory.node_copy / nodes)
    read = min(local.rank_read, local.read / nodes)
    if lost == Level.PARTNER:  # as much with the others as without them
        read = 2 / (1 / read + 1 / min(local.rank_read, local.read))
    codecs = {
        dtype: replace(codec, encode=codec.encode / crowding, decode=codec.decode / crowding)
        for dtype, codec in machine.codecs.items()
    }
    return replace(
        machine,
        nodes=nodes,
        ranks_per_node=1,
        cores=max(1, machine.cores // nodes),
        memory=replace(
            memory,
            copy=copy,
            node_copy=copy,
            tensor=memory.tensor * crowding,
            call=memory.call * crowding,
            leaf=memory.leaf * crowding,
            defer_call=memory.defer_call * crowding,
            defer=memory.defer * crowding,
            late_tensor=memory.late_tensor * crowding,
            hash=memory.hash / crowding,
            compare=memory.compare * crowding,
            compare_large=memory.compare_large * crowding,
            restore=memory.restore * crowding,
            restored_leaf=memory.restored_leaf * crowding,
        ),
        local=replace(
            local,
            write=min(local.rank_write, local.write / nodes),
            read=read,
            tensor=local.tensor * crowding,
            work=local.work / crowding,
        ),
        network=replace(
            network,
            copies=network.copies / crowding,
            parity=network.parity / crowding,
            rebuild=network.rebuild / crowding,
        ),
        persistent=replace(
            persistent,
            write=min(persistent.write, persistent.node_write),
            read=min(persistent.read, persistent.node_read),
            node_write=min(persistent.rank_write, persistent.node_write),
            node_read=min(persistent.rank_read, persistent.node_read),
            tensor=persistent.tensor * crowding,
            leaf=persistent.leaf * crowding,
            work=persistent.work / crowding,
        ),
        codecs=MappingProxyType(codecs),
    )
