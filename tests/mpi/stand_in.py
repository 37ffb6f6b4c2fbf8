"""What mpirun, or torchrun, starts for a rank that a nursery forks: ``python -I -S stand_in.py SOCKETS ARGUMENT...``

Imports next to nothing: see nursery.py. SOCKETS is the directory in which nursery N listens at ``N``, one for each
number of :data:`NURSERIES`.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import signal
import socket
import sys
from typing import Any

#: Ranks whose numbers follow each other differ in all that chance decides when an interpreter starts. Each nursery more
#: imports torch once more, for every pytest process that starts ranks.
NURSERIES = 2
_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGURG,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def main(sockets: str, arguments: list[str]) -> int:
    """Order the rank, and stand for it until it ends."""
    nursery = int(os.environ.get("PMI_RANK") or os.environ.get("RANK") or 0) % NURSERIES
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [file for file in files if _is_open(file)]  # not the one that listed them
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"{sockets}/{nursery}")
    environment = dict(os.environ) | {"RANKS_TEST_KEEPER": str(os.getppid())}
    request = {"cwd": os.getcwd(), "arguments": arguments, "environment": environment, "files": files}

    def forward(signum: int, frame: Any) -> None:
        with contextlib.suppress(OSError):
            connection.send(bytes([signum]))

    socket.send_fds(connection, [marshal.dumps(request)], files)
    for each in _FORWARDED:
        signal.signal(each, forward)
    for file in files:
        if file != 2:
            os.close(file)  # whoever waits for their end waits for the rank's
    status = _status(connection)
    if not status:
        print(f"nursery {nursery} has ended", file=sys.stderr, flush=True)
        return 1
    for each in _FORWARDED:
        signal.signal(each, signal.SIG_IGN)  # mpirun's word that ranks have ended would end this one
    code: int = marshal.loads(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _status(connection: socket.socket) -> bytes:
    """How the rank has ended; empty if its nursery has."""
    try:
        return connection.recv(100)
    except ConnectionResetError:  # a signal was not read any more: said once, before what the nursery has sent
        return connection.recv(100)


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    # As soon as it is known: an interpreter that comes to its end takes signals as if nobody handled them.
    os._exit(main(sys.argv[1], sys.argv[2:]))
