"""Runs cases, a line of JSON each, in a process of its own with limits: ``python -m tests.fuzz.worker``."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.fuzz import readers
from tests.fuzz.mutants import BREAKAGES
from tests.fuzz.seeds import Seed, make_seeds

#: Processor time of one case.
MOST_CPU_S = 20.0
#: Address space beyond what there is before the first case: a case that needs more ends in an error.
ROOM_BYTES = 3 << 30
#: Memory that a case may take: this, and so many bytes for each of its own (a chunk of zeros needs no more).
PLAIN_BYTES, BYTES_PER_BYTE = 384 << 20, 1 << 15

_OPENING = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"})
_TWO_PATHS = frozenset({"os.rename", "os.link", "os.symlink"})


class _Watch:
    """Which files are opened while a case runs."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.found: list[str] = []
        own = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]}
        self._harmless = (*(f"{path}/" for path in own), "/proc/", "/sys/", "/dev/null", "/dev/urandom")
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.inside is None:
            return
        if event in _OPENING:
            if event == "open" and arguments[0] == "/" and arguments[2] & os.O_DIRECTORY:
                return  # the beginning of a walk by descriptors
            for path in arguments[: 2 if event in _TWO_PATHS else 1]:
                if isinstance(path, (str, bytes)) and not self._may(os.fsdecode(path)):
                    self.found.append(f"{event} {path!a:.200}")

    def _may(self, path: str) -> bool:
        """Whether a file is one of the case, or of Python."""
        whole = os.path.normpath(os.path.abspath(path))
        return whole.startswith((f"{self.inside}/", *self._harmless)) or whole == str(self.inside)


def _status(name: str) -> int:
    """Bytes, of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def _out_of_time(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"more than {MOST_CPU_S} s of processor time")


def main() -> None:
    """Read a case per line, answer with a line."""
    seeds = make_seeds()
    watch = _Watch()
    signal.signal(signal.SIGPROF, _out_of_time)
    scratch = Path(tempfile.mkdtemp(prefix="deeppart-fuzz-"))
    for seed in seeds.values():  # so that everything is imported, and memory is taken that is kept
        readers.lay_out(scratch / "warm", seed.files)
        for choice in range(2):
            readers.run_case(scratch / "warm", seed.live, choice)
    limit = _status("VmSize") + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        if case["breakage"]:
            _run_broken(case, seeds, watch)
        else:
            _run(case, seeds, watch)


def _run_broken(case: dict[str, Any], seeds: Mapping[str, Seed], watch: _Watch) -> None:
    """Run a case with something taken out of the library: of a copy of this process, which stays whole."""
    child = os.fork()
    if not child:
        BREAKAGES[case["breakage"]]()
        _run(case, seeds, watch)
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        os._exit(abs(status))  # so ends a worker that a case has ended


def _run(case: dict[str, Any], seeds: Mapping[str, Seed], watch: _Watch) -> None:
    directory = Path(case["directory"])
    nbytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    modules = set(sys.modules)
    watch.inside, watch.found = directory, []
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    outcome = readers.run_case(directory, seeds[case["seed"]].live, case["choice"])
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    watch.inside = None
    names = sorted(name for name in sys.modules.keys() - modules if name.partition(".")[0] == "torch")
    outcome.problems += [f"imports: {name}" for name in names[:3]]
    outcome.problems += [f"outside: {text}" for text in sorted(set(watch.found))]
    grown = _status("VmHWM") - before
    if grown > PLAIN_BYTES + BYTES_PER_BYTE * nbytes:
        outcome.problems.append(f"memory: {grown >> 20} MiB for a case of {nbytes} bytes")
    answer = {"signature": outcome.signature, "problems": outcome.problems, "loaded": outcome.loaded}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
