"""What every rank of benchmarks/fsdp.py runs, under torchrun: ``python -m benchmarks.fsdp_rank SETTINGS RESULT``.

Contestants take turns, round after round, in an order drawn for each; rank 0 writes what was measured. Timed work
starts at a barrier with nothing left to write on the machine, and its time is that of the slowest rank. Right before a
save every rank goes through its state once, as an optimizer does. Files are removed outside of any timing. Before a
restore every element is overwritten; after it every byte is compared. An exception on any rank ends the job.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.bare import warm_memory, writer
from benchmarks.fsdp_contestants import CONTESTANTS, Contestant, Saved
from benchmarks.fsdp_state import ShardedState, Sweep, draw
from benchmarks.memory import MemoryWatch
from benchmarks.settings import Settings

_PR_SET_PDEATHSIG = 1
_TIMEOUT = timedelta(seconds=300)
_READ_BYTES = 8 << 20
#: Saves before the one that counts: from then on, memory and plans are there.
_WARM_UPS = 2
#: Metric -> value of one turn: seconds (name ends in ``_s``) or bytes (``_bytes``).
Turn = dict[str, float]

logging.disable(logging.INFO)  # DCP's process imports this module; it would tell of every save


class Measurement:
    """One rank's view of the run.

    Attributes:
        restores_compared: how many restores were found to be exact, on all their ranks.
        bare_write_s: per round that counts, how long the disk takes for the same bytes.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if self.size != settings.ranks:
            raise RuntimeError(f"{self.size} ranks were started, not {settings.ranks}")
        self._disk = Path(settings.disk)
        self._drawn = draw(settings.seed)
        self._all = DeviceMesh("cpu", list(range(self.size)))
        self._fewer = DeviceMesh("cpu", list(range(self.size - 1)))
        self._state = self._state_on(self._all)
        self._turn = 0
        self.restores_compared = 0
        self.bare_write_s: list[float] = []

    @property
    def state_bytes(self) -> int:
        """Of all ranks together."""
        return int(self._over_ranks(float(self._state.local_bytes), dist.ReduceOp.SUM))

    def run(self) -> list[dict[str, Turn]]:
        """What was measured, round by round; the first does not count."""
        rounds: list[dict[str, Turn]] = []
        for number in range(self._settings.repetitions + 1):
            turns: dict[str, Turn] = {}
            # Drawn anew, so that nobody always comes after the same one; alike on all ranks.
            names = self._settings.contestants
            for name in random.Random(number).sample(names, len(names)):
                began = time.perf_counter()
                turns[name] = self._measure(name)
                label = f"round {number} of {self._settings.repetitions}" if number else "warm-up round"
                self._say(f"{label}: {name}, {time.perf_counter() - began:.1f} s")
            bare_write_s = self._bare_write()
            if number:
                self.bare_write_s.append(bare_write_s)
            rounds.append(turns)
        return rounds

    def _measure(self, name: str) -> Turn:
        """One turn of one contestant, which leaves nothing behind."""
        path = self._disk / name.replace(" ", "-")
        self._wipe(path)
        optimizer = Sweep(self._state)
        with MemoryWatch() as saving, optimizer:
            contestant = CONTESTANTS[name](path)
            saves = [self._save(contestant, optimizer, path) for _ in range(_WARM_UPS + 1)]
        others_bytes = contestant.close()
        found = {f"first_{what}": value for what, value in saves[0].items() if what == "blocked_s"} | saves[-1]
        found["save_memory_bytes"] = self._slowest(saving.growth_bytes + others_bytes)
        # By now rank 0, too, has closed its contestant, which removes the step before.
        found["bytes"] = float(sum(file.stat().st_size for file in _files(_newest(path))))
        self._warm_cache(_newest(path))
        for mesh in (self._all, self._fewer):
            seconds, nbytes = self._restore(name, contestant, mesh)
            found |= {f"restore_{mesh.size()}_s": seconds, f"restore_{mesh.size()}_memory_bytes": nbytes}
        self._wipe(path)
        return found

    def _save(self, contestant: Contestant, optimizer: Sweep, path: Path) -> Turn:
        """Save a state of its own; of DCP's, the save before it is removed."""
        self._turn += 1
        self._state.fill(self._turn)
        for older in _numbered(path):
            self._wipe(older)
        self._quiet()
        optimizer.step()
        dist.barrier()
        saved: Saved = contestant.save(self._state.tree, optimizer)
        seconds = {"blocked_s": saved.blocked_s, "free_s": saved.free_s, "safe_s": saved.safe_s}
        return {name: self._slowest(value) for name, value in seconds.items()}

    def _restore(self, name: str, contestant: Contestant, mesh: DeviceMesh) -> tuple[float, float]:
        """Seconds, and memory beyond the state, of a restore on the first ranks; every byte is compared."""
        takes_part = mesh.get_coordinate() is not None
        state = self._state if mesh is self._all else self._state_on(mesh) if takes_part else None
        if state is not None:
            state.spoil()
        self._quiet()
        with MemoryWatch() as loading:
            began = time.perf_counter()
            if state is not None:
                contestant.load(state.tree, mesh.get_group())
            seconds = time.perf_counter() - began
        good = state is None or state.is_of(self._turn)
        if self._slowest(float(not good)):
            raise RuntimeError(f"{name}: the restored bytes are not those saved ({self.rank=}, {good=})")
        self.restores_compared += 1
        return self._slowest(seconds), self._slowest(loading.growth_bytes)

    def _state_on(self, mesh: DeviceMesh) -> ShardedState:
        return ShardedState(mesh, self._drawn, self._settings.scale, self._settings.layers)

    def _bare_write(self) -> float:
        """Seconds until every rank has written as many bytes as its part of the state has, around the page cache."""
        memory = warm_memory(self._state.local_bytes)
        path = self._disk / f"bare-{self.rank}"
        write = writer(path, memory, self._state.local_bytes, direct=True)
        self._quiet()
        began = time.perf_counter()
        write()
        seconds = self._slowest(time.perf_counter() - began)
        path.unlink()
        return seconds

    def _say(self, text: str) -> None:
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def _slowest(self, value: float) -> float:
        return self._over_ranks(value, dist.ReduceOp.MAX)

    def _over_ranks(self, value: float, how: Any) -> float:
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, how)
        return float(tensor)

    def _first_rank_alone(self, work: Callable[[], object]) -> None:
        dist.barrier()
        if self.rank == 0:
            work()
        dist.barrier()

    def _quiet(self) -> None:
        """Let the machine finish writing."""
        self._first_rank_alone(os.sync)

    def _wipe(self, path: Path) -> None:
        self._first_rank_alone(lambda: shutil.rmtree(path, ignore_errors=True))

    def _warm_cache(self, path: Path) -> None:
        """Read every file once, so that all restores find their bytes in the page cache."""

        def read() -> None:
            buffer = bytearray(_READ_BYTES)
            for file in _files(path):
                with file.open("rb", buffering=0) as stream:
                    while stream.readinto(buffer):
                        pass

        self._first_rank_alone(read)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def _newest(path: Path) -> Path:
    """The directory of the last save: deeppart's is the one step that it keeps, DCP's the highest number."""
    return max(_numbered(path), key=lambda each: int(each.name), default=path)


def _numbered(path: Path) -> list[Path]:
    return [each for each in path.glob("*") if each.name.isdigit()]


def main(settings_path: Path, result_path: Path) -> None:
    """Run all rounds as this rank."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    measurement = Measurement(Settings.read(settings_path))
    rounds = measurement.run()
    document = {
        "state_bytes": measurement.state_bytes,
        "restores_compared": measurement.restores_compared,
        "bare_write_s": measurement.bare_write_s,
        "warmup": rounds[0],
        "rounds": rounds[1:],
    }
    if measurement.rank == 0:
        result_path.write_text(json.dumps(document), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo end some processes by SIGABRT while the interpreter ends


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
