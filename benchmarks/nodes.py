"""Time of the levels that protect against the loss of a node, beside the HPC checkpoint libraries and the limits.

    python benchmarks/nodes.py [--mib 256] [--repeat 5] [--only NAME,NAME ...] [--json FILE]

The work of those libraries' own benchmarks: 4 ranks as 4 nodes on one host, a state of its own on every rank,
uncompressed, in memory (tmpfs). deeppart is measured with the local level alone, with partner copies, with parity (1 or
2 of 4 nodes may be lost), with both, and with the persistent level. VELOC, redset and FTI are measured at the levels
that they have, once `python benchmarks/build_peers.py` has built them; otherwise they are left out, which is said.

Each takes its turn in every round, in processes of its own, in an order drawn for the round; the first round does not
count. A turn: five checkpoints, of which the last is timed; then nodes are lost, and the state is restored and every
byte of it compared. With --link-mbit each node is a host of its own with a link of that rate (root, MPICH): how much is
sent to whom shows only there. Nothing is set in the environment of the ranks. What other programs and the host of this
machine use meanwhile is recorded, and a run that they disturbed says that it is no evidence. Exit code: 0 measured, 1
malfunction, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from benchmarks.build_peers import PREFIX
from benchmarks.hosts import Hosts, linked_hosts
from benchmarks.launching import (
    CannotRunError,
    add_bypass_caches,
    environment_of_ranks,
    find_launcher,
    run_ranks,
    tunables_of,
)
from benchmarks.machine import Load, describe_machine
from benchmarks.memory import available_bytes
from benchmarks.nodes_contestants import CONTESTANTS, Contestant, chosen
from benchmarks.nodes_report import show

RANKS = 4
_CHECKPOINTS = 5
_TURN_TIMEOUT_S = 300.0


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _parser().parse_args(arguments)
    only = [] if options.only is None else options.only.split(",")
    try:
        contestants, left_out = chosen(only, options.peers / "bin")
        needed = (options.mib << 20) * RANKS * 8
        if needed > available_bytes():
            raise CannotRunError(f"{needed / 1e9:.1f} GB of memory needed: pass a smaller --mib")
        with linked_hosts(RANKS, options.link_mbit) if options.link_mbit else nullcontext() as hosts:
            turns = Turns(options, hosts)
            machine = describe_machine({"nodes": str(options.tmpfs)}) | {"tunables": tunables_of(options)}
            load = Load()
            rounds, orders = turns.rounds(contestants)
            machine |= load.as_dict()
    except (CannotRunError, ValueError) as problem:
        print(f"nodes: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("nodes: interrupted, the ranks are stopped", file=sys.stderr)
        return 130
    document = {
        "format": "deeppart-nodes",
        "version": 1,
        "mib": options.mib,
        "link_mbit": options.link_mbit,
        "machine": machine,
        "left_out": left_out,
        "failed": dict(turns.failed),
        "orders": orders,
        "warmup": rounds[0],
        "rounds": rounds[1:],
    }
    show(document, Console(width=None if sys.stdout.isatty() else 200))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(bool(turns.failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="state of each rank in MiB (default 256)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where the nodes' directories go")
    parser.add_argument("--peers", type=Path, default=PREFIX, help="where the peers were built (default build/peers)")
    names = ", ".join(one.name for one in CONTESTANTS)
    parser.add_argument("--only", metavar="NAMES", help=f"comma separated, or how they begin: {names}")
    parser.add_argument("--link-mbit", type=int, default=0, metavar="N", help="a link of N Mbit/s for each node")
    add_bypass_caches(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


class Turns:
    """Runs the contestants.

    Args:
        options: of the command line.
        hosts: to start the ranks on; None: all on this one.

    Attributes:
        failed: name -> how often. The others go on.

    Raises:
        CannotRunError: there is no launcher.
    """

    def __init__(self, options: argparse.Namespace, hosts: Hosts | None) -> None:
        self._options = options
        self._launcher = [*find_launcher(hosts.launcher if hosts else ()), "-n", str(RANKS)]
        self._environment = environment_of_ranks(_TURN_TIMEOUT_S, tunables_of(options))
        self._environment |= hosts.environment if hosts else {}
        self.failed: Counter[str] = Counter()

    def rounds(self, contestants: list[Contestant]) -> tuple[list[dict[str, dict[str, float]]], list[list[str]]]:
        """What was measured in each round, the first of which does not count, and in which order."""
        rounds: list[dict[str, dict[str, float]]] = []
        orders = []
        for number in range(self._options.repeat + 1):
            # Drawn anew, so that nobody always comes after the same one.
            order = random.Random(number).sample(contestants, len(contestants))
            rounds.append({})
            for one in order:
                began = time.perf_counter()
                found = self._turn(one, number)
                if found is None:
                    self.failed[one.name] += 1
                else:
                    rounds[-1][one.name] = found
                label = f"round {number} of {self._options.repeat}" if number else "warm-up round"
                print(f"{label}: {one.name}, {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
            orders.append([one.name for one in order])
        return rounds, orders

    def _turn(self, one: Contestant, number: int) -> dict[str, float] | None:
        """In a folder of its own, which is removed; None if the ranks failed."""
        with tempfile.TemporaryDirectory(prefix="deeppart-bench-", dir=self._options.tmpfs) as folder:
            return self._ours(one, number, folder) if not one.program else self._peer(one, number, folder)

    def _ours(self, one: Contestant, number: int, folder: str) -> dict[str, float] | None:
        with tempfile.TemporaryDirectory(prefix="deeppart-bench-") as work:
            result = Path(work) / "result.json"
            module = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.nodes_rank"]
            values = [one.name, folder, str(self._options.mib << 20), str(number), str(result)]
            if not run_ranks([*self._launcher, *module, *values], work, _TURN_TIMEOUT_S, self._environment):
                return None
            found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
            return found

    def _peer(self, one: Contestant, number: int, folder: str) -> dict[str, float] | None:
        program = self._options.peers.resolve() / "bin" / one.program
        values = [folder, str(self._options.mib << 20), str(_CHECKPOINTS), str(number)]
        found: dict[str, float] = {}
        for run in one.runs():
            with tempfile.TemporaryFile() as output:
                command = [*self._launcher, str(program), *values, *run]
                done = run_ranks(command, folder, _TURN_TIMEOUT_S, self._environment, output)
                output.seek(0)
                lines = output.read().decode(errors="replace").splitlines()
            results = [line for line in lines if line.startswith("{")]
            if not done or not results:
                print("\n".join(lines[-20:]), file=sys.stderr)
                return None
            found |= {name: float(value) for name, value in json.loads(results[-1]).items()}
        return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job's time limit: no data is left behind in memory
    sys.exit(main())
