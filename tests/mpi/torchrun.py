"""Jobs that torchrun starts, and such as only find MASTER_ADDR in their environment: no MPI anywhere.

torchrun and its ranks come from nurseries (nursery.py), since each would import torch for seconds of processor time;
where ``anew`` says so, from interpreters of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mpi.launchers import environment
from tests.mpi.nurseries import borrowed, give_back
from tests.mpi.nursery import PLAIN
from tests.ports import free_port

#: A job that hangs is ended after this.
LIMIT_S = 200.0


Arguments = Sequence[str | Path]


def torchrun(n: int, arguments: Arguments, directory: Path, *, anew: bool = False, **how: Any) -> list[dict[str, Any]]:
    """Have torchrun start ``n`` ranks of a script, or of a module after ``-m``.

    Args:
        how: see :func:`torchrun_prints`.

    Returns:
        What the ranks have told (see torchrun_job.py) in a directory, in rank order.
    """
    _forget(directory)
    torchrun_prints(n, arguments, anew=anew, **how)
    return _told(n, directory)


def torchrun_prints(
    n: int,
    arguments: Arguments,
    *,
    expect_rc: int | None = 0,
    anew: bool = False,
    options: Sequence[str] = (),
    variables: dict[str, str] | None = None,
) -> str:
    """The same, and all that they print.

    Args:
        options: of torchrun; without any, ranks meet at a port that was given.
        variables: in its environment.
    """
    env = environment({}, LIMIT_S)
    with interpreter(env, n, anew=anew) as python:
        ranks = [] if anew else ["--no-python", *python]
        given = ["--nproc-per-node", str(n), *(options or ("--master-port", str(free_port())))]
        command = [*python, "-m", "torch.distributed.run", *given, *ranks, *map(str, arguments)]
        return _finished([command], [env | (variables or {})], expect_rc)


def with_variables(
    n: int, arguments: Arguments, directory: Path, *, expect_rc: int | None = 0, anew: bool = False
) -> list[dict[str, Any]]:
    """Start ``n`` ranks that find in their environment what scripts for srun set.

    Returns:
        As :func:`torchrun`.
    """
    _forget(directory)
    env = environment({}, LIMIT_S) | {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with interpreter(env, n, anew=anew) as python:
        _finished([[*python, *map(str, arguments)]] * n, [env | {"RANK": str(rank)} for rank in range(n)], expect_rc)
    return _told(n, directory)


@contextmanager
def interpreter(env: Mapping[str, str], ranks: int, *, anew: bool = False) -> Iterator[list[str]]:
    """The beginning of a command that is a Python's: of an interpreter, or of what stands for one from a nursery."""
    nurseries = None if anew else borrowed(env, ranks)
    try:
        yield [sys.executable] if nurseries is None else [*nurseries.python, PLAIN]
    finally:
        if nurseries is not None:
            give_back(nurseries)


def _forget(directory: Path) -> None:
    for old in directory.glob("told-*"):
        old.unlink()


def _told(n: int, directory: Path) -> list[dict[str, Any]]:
    files = [directory / f"told-{rank}.json" for rank in range(n)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def _finished(commands: list[list[str]], variables: list[dict[str, str]], expect_rc: int | None) -> str:
    """What processes have printed, once they have ended; whatever happens, none of theirs is left."""
    with tempfile.TemporaryFile() as log:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        processes = [
            subprocess.Popen(command, env=env, start_new_session=True, **pipes)
            for command, env in zip(commands, variables, strict=True)
        ]
        try:
            codes = [process.wait(LIMIT_S) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            log.seek(0)
            text = log.read().decode(errors="replace")
        assert expect_rc is None or codes == [expect_rc] * len(codes), text
        return text
