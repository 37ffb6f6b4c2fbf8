"""Starts the library on this machine, under MPI, and reads what it measured.

The simulator knows nothing of tensors, MPI or storage: what is measured runs in processes of its own
(``python -m deeppart.calibrating``), and comes back as JSON.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeppart.errors import ConfigError, DeeppartError

#: Seconds that a whole job of measurements may take.
TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Save:
    """Real checkpoints to be measured; the fields of ``deeppart.calibrating.tasks.SaveTask``.

    Attributes:
        nbytes: of the state, which every rank holds alike.
        tensors: how many, of equal length.
        local: whether there is a local level.
        persistent: whether there is a persistent level.
        rounds: checkpoints that count.
        flush_bandwidth: of the node, in bytes per second, or None.
        capture: "eager" or "lazy".
        restore: whether to measure coming back too.
    """

    nbytes: int
    tensors: int
    local: bool = True
    persistent: bool = False
    rounds: int = 5
    flush_bandwidth: float | None = None
    capture: str = "eager"
    restore: bool = False


@dataclass(frozen=True, slots=True)
class Directories:
    """Where real checkpoints go.

    Attributes:
        local: on the node's own storage.
        persistent: on the file system.
    """

    local: Path
    persistent: Path


def measure(ranks: int, saves: Sequence[Save], directories: Directories, dtypes: Sequence[str] = ()) -> dict[str, Any]:
    """Run checkpoints on so many ranks.

    Args:
        dtypes: that the codec is measured on; with any, other single operations are measured too.

    Returns:
        ``saves``: per save, name -> seconds per round; ``pieces``: see ``deeppart.calibrating.pieces``.

    Raises:
        ConfigError: there is no mpirun for more than one rank. DeeppartError: the ranks failed.
    """
    scratch = Path(tempfile.mkdtemp(prefix="deeppart-measure-", dir=directories.local))
    kept = Path(tempfile.mkdtemp(prefix="deeppart-measure-", dir=directories.persistent))
    try:
        tasks = [_task(save, scratch / str(number), kept / str(number)) for number, save in enumerate(saves)]
        pieces = {"dtypes": list(dtypes), "seconds": 0.4} if dtypes else None
        file = scratch / "tasks.json"
        file.write_text(json.dumps({"saves": tasks, "pieces": pieces}), encoding="utf-8")
        answer = _run([*_launcher(ranks), sys.executable, "-m", "deeppart.calibrating", str(file)])
        return dict(json.loads(answer[answer.index("{") :]))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)


def _task(save: Save, local: Path, persistent: Path) -> dict[str, Any]:
    task = {key: value for key, value in asdict(save).items() if key not in ("local", "persistent")}
    task["levels"] = [level for level in ("local", "persistent") if getattr(save, level)]
    return task | {"local_dir": str(local) if save.local else None, "persistent_dir": str(persistent)}


def _launcher(ranks: int) -> list[str]:
    if ranks == 1:
        return []
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
    return [found, "-n", str(ranks)]


def _run(command: list[str]) -> str:
    """The output of a job; it is stopped if it takes too long."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        _stop(process)
        raise DeeppartError("measuring took too long", expected=f"{TIMEOUT_S:g} s", where=" ".join(command)) from error
    except BaseException:
        _stop(process)
        raise
    if process.returncode != 0:
        raise DeeppartError(
            "measuring failed",
            expected="the ranks to end well",
            found="\n    ".join(err.strip().splitlines()[-12:]) or f"exit code {process.returncode}",
            where=" ".join(command),
        )
    return out


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)  # mpirun passes it on to its ranks
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
