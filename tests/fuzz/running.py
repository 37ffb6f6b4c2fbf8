"""A process that reads cases, and what it answers; begun anew when a case has ended it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.readers import lay_out
from tests.fuzz.seeds import Files

#: Wall time of one case, after which its process is ended: many times what is needed, for a machine that is busy.
MOST_WALL_S = 300.0


@dataclass(frozen=True)
class Case:
    """Files to be read.

    Attributes:
        seed: what they were made of.
        files: path -> bytes.
        exact: whether no digest was computed anew, so that nothing else than before may be loaded.
        choice: number that decides which readers take part.
    """

    seed: str
    files: Files
    exact: bool
    choice: int


@dataclass
class Answer:
    """What a worker has told of a case; ``died`` where it has told nothing."""

    signature: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    loaded: str | None = None


class Worker:
    """A process that runs cases; begun anew when one has ended it. A context manager.

    Args:
        scratch: where cases are laid out.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None
        self._errors = scratch / "worker-stderr.txt"

    def run(self, case: Case, breakage: str | None = None) -> Answer:
        """Run a case; a process that dies or hangs is an answer, too.

        Args:
            breakage: what to take out of the library for this case (see mutants.py).
        """
        process = self._process or self._start()
        directory = self._scratch / "case"
        lay_out(directory, case.files)
        request = {"directory": str(directory), "seed": case.seed, "choice": case.choice, "breakage": breakage}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = self._line(process)
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            code = self._end()
            what = f"hangs for {MOST_WALL_S} s" if isinstance(error, TimeoutError) else f"ends its process with {code}"
            last = self._errors.read_text(errors="replace")[-300:]
            return Answer([what], [f"died: {what}: {last}"])
        return Answer(answer["signature"], answer["problems"], answer["loaded"])

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.worker"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DEEPPART_")}
        with self._errors.open("w") as errors:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=Path(__file__).parents[2],
                env=environment | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self._scratch)},
            )
        try:
            self._line(process)
        except EOFError as error:
            raise RuntimeError(f"no worker can be started: {self._errors.read_text()[-2000:]}") from error
        return process

    def _line(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        waiting = select.poll()  # unlike select(2), it takes descriptors of any number
        waiting.register(process.stdout, select.POLLIN)
        if not waiting.poll(1000 * MOST_WALL_S):
            raise TimeoutError
        line = process.stdout.readline()
        if not line:
            raise EOFError
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


@contextlib.contextmanager
def working() -> Iterator[Worker]:
    """A worker with a scratch directory of its own."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="deeppart-fuzz-", dir=base))
    try:
        with Worker(scratch) as worker:
            yield worker
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
