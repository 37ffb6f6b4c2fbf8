"""The tests for ranks once more, over the communicator that needs no MPI: ``make test COMM=torch``.

The ranks are started by mpirun all the same, and the tests themselves talk by MPI; the library gets MPI communicators,
and connects the ranks of each over sockets instead.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

#: "torch" in the environment: over sockets.
COMM = "RANKS_TEST_COMM"
#: Of this process.
_places: dict[tuple[Path, str], Any] = {}


def is_chosen() -> bool:
    """Whether the tests run over sockets."""
    return os.environ.get(COMM) == "torch"


def install(store: Path | None = None) -> None:
    """If it is chosen, have the library connect the ranks of an MPI communicator over sockets, in this process.

    Args:
        store: a file of this job, for the ranks to meet at; None: one that is named after the job's launcher.
    """
    if not is_chosen():
        return
    import deeppart.comm.connecting

    path = store or store_of_launcher()
    deeppart.comm.connecting._over_mpi = lambda comm, timeout: _over_sockets(path, comm, timeout)


def store_of_launcher() -> Path:
    """Where the ranks of one mpirun meet."""
    return Path(tempfile.gettempdir()) / f"deeppart-test-store-{os.getuid()}-{os.getppid()}"


def _over_sockets(path: Path, comm: Any, timeout: float) -> Any:
    from mpi4py import MPI
    from torch.distributed import FileStore, PrefixStore

    from deeppart.comm import connecting
    from deeppart.comm.sockets.rendezvous import Rendezvous

    group, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = group.Translate_ranks(list(range(comm.Get_size())), everyone)
    group.Free()
    everyone.Free()
    name = "-".join(map(str, ranks))
    if (path, name) not in _places:
        store = PrefixStore(name, FileStore(str(path), -1))
        _places[path, name] = Rendezvous(comm.Get_rank(), comm.Get_size(), lambda _: store, lambda: "127.0.0.1")
    return connecting._over_sockets(_places[path, name], timeout)
