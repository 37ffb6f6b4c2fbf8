"""torch's stores at which ranks can meet: that of ``env://``, and that of a process group."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from functools import partial
from typing import Any

from deeppart.comm.sockets.address import interface_of_host, ip_address_towards
from deeppart.comm.sockets.rendezvous import Rendezvous, Store
from deeppart.config import Launch, served_by_agent, socket_interface
from deeppart.errors import CommError, LaunchError

_PREFIX = "deeppart"
#: The share of a start's timeout for the store; and its minimum in seconds.
_STORE_SHARE, _LEAST_S = 0.8, 0.1


class _Process:
    """The meeting points of this process, reused by later sessions; the only one is :data:`_process`.

    On rank 0 the server of ``env://`` lives as long as the object that is connected to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Guarded by the lock.
        self._environments: dict[Launch, Rendezvous] = {}
        self._groups: weakref.WeakKeyDictionary[Any, Rendezvous] = weakref.WeakKeyDictionary()

    def at_environment(self, launch: Launch) -> Rendezvous:
        assert launch.place is not None
        with self._lock:
            if launch not in self._environments:
                interface = partial(_interface, *launch.place)
                store = _EnvironmentStore(*launch.place, launch)
                self._environments[launch] = Rendezvous(launch.rank, launch.size, store, interface)
            return self._environments[launch]

    def at_group(self, group: Any, rank: int, size: int, store: Store) -> Rendezvous:
        with self._lock:
            if group not in self._groups:
                self._groups[group] = Rendezvous(rank, size, lambda _: store, interface_of_host)
            return self._groups[group]


_process = _Process()


class _EnvironmentStore:
    """Connects to the store at MASTER_ADDR and MASTER_PORT, again only if it does not answer."""

    def __init__(self, host: str, port: int, launch: Launch) -> None:
        self._host, self._port, self._launch = host, port, launch
        self._lock = threading.Lock()
        self._connected: Any = None  # guarded by the lock

    def __call__(self, timeout: float) -> Store:
        distributed = _torch_distributed()
        with self._lock:
            if self._connected is None or not _answers(self._connected):
                # Like init_process_group(), with which the server is shared; but without waiting for all ranks.
                # The timeout is shorter than the start's, so that nothing of it is left at the end of the process.
                self._connected = None
                self._connected = distributed.TCPStore(
                    self._host,
                    self._port,
                    self._launch.size,
                    is_master=self._launch.rank == 0 and not served_by_agent(),
                    timeout=timedelta(seconds=max(_LEAST_S, _STORE_SHARE * timeout)),
                    wait_for_workers=False,
                    multi_tenant=True,
                )
            store: Store = distributed.PrefixStore(_PREFIX, self._connected)
        return store


def at_environment(launch: Launch) -> Rendezvous:
    """The store at MASTER_ADDR and MASTER_PORT; rank 0 serves it, unless torchrun does."""
    _torch_distributed()
    return _process.at_environment(launch)


def at_group(group: Any) -> Rendezvous:
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
    return _process.at_group(group, rank, distributed.get_world_size(group), store)


def _answers(store: Any) -> bool:
    """True if the server answers."""
    try:
        store.add("deeppart", 0)
    except Exception:  # the type depends on torch
        return False
    return True


def initialized() -> bool:
    """True if ``torch.distributed`` connects several processes, including this one."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_group(comm: Any) -> bool:
    """True for a process group, or the result of `new_group` in processes outside the group."""
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
        return ip_address_towards(host, port)
    except OSError as error:
        raise CommError(
            "MASTER_ADDR cannot be reached from this host",
            found=str(error),
            where=f"{host}:{port}",
            todo="set MASTER_ADDR to the name or address of rank 0's host",
        ) from error
