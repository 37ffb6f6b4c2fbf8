"""Starts the library on this machine, under MPI, and reads what it measured.

What is measured knows tensors, MPI and storage, as the rest of the simulator does not: it runs in processes of its own
(``python -m deeppart_simulator.measure.job``), and comes back as JSON.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from deeppart.errors import ConfigError, DeeppartError

from .tasks import SaveTask, Tasks, tasks_json

#: Seconds that a session of measurements may take.
TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories for real checkpoints."""

    local: Path  # on the node's own storage
    persistent: Path  # on the file system


def measure(
    ranks: int, saves: Sequence[SaveTask], directories: Directories, dtypes: Sequence[str] = (), *, sessions: int = 1
) -> dict[str, Any]:
    """Run checkpoints on so many ranks."""
    new = partial(tempfile.TemporaryDirectory, prefix="deeppart-measure-", ignore_cleanup_errors=True)
    with _sigterm_raises(), new(dir=directories.local) as scratch, new(dir=directories.persistent) as kept:
        file = Path(scratch, "tasks.json")
        tasks = Tasks(tuple(saves) * sessions, scratch, kept, tuple(dtypes))
        file.write_text(tasks_json(tasks), encoding="utf-8")
        answer = _run([*_python(ranks), "-m", "deeppart_simulator.measure.job", str(file)], sessions * TIMEOUT_S)
        found = dict(json.loads(answer[answer.index("{") :]))
        return found | {"saves": _together(found["saves"], len(saves))}


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM ends this program by an exception, as SIGINT does: or the ranks would go on, and the files stay."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # batch systems send several
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _together(found: Sequence[dict[str, list[float]]], saves: int) -> list[dict[str, list[float]]]:
    """The rounds of all sessions, of each save."""
    return [
        {name: [seconds for session in found[number::saves] for seconds in session[name]] for name in found[number]}
        for number in range(saves)
    ]


def _python(ranks: int) -> list[str]:
    """Python on so many ranks; one that fails ends the others, which would wait for it."""
    if ranks == 1:
        return [sys.executable]
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.is_file() else shutil.which("mpirun")
    if found is None:
        raise ConfigError(
            "there is no mpirun",
            expected="MPI, to measure on more than one rank",
            found="none beside Python, and none in the PATH",
            where="deeppart-sim",
            todo="install MPI and mpi4py (pip install 'deeppart[mpich]'), or measure on one rank",
        )
    return [found, "-n", str(ranks), sys.executable, "-m", "mpi4py"]


def _run(command: list[str], timeout_s: float) -> str:
    """The output of a job; it is stopped if it takes too long."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            _stop(process)
            raise DeeppartError(
                "measuring took too long", expected=f"{timeout_s:g} s", where=" ".join(command)
            ) from error
        except BaseException:
            _stop(process)
            raise
    if process.returncode != 0:
        with tempfile.NamedTemporaryFile("w", prefix="deeppart-measure-", suffix=".log", delete=False) as log:
            log.write(err)
        raise DeeppartError(
            "measuring failed",
            expected="the ranks to end well",
            found="\n    ".join(err.strip().splitlines()[-12:]) or f"exit code {process.returncode}",
            where=" ".join(command),
            todo=f"all that the ranks have said is in {log.name}",
        )
    return out


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)  # mpirun passes it on to its ranks
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
