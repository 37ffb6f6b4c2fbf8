"""What a rank of test_torchrun.py does; started by torchrun, or by anything that sets the variables of env://.

python torchrun_job.py WHAT DIRECTORY
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import deeppart
from deeppart.comm.sockets.rank_sockets import RankSockets

TIMEOUT_S = 60.0


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {"weights": torch.rand(400_000, generator=generator), "small": [torch.rand(10, generator=generator)] * 3}


def settings(directory: Path) -> dict[str, Any]:
    every = {"partner": 1, "parity": 1}
    return {
        "persistent_dir": str(directory / "ckpt"),
        "local_dir": str(directory / "local" / "{rank}"),
        "node_size": 1,
        "every": every,
        "timeout": TIMEOUT_S,
    }


def tell(directory: Path, **found: Any) -> None:
    rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
    part = directory / f"told-{rank}.new"
    part.write_text(json.dumps(found))
    part.rename(directory / f"told-{rank}.json")


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return torch.equal(a["weights"], b["weights"]) and all(map(torch.equal, a["small"], b["small"]))


def save(directory: Path, comm: Any = None) -> None:
    with deeppart.Checkpointer(**settings(directory), comm=comm) as ck:
        for step in (1, 2):
            pending = ck.checkpoint(state(step), step)
            for level in ("partner", "parity", "persistent"):
                pending.wait(level)
        tell(directory, ranks=ck.world_size, rank=ck.rank, mpi="mpi4py" in sys.modules)


def restore(directory: Path, comm: Any = None) -> None:
    live = state(0)
    with deeppart.Checkpointer(**settings(directory), comm=comm) as ck:
        step = ck.restore(live)
        tell(directory, step=step, equal=equal(live, state(2)), explanation=ck.explanation)


def with_group(directory: Path, before: bool) -> None:
    """torch.distributed is initialized before, or after, the checkpointer is made."""

    def initialize() -> None:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))

    if before:
        initialize()
    with deeppart.Checkpointer(**settings(directory), comm=dist.group.WORLD if before else None) as ck:
        if not before:
            initialize()
        ones = torch.ones(1)
        dist.all_reduce(ones)
        ck.checkpoint(state(1), 1).wait()
        tell(directory, ranks=ck.world_size, sum=ones.item())
    dist.destroy_process_group()


def in_two_groups(directory: Path) -> None:
    """Two jobs in one: each half of the ranks has a checkpointer of its own."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    own = directory / f"half-{mine}"
    with deeppart.Checkpointer(**settings(own), comm=halves[mine]) as ck:
        ck.checkpoint(state(1 + mine), 1).wait()
        refused = ""
        try:
            deeppart.Checkpointer(**settings(directory / "other"), comm=halves[1 - mine])
        except deeppart.errors.LaunchError as error:
            refused = error.summary
        tell(directory, ranks=ck.world_size, rank=ck.rank, refused=refused)
    dist.destroy_process_group()


def late(directory: Path) -> None:
    """The last rank comes when the others have given up: they name it, and the next start succeeds."""
    rank = int(os.environ["RANK"])
    (directory / f"here-{rank}").touch()
    what = "given-up" if rank == 2 else "here"  # the first two begin at the same time, and give up at the same time
    while not all((directory / f"{what}-{other}").exists() for other in (0, 1)):
        time.sleep(0.01)
    given = settings(directory) | {"timeout": 5.0}
    try:
        deeppart.Checkpointer(**given).close()
        error = ""
    except deeppart.errors.CommError as problem:
        error = problem.summary
    (directory / f"given-up-{rank}").touch()
    with deeppart.Checkpointer(**settings(directory)) as ck:
        ck.checkpoint(state(1), 1).wait()
        tell(directory, error=error, ranks=ck.world_size)


def intruded(directory: Path) -> None:
    """Before rank 1 comes, somebody has left other entries for it at the store; rank 0 has looked at both."""
    os.environ["DEEPPART_SECRET_FILE"] = str(directory / "secret")
    if os.environ["RANK"] == "1":
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*place, is_master=False, wait_for_workers=False)
        sockets = RankSockets("127.0.0.1", TIMEOUT_S, 1)
        for left in ("no entry", sockets.address.encode().decode()):
            store.set("deeppart/rank/1", left)
            store.add("deeppart/came", 1)
            for _ in range(2):  # rank 0 says who is here after each look; one may have been under way
                store.delete_key("deeppart/present")
                store.wait(["deeppart/present"], datetime.timedelta(seconds=TIMEOUT_S))
        sockets.close(0)
    save(directory)


def train(directory: Path, *, group: bool, kills: bool) -> None:
    """Train to step 12. In each of the first five starts another rank may be killed, at another moment."""
    starts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if group:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    if group:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(4, 8)).sum().backward()  # DDP orders its buckets anew after the first one, and gloo its sums
    torch.manual_seed(7)
    own = torch.Generator().manual_seed(1 + rank if group else 1)
    live: dict[str, Any] = {"model": model, "optimizer": optimizer, "losses": []}
    live |= {"draw": own, "rng": torch.default_generator}
    fatal = kills and starts < 5 and rank == (1 + starts) % ranks
    with deeppart.Checkpointer(**settings(directory)) as ck:
        for step in range((ck.restore(live) or 0) + 1, 13):
            loss = model(torch.rand(4, 8, generator=own)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if fatal and step == 2 * starts + 3 and starts % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            live["losses"].append(loss.item())
            pending = ck.checkpoint(live, step)
            if fatal and step == 2 * starts + 3:
                os.kill(os.getpid(), signal.SIGKILL)
            pending.wait("persistent")
        final = [each.detach().numpy().tobytes().hex() for each in model.parameters()]
        final += [each["exp_avg"].numpy().tobytes().hex() for each in optimizer.state.values()]
        tell(directory, starts=starts, final=final, losses=live["losses"], draw=own.get_state().sum().item())
    if group:
        dist.destroy_process_group()


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    calls: dict[str, Callable[[Path], object]] = {
        "save": save,
        "restore": restore,
        "group-before": lambda d: with_group(d, True),
        "group-after": lambda d: with_group(d, False),
        "two-groups": in_two_groups,
        "late": late,
        "intruded": intruded,
        "whole-alone": lambda d: train(d, group=False, kills=False),
        "killed-alone": lambda d: train(d, group=False, kills=True),
        "whole-ddp": lambda d: train(d, group=True, kills=False),
        "killed-ddp": lambda d: train(d, group=True, kills=True),
    }
    calls[what](where)
