"""What every rank of benchmarks/nodes.py does for deeppart: ``-m benchmarks.nodes_rank CASE FOLDER BYTES SEED RESULT``.

One turn of one case, after which the ranks end: a peer's program does the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from mpi4py import MPI
from torch.distributed import FileStore

import deeppart
from benchmarks.nodes_contestants import CASES, CONTESTANTS, LOSSES, SOCKETS
from deeppart.comm.sockets.rendezvous import Rendezvous, meet
from deeppart.nodes import ReedSolomon
from deeppart.recovery import candidates

LEAVES = 8
#: Checkpoints of a turn, of which the last is timed: by then, files of retired steps are written over and stay mapped.
CHECKPOINTS = 5
TIMEOUT_S = 300.0
_PIECE_BYTES = 8 << 20
_PR_SET_PDEATHSIG = 1


def fill(leaves: dict[str, torch.Tensor], seed: int) -> None:
    """Bytes that do not compress and differ everywhere, fast."""
    block = np.random.default_rng(seed).integers(0, 256, 16 << 20, dtype=np.uint8)
    for number, leaf in enumerate(leaves.values()):
        target = leaf.numpy()
        for at in range(0, target.size, block.size):
            piece = target[at : at + block.size]
            np.add(block[: piece.size], np.uint8((number + at // block.size) % 251), out=piece)


class Ranks:
    """One rank's view of a turn.

    Args:
        comm: the ranks, of which each is a node.
        nbytes: of the state of each.
        directory: for everything, empty.
        seed: of the states' bytes, another one in each round.
    """

    def __init__(self, comm: MPI.Intracomm, nbytes: int, directory: Path, seed: int) -> None:
        self.comm, self.nbytes, self.directory, self.seed = comm, nbytes, directory, seed
        self.state = _leaves(nbytes)
        self.cores = len(os.sched_getaffinity(0))
        self.over_sockets = False
        fill(self.state, 100 * seed + comm.rank)

    def turn(self, case: str) -> dict[str, float]:
        """Everything that is measured of one case."""
        if case == "limits":
            return self.limits()
        if case == "fewer":
            whole = self.fewer(self.comm.size)
            return {"fewer_s": whole, "fewer_quarter_s": self.fewer(1)}
        self.over_sockets = case.endswith(SOCKETS)
        losses = next(one.losses for one in CONTESTANTS if one.name == case)
        case = case.removesuffix(SOCKETS)
        return self.checkpoints(case) | self.restores(case, losses)

    def ranks(self) -> Any:
        """What a checkpointer gets as its communicator."""
        if not self.over_sockets:
            return self.comm
        store = FileStore(str(self.directory / "store"), -1)
        rendezvous = Rendezvous(self.comm.rank, self.comm.size, lambda _: store, lambda: "127.0.0.1")
        return meet(rendezvous, TIMEOUT_S)

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds of the slowest rank."""
        self.comm.Barrier()
        began = time.perf_counter()
        work()
        return self.slowest(time.perf_counter() - began)

    def slowest(self, seconds: float) -> float:
        """The largest value of any rank."""
        return float(self.comm.allreduce(seconds, op=MPI.MAX))

    def limits(self) -> dict[str, float]:
        """What the machine does with the same bytes: copy, write to tmpfs, exchange, encode; the second time counts."""
        scratch = torch.zeros(self.nbytes, dtype=torch.uint8)
        measured: dict[str, float] = {}
        for _ in range(2):
            flat, targets = list(self.state.values()), list(scratch.split(self.nbytes // LEAVES))
            measured["limit_copy_s"] = self.timed(lambda a=targets, b=flat: torch._foreach_copy_(a, b))  # type: ignore[misc]
            measured["limit_tmpfs_s"] = self.timed(self._write)
            (self.directory / f"limit-{self.comm.rank}").unlink()
            measured["limit_exchange_s"] = self.timed(lambda: self._exchange(scratch.numpy()))
            measured["limit_encode_s"] = self.timed(lambda: self._encode(scratch.numpy()))
        return measured

    def _write(self) -> None:
        with open(self.directory / f"limit-{self.comm.rank}", "wb", buffering=0) as file:
            for leaf in self.state.values():
                view = leaf.numpy().data
                file.writelines(view[at : at + _PIECE_BYTES] for at in range(0, len(view), _PIECE_BYTES))

    def _exchange(self, source: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        rank, size = self.comm.rank, self.comm.size
        target = np.empty(_PIECE_BYTES, dtype=np.uint8)
        for at in range(0, self.nbytes, _PIECE_BYTES):
            piece = source[at : at + _PIECE_BYTES]
            self.comm.Sendrecv(piece, (rank + 1) % size, 0, target, (rank - 1) % size, 0)

    def _encode(self, source: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        code, block = ReedSolomon(2, 2), _PIECE_BYTES // 2
        parity = [np.empty(block, dtype=np.uint8) for _ in range(2)]
        for at in range(0, self.nbytes, 2 * block):
            code.encode([source[at : at + block], source[at + block : at + 2 * block]], parity)

    def config(self, case: str, **settings: Any) -> deeppart.Config:
        """Every rank a node, no codec, every byte written."""
        return deeppart.Config(
            persistent_dir=str(self.directory / "ckpt"),
            local_dir=str(self.directory / "{node}"),
            node_size=1,
            compression="none",
            incremental=False,  # the state stays as it is, and all of it is to be written
            timeout=TIMEOUT_S,
            **{"replicated": "none", **CASES[case], **settings},
        )

    def checkpoints(self, case: str) -> dict[str, float]:
        """Some checkpoints, the last of which is timed."""
        levels = ["local", *(level for level in ("partner", "parity", "persistent") if CASES[case]["every"].get(level))]
        with deeppart.Checkpointer(self.config(case), self.ranks()) as checkpointer:
            for step in range(1, CHECKPOINTS + 1):
                for leaf in self.state.values():
                    leaf.add_(1)  # as the optimizer does: right before, and all of it
                self.comm.Barrier()
                began = time.perf_counter()
                pending = checkpointer.checkpoint(self.state, step)
                blocked = time.perf_counter() - began
                for level in levels:
                    pending.wait(level, TIMEOUT_S)
                report = pending.report
                self.comm.Barrier()
        ends = {level: blocked + (report.levels[level].seconds or 0.0) for level in levels}
        measured = {
            "blocked_s": self.slowest(blocked),
            "local_s": self.slowest(ends["local"]),
            "complete_s": self.slowest(max(ends.values())),
        }
        if case == "parity-2":
            seconds = self.slowest(report.stages_s["parity"])
            measured["encode_gb_per_core_s"] = self.comm.size * self.nbytes / seconds / self.cores / 1e9
        return measured

    def restores(self, case: str, losses: Sequence[str]) -> dict[str, float]:
        """One after each loss that the case survives."""
        measured: dict[str, float] = {}
        for loss in losses:
            seconds, rebuilt = self._restore(case, LOSSES[loss])
            measured[f"{loss}_lost_s"] = seconds
            if case == "parity-2" and loss == "one":
                measured["rebuild_gb_per_core_s"] = self.nbytes / rebuilt / min(self.cores, self.comm.size - 1) / 1e9
        return measured

    def _restore(self, case: str, lost: tuple[int, ...]) -> tuple[float, float]:
        """Lose nodes, restore, compare; seconds of the slowest rank: all of it, and of it rebuilding."""
        right = {name: leaf.clone() for name, leaf in self.state.items()}
        for leaf in self.state.values():
            leaf.zero_()
        self._lose(lost)
        rebuild = candidates._rebuild_mine
        spent: list[float] = []

        def timing(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = rebuild(*arguments)
            spent.append(time.perf_counter() - began)
            return result

        candidates._rebuild_mine = timing  # type: ignore[assignment]
        with deeppart.Checkpointer(self.config(case), self.ranks()) as checkpointer:
            seconds = self.timed(lambda: checkpointer.restore(self.state))
        candidates._rebuild_mine = rebuild
        good = all(torch.equal(right[name], leaf) for name, leaf in self.state.items())
        if not all(self.comm.allgather(good)):
            raise SystemExit(f"{case}: a restore did not bring back every byte")
        return seconds, self.slowest(sum(spent))

    def fewer(self, times: int) -> float:
        """A replicated state of ``times`` as many bytes as each rank's, two nodes lost, restored on three ranks."""
        shared = _leaves(self.nbytes * times)
        fill(shared, self.seed)
        with deeppart.Checkpointer(self.config("parity-2", replicated="all"), self.comm) as checkpointer:
            pending = checkpointer.checkpoint(shared, 1)
            for level in ("local", "parity"):
                pending.wait(level, TIMEOUT_S)
        self._lose(LOSSES["two"])
        digests = [xxhash.xxh3_128_digest(leaf.numpy().data) for leaf in shared.values()]
        for leaf in shared.values():
            leaf.zero_()
        three = self.comm.Split(0 if self.comm.rank < 3 else 1, self.comm.rank)
        seconds = 0.0
        if self.comm.rank < 3:
            config = self.config("parity-2", replicated="all", parity_group=3)
            with deeppart.Checkpointer(config, three) as checkpointer:
                three.Barrier()
                began = time.perf_counter()
                checkpointer.restore(shared)
                three.Barrier()
                seconds = time.perf_counter() - began
            if digests != [xxhash.xxh3_128_digest(leaf.numpy().data) for leaf in shared.values()]:
                raise SystemExit("the restore on three ranks did not bring back every byte")
        three.Free()
        self._wipe()
        return self.slowest(seconds)

    def _lose(self, nodes: tuple[int, ...]) -> None:
        self.comm.Barrier()
        if self.comm.rank == 0:
            for node in nodes:
                shutil.rmtree(self.directory / f"node{node}")
        self.comm.Barrier()

    def _wipe(self) -> None:
        self.comm.Barrier()
        if self.comm.rank == 0:
            for path in self.directory.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
        self.comm.Barrier()


def _leaves(nbytes: int) -> dict[str, torch.Tensor]:
    return {str(n): torch.zeros(nbytes // LEAVES, dtype=torch.uint8) for n in range(LEAVES)}


def main(case: str, folder: Path, nbytes: int, seed: int, result: Path) -> None:
    """One turn as this rank; rank 0 writes what was measured."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    found = Ranks(MPI.COMM_WORLD, nbytes, folder, seed).turn(case)
    if MPI.COMM_WORLD.rank == 0:
        result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
