"""The stores of torch at which ranks can meet: that of ``env://``, and that of a process group."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import Any

from deeppart.comm.sockets.card import address_towards
from deeppart.comm.sockets.meeting import Place, Store
from deeppart.config import Launch, served_by_agent, socket_interface
from deeppart.errors import CommError, LaunchError

_PREFIX = "deeppart"
#: Of the time that a start has, for the store; and at least so many seconds.
_STORE_SHARE, _LEAST_S = 0.8, 0.1
_lock = threading.Lock()
#: Stores of ``env://`` that this process has connected to: on rank 0 the server lives as long as its object. Guarded by
#: the lock.
_connected: dict[tuple[str, int, int, int], Any] = {}


def at_environment(launch: Launch, timeout: float) -> Place:
    """The store at MASTER_ADDR and MASTER_PORT; rank 0 serves it, unless torchrun does."""
    distributed = _torch_distributed()
    assert launch.place is not None
    host, port = launch.place

    def open_store() -> Store:
        key = (host, port, launch.rank, launch.size)
        with _lock:
            if key in _connected and not _answers(_connected[key]):
                del _connected[key]
            if key not in _connected:
                # As init_process_group() does, with which the server is shared then; but without waiting for everybody.
                # It gives up before the start does, so that nothing of it is left at the end of the process.
                _connected[key] = distributed.TCPStore(
                    host,
                    port,
                    launch.size,
                    is_master=launch.rank == 0 and not served_by_agent(),
                    timeout=timedelta(seconds=max(_LEAST_S, _STORE_SHARE * timeout)),
                    wait_for_workers=False,
                    multi_tenant=True,
                )
            store: Store = distributed.PrefixStore(_PREFIX, _connected[key])
        return store

    return Place(f"{host}:{port}", launch.rank, launch.size, open_store, lambda: _interface(host, port))


def at_group(group: Any) -> Place:
    """The store of a process group of ``torch.distributed``; of the default group for None."""
    distributed = _torch_distributed()
    rank = distributed.get_rank(group)
    if rank < 0:
        raise LaunchError(
            "this process is not in the process group that was given as `comm`",
            where=f"rank {distributed.get_rank()} of the job",
            todo="make the checkpointer only on the ranks of the group",
        )
    group = distributed.group.WORLD if group is None else group
    store = distributed.PrefixStore(_PREFIX, _store_of(distributed, group))
    size = distributed.get_world_size(group)
    return Place(f"group {group.group_name}", rank, size, lambda: store, _interface_without_place)


def _answers(store: Any) -> bool:
    """Whether the server is still there."""
    try:
        store.add("deeppart", 0)
    except Exception:  # of whatever kind torch has for it
        return False
    return True


def initialized() -> bool:
    """Whether ``torch.distributed`` connects several processes, this one among them."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_group(comm: Any) -> bool:
    """Whether it is a process group, or what `new_group` returns to processes that are not in it."""
    from torch import distributed

    if not distributed.is_available():
        return False
    return isinstance(comm, distributed.ProcessGroup) or comm is distributed.GroupMember.NON_GROUP_MEMBER


def _torch_distributed() -> Any:
    from torch import distributed

    if not distributed.is_available():
        raise LaunchError(
            "this build of torch is without torch.distributed, through which the ranks would meet",
            todo="install another build of torch, or start the ranks by mpirun",
        )
    return distributed


def _store_of(distributed: Any, group: Any) -> Any:
    if hasattr(group, "get_group_store"):  # from 2.9 on
        return group.get_group_store()
    try:
        return distributed.distributed_c10d._world.pg_map[group][1]
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise LaunchError(
            "the process group that was given as `comm` has no store at which the ranks can meet",
            found=type(group).__name__,
            todo="make it with torch.distributed.init_process_group or new_group, or leave `comm` out",
        ) from error


def _interface(host: str, port: int) -> str:
    named = socket_interface()
    if named is not None:
        return named
    try:
        return address_towards(host, port)
    except OSError as error:
        raise CommError(
            "MASTER_ADDR cannot be reached from this host",
            found=str(error),
            where=f"{host}:{port}",
            todo="set MASTER_ADDR to the name or address of rank 0's host",
        ) from error


def _interface_without_place() -> str:
    return socket_interface() or _own_address()


def _own_address() -> str:
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return "127.0.0.1"
