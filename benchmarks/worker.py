"""What every rank of the benchmark runs: ``python -m mpi4py -m benchmarks.worker SETTINGS RESULT``.

Contestants take turns, round after round, in an order drawn for each; rank 0 writes what was measured. An exception on
any rank aborts the job.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Protocol

import mpi4py
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

import deeppart
from benchmarks.limits import Limits
from benchmarks.ours import Deeppart, DeeppartAuto, DeeppartLazy, DeeppartTensor, DeeppartVerify
from benchmarks.peer_orbax import Orbax, orbax_missing
from benchmarks.peers import (
    Dcp,
    DcpAsync,
    DcpZstd,
    Safetensors,
    TorchSave,
    TorchSnapshot,
    Zipnn,
    join_process_group,
    missing,
)
from benchmarks.rig import Rig, Turn
from benchmarks.settings import Settings

_PR_SET_PDEATHSIG = 1


class Contestant(Protocol):
    """Something that is measured once per round."""

    name: str

    def turn(self, rig: Rig) -> Turn:
        """Measure once, and leave nothing behind."""


def main(settings_path: Path, result_path: Path) -> None:
    """Run all rounds as this rank."""
    os.environ["MPI4PY_RC_INITIALIZE"] = "false"  # DCP's process imports this module: it is no rank
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    settings = Settings.read(settings_path)
    comm = MPI.COMM_WORLD.Dup()
    rig = Rig(settings, comm)
    join_process_group(rig)
    contestants, skipped = _contestants(settings)
    rounds = _run(rig, contestants)
    document = {
        "versions": _versions(),
        "leaves": len(rig.workload.leaves),
        "parameters": rig.workload.parameters,
        "state_bytes": rig.workload.nbytes,
        "share_bytes": rig.share_bytes,
        "restores_compared": rig.restores_compared,
        "skipped": skipped,
        "warmup": rounds[0],
        "rounds": rounds[1:],
    }
    if rig.rank == 0:
        result_path.write_text(json.dumps(document), encoding="utf-8")
    comm.Barrier()
    dist.destroy_process_group()


def _versions() -> dict[str, str]:
    return {
        "deeppart": deeppart.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "mpi": MPI.Get_library_version().strip("\0 \n").splitlines()[0],
        "mpi4py": mpi4py.__version__,
    }


def _contestants(settings: Settings) -> tuple[list[Contestant], dict[str, str]]:
    everyone: list[Contestant] = [
        Limits(),
        Deeppart(),
        DeeppartLazy("deeppart lazy"),
        DeeppartVerify("deeppart verify"),
        DeeppartTensor("deeppart tensor"),
        DeeppartAuto("deeppart auto"),
        TorchSave(),
        Safetensors(),
        Zipnn(),
        Dcp(),
        DcpZstd(),
        DcpAsync(),
        TorchSnapshot(),
        Orbax(),
    ]
    wanted = [one for one in everyone if one.name in settings.contestants]
    reasons = {one.name: orbax_missing() if one.name == Orbax.name else missing(one.name) for one in wanted}
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    return [one for one in wanted if one.name not in skipped], skipped


def _run(rig: Rig, contestants: list[Contestant]) -> list[dict[str, Turn]]:
    rounds: list[dict[str, Turn]] = []
    for number in range(rig.settings.repetitions + 1):
        rig.next_state()
        turns: dict[str, Turn] = {}
        # Drawn anew, so that nobody always comes after the same one; alike on all ranks.
        for contestant in random.Random(number).sample(contestants, len(contestants)):
            began = time.perf_counter()
            turns[contestant.name] = contestant.turn(rig)
            label = f"round {number} of {rig.settings.repetitions}" if number else "warm-up round"
            rig.say(f"{label}: {contestant.name}, {time.perf_counter() - began:.1f} s")
        rounds.append(turns)
    return rounds


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
