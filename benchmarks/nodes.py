"""Time of the levels that protect against the loss of a node, beside what the machine could do with the same bytes.

    python benchmarks/nodes.py [--mib 256] [--repeat 5] [--json FILE]

The work of the HPC checkpoint libraries' own benchmarks: 4 ranks as 4 nodes on one host, a state of its own on every
rank, uncompressed, in memory (tmpfs). Measured in turn, round after round, the first of which does not count: a
checkpoint with the local level alone, with partner copies, with parity (2 of 4 nodes may be lost) and with both; a
restore of whole nodes, after two lost nodes from copies and from parity, and on three ranks. Every byte of every
restore is compared. Exit code: 0 measured, 1 malfunction, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.launching import BYPASS_CACHES, CannotRunError, environment_of_ranks, find_launcher, run_ranks
from benchmarks.machine import describe_machine
from benchmarks.memory import available_bytes

RANKS = 4
LEAVES = 8
TIMEOUT_S = 300.0
#: name -> settings; what is on besides the local level.
CASES: dict[str, dict[str, Any]] = {
    "local": {"every": {"partner": 0, "persistent": 0}},
    "partner": {"every": {"partner": 1, "persistent": 0}},
    "parity": {"every": {"partner": 0, "parity": 1, "persistent": 0}, "parity_group": 4, "parity_tolerate": 2},
    "both": {"every": {"partner": 1, "parity": 1, "persistent": 0}, "parity_group": 4, "parity_tolerate": 2},
}
#: (metric, what it is, seconds that the best HPC peer took on another machine, or None)
ROWS = (
    ("limit_copy_s", "limit: every rank copies its state in memory", None),
    ("limit_tmpfs_s", "limit: every rank writes its state to tmpfs", None),
    ("limit_exchange_s", "limit: every rank sends its state to the next, in memory", None),
    ("limit_encode_s", "limit: parity of it, the arithmetic alone", None),
    ("local_blocked_s", "blocked, local alone", 0.06),
    ("partner_blocked_s", "blocked, with partner", 0.06),
    ("parity_blocked_s", "blocked, with parity", 0.06),
    ("both_blocked_s", "blocked, with both", 0.06),
    ("local_local_s", "local complete", 0.25),
    ("partner_partner_s", "partner complete", 0.38),
    ("parity_parity_s", "parity complete", 0.70),
    ("both_parity_s", "both complete", None),
    ("local_restore_s", "restore, nothing lost", None),
    ("partner_restore_s", "restore from copies, two nodes lost", None),
    ("parity_restore_s", "restore by parity, two nodes lost", 0.82),
    ("parity_one_restore_s", "restore by parity, one node lost", None),
    ("parity_fewer_quarter_s", "replicated state, each rank the same bytes, two nodes lost, on 3 ranks", 0.82),
    ("parity_fewer_s", "the same, each rank the bytes of all four", None),
    ("encode_gb_per_core_s", "parity level, GB/s of state per core", 2.0),
    ("rebuild_gb_per_core_s", "rebuilding one of four, GB/s per core", 0.5),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="state of each rank in MiB (default 256)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where the nodes' directories go")
    parser.add_argument("--only", default=",".join(CASES), help="comma separated: " + ", ".join(CASES))
    parser.add_argument("--plain", action="store_true", help="leave the C library's copies as they are by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        return _rank_main(options)
    try:
        needed = (options.mib << 20) * RANKS * 8
        if needed > available_bytes():
            raise CannotRunError(f"{needed / 1e9:.1f} GB of memory needed: pass a smaller --mib")
        with tempfile.TemporaryDirectory(prefix="deeppart-bench-", dir=options.tmpfs) as tmpfs:
            result = Path(tmpfs) / "result.json"
            command = [
                *find_launcher(),
                "-n",
                str(RANKS),
                sys.executable,
                "-m",
                "mpi4py",
                str(Path(__file__)),
                "--rank",
            ]
            command += ["--mib", str(options.mib), "--repeat", str(options.repeat), "--only", options.only]
            command += ["--tmpfs", tmpfs, "--json", str(result)]
            environment = environment_of_ranks(1800, "" if options.plain else BYPASS_CACHES)
            if not run_ranks(command, tmpfs, 1800, environment):
                return 1
            turns = json.loads(result.read_text())
            document = {"mib": options.mib, "machine": describe_machine({"nodes": tmpfs}), "turns": turns}
    except CannotRunError as problem:
        print(f"nodes: {problem}", file=sys.stderr)
        return 2
    _show(document)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    turns = document["turns"]
    table = Table(title=f"4 ranks as 4 nodes on one host, {document['mib']} MiB each, {len(turns)} rounds", box=None)
    for heading in ("", "median", "least", "most", "best peer, other machine"):
        table.add_column(heading, justify="left" if not heading else "right")
    for metric, text, peer in ROWS:
        values = [turn[metric] for turn in turns if metric in turn]
        if values:
            numbers = [f"{each:.3f}" for each in (statistics.median(values), min(values), max(values))]
            table.add_row(text, *numbers, "" if peer is None else f"{peer:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


# --- the ranks --------------------------------------------------------------------------------------------------------


def _rank_main(options: argparse.Namespace) -> int:
    from mpi4py import MPI

    rig = _Ranks(MPI.COMM_WORLD, options.mib << 20, options.tmpfs, tuple(options.only.split(",")))
    turns = [rig.round(number) for number in range(options.repeat + 1)][1:]
    if rig.comm.rank == 0:
        options.json.write_text(json.dumps(turns))
    return 0


def _fill(leaves: dict[str, Any], seed: int) -> None:
    """Bytes that do not compress and differ everywhere, fast."""
    import numpy as np

    block = np.random.default_rng(seed).integers(0, 256, 16 << 20, dtype=np.uint8)
    for number, leaf in enumerate(leaves.values()):
        target = leaf.numpy()
        for at in range(0, target.size, block.size):
            piece = target[at : at + block.size]
            np.add(block[: piece.size], np.uint8((number + at // block.size) % 251), out=piece)


class _Ranks:
    """One rank's view of the run."""

    def __init__(self, comm: Any, nbytes: int, directory: Path, cases: tuple[str, ...]) -> None:
        import torch

        self.comm, self.nbytes, self.directory, self.cases = comm, nbytes, directory, cases
        self.state = {str(n): torch.zeros(nbytes // LEAVES, dtype=torch.uint8) for n in range(LEAVES)}
        self.shared = {str(n): torch.zeros(nbytes // LEAVES * RANKS, dtype=torch.uint8) for n in range(LEAVES)}
        self.cores = len(os.sched_getaffinity(0))
        self._scratch = torch.zeros(nbytes, dtype=torch.uint8)
        self._last: dict[str, float] = {}

    def round(self, number: int) -> dict[str, float]:
        """Everything once."""
        measured = self._limits()
        for case in self.cases:
            measured |= self._case(case, number)
        if "parity" in self.cases:
            measured |= self._fewer(number, "parity_fewer_s", RANKS)
            measured |= self._fewer(number, "parity_fewer_quarter_s", 1)
        return measured

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds of the slowest rank."""
        from mpi4py import MPI

        self.comm.Barrier()
        began = time.perf_counter()
        work()
        return float(self.comm.allreduce(time.perf_counter() - began, op=MPI.MAX))

    def _limits(self) -> dict[str, float]:
        import numpy as np
        import torch

        from deeppart.nodes.erasure import ReedSolomon

        flat = list(self.state.values())
        targets = self._scratch.split(self.nbytes // LEAVES)
        measured = {"limit_copy_s": self.timed(lambda: torch._foreach_copy_(list(targets), flat))}
        path = self.directory / f"limit-{self.comm.rank}"

        def write() -> None:
            with open(path, "wb", buffering=0) as file:
                for leaf in flat:
                    view = leaf.numpy().data
                    file.writelines(view[at : at + (8 << 20)] for at in range(0, len(view), 8 << 20))

        measured["limit_tmpfs_s"] = self.timed(write)
        path.unlink()
        rank, size = self.comm.rank, self.comm.size
        source = self._scratch.numpy()
        target = np.empty(8 << 20, dtype=np.uint8)

        def exchange() -> None:
            for at in range(0, self.nbytes, 8 << 20):
                self.comm.Sendrecv(source[at : at + (8 << 20)], (rank + 1) % size, 0, target, (rank - 1) % size, 0)

        measured["limit_exchange_s"] = self.timed(exchange)
        code, block = ReedSolomon(2, 2), 4 << 20
        parity = [np.empty(block, dtype=np.uint8) for _ in range(2)]

        def encode() -> None:
            for at in range(0, self.nbytes, 2 * block):
                code.encode([source[at : at + block], source[at + block : at + 2 * block]], parity)

        measured["limit_encode_s"] = self.timed(encode)
        return measured

    def _train(self, number: int) -> None:
        """A state of its own for every rank and round."""
        _fill(self.state, 100 * number + self.comm.rank)

    def _config(self, case: str, **settings: Any) -> Any:
        import deeppart

        return deeppart.Config(
            persistent_dir=str(self.directory / case / "ckpt"),
            local_dir=str(self.directory / case / "{node}"),
            node_size=1,
            compression="none",
            incremental=False,  # the state stays as it is, and all of it is to be written
            timeout=TIMEOUT_S,
            **{"replicated": "none", **CASES[case], **settings},
        )

    def _case(self, case: str, number: int) -> dict[str, float]:
        """Checkpoints until the files of retired steps are written over and stay mapped, one timed; then restores."""
        import deeppart

        self._train(number)
        levels = ["local", *(level for level in ("partner", "parity") if CASES[case]["every"].get(level))]
        measured: dict[str, float] = {}
        with deeppart.Checkpointer(self._config(case), self.comm) as ck:
            for step in range(1, 6):
                for leaf in self.state.values():
                    leaf.add_(1)  # as the optimizer does: right before, and all of it
                self.comm.Barrier()
                began = time.perf_counter()
                pending = ck.checkpoint(self.state, step)
                blocked = time.perf_counter() - began
                for level in levels:
                    pending.wait(level, TIMEOUT_S)
                report = pending.report
                self.comm.Barrier()
        from mpi4py import MPI

        ends = {f"{case}_{level}_s": blocked + (report.levels[level].seconds or 0.0) for level in levels}
        ends[f"{case}_blocked_s"] = blocked
        measured |= {name: self.comm.allreduce(value, op=MPI.MAX) for name, value in ends.items()}
        if case == "parity":
            seconds = self.comm.allreduce(report.stages_s["parity"], op=MPI.MAX)
            measured["encode_gb_per_core_s"] = RANKS * self.nbytes / seconds / self.cores / 1e9
        measured |= self._restores(case)
        self._wipe(case)
        return measured

    def _restores(self, case: str) -> dict[str, float]:
        if case == "local":
            return {"local_restore_s": self._restore(case, ())}
        if case == "partner":
            return {"partner_restore_s": self._restore(case, (1, 3))}
        if case == "parity":
            two = self._restore(case, (1, 3))
            one = self._restore(case, (2,))
            rebuilt = self._last["rebuild_s"]
            speed = self.nbytes / rebuilt / min(self.cores, RANKS - 1) / 1e9
            return {"parity_restore_s": two, "parity_one_restore_s": one, "rebuild_gb_per_core_s": speed}
        return {}

    def _restore(self, case: str, lost: tuple[int, ...], **settings: Any) -> float:
        """Lose nodes, restore, compare."""
        import torch

        import deeppart
        from deeppart.recovery import recover

        right = {name: leaf.clone() for name, leaf in self.state.items()}
        for leaf in self.state.values():
            leaf.zero_()
        self._lose(case, lost)
        rebuild = recover._rebuild_mine
        spent: list[float] = []

        def timing(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = rebuild(*arguments)
            spent.append(time.perf_counter() - began)
            return result

        recover._rebuild_mine = timing  # type: ignore[assignment]
        with deeppart.Checkpointer(self._config(case, **settings), self.comm) as ck:
            seconds = self.timed(lambda: ck.restore(self.state))
        recover._rebuild_mine = rebuild
        self._last = {"rebuild_s": max(self.comm.allgather(sum(spent)))}
        good = all(torch.equal(right[name], leaf) for name, leaf in self.state.items())
        if not all(self.comm.allgather(good)):
            raise SystemExit(f"{case}: a restore did not bring back every byte")
        return seconds

    def _fewer(self, number: int, metric: str, times: int) -> dict[str, float]:
        """A replicated state of ``times`` as many bytes as --mib, two nodes lost, restored on three ranks."""
        import xxhash

        import deeppart

        shared = {name: leaf[: self.nbytes // LEAVES * times] for name, leaf in self.shared.items()}
        _fill(shared, number)
        with deeppart.Checkpointer(self._config("parity", replicated="all"), self.comm) as ck:
            pending = ck.checkpoint(shared, 1)
            for level in ("local", "parity"):
                pending.wait(level, TIMEOUT_S)
        self._lose("parity", (1, 3))
        digests = [xxhash.xxh3_128_digest(leaf.numpy().data) for leaf in shared.values()]
        for leaf in shared.values():
            leaf.zero_()
        three = self.comm.Split(0 if self.comm.rank < 3 else 1, self.comm.rank)
        seconds = 0.0
        if self.comm.rank < 3:
            config = self._config("parity", replicated="all", parity_group=3)
            with deeppart.Checkpointer(config, three) as ck:
                three.Barrier()
                began = time.perf_counter()
                ck.restore(shared)
                three.Barrier()
                seconds = time.perf_counter() - began
            if digests != [xxhash.xxh3_128_digest(leaf.numpy().data) for leaf in shared.values()]:
                raise SystemExit("the restore on three ranks did not bring back every byte")
        three.Free()
        self._wipe("parity")
        return {metric: max(self.comm.allgather(seconds))}

    def _lose(self, case: str, nodes: tuple[int, ...]) -> None:
        self.comm.Barrier()
        if self.comm.rank == 0:
            for node in nodes:
                shutil.rmtree(self.directory / case / f"node{node}")
        self.comm.Barrier()

    def _wipe(self, case: str) -> None:
        self.comm.Barrier()
        if self.comm.rank == 0:
            shutil.rmtree(self.directory / case, ignore_errors=True)
        self.comm.Barrier()


if __name__ == "__main__":
    sys.exit(main())
