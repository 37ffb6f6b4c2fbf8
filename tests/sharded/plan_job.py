"""What a rank of test_simulated_plan.py does: saves in a layout, and tells the share that was planned for it.

python plan_job.py LAYOUT DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import deeppart
from deeppart.model import Box
from deeppart.save import saver
from deeppart.save.share_planning import plan_share
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.paths.keys import readable
from tests.sharded.layouts import build, end_job, fill, mesh_of

KAPPAS = {"usual": None, "64": 64}


def main(layout: str, directory: Path) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    planned: list[Any] = []

    def recorded(comm: Any, state_layout: Any, flat: Any, *rest: Any, **options: Any) -> Any:
        share = plan_share(comm, state_layout, flat, *rest, **options)
        assert isinstance(share, ShareLayout), share
        boxes = {n: box for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}
        planned.append(
            [
                [
                    readable(flat.arrays[leaf].path),
                    *boxes.get(leaf, Box.whole(state_layout.types[leaf].shape)),
                    at,
                    length,
                ]
                for leaf, at, length in share.spans[["leaf", "start", "length"]].tolist()
            ]
        )
        return share

    vars(saver)["plan_share"] = recorded
    state = build(layout, mesh_of(layout, size))
    told = {}
    for name, kappa in KAPPAS.items():
        with deeppart.Checkpointer(persistent_dir=str(directory / name), timeout=60, kappa=kappa) as ck:
            fill(state, 1)
            ck.checkpoint(state, 1).wait("persistent")
        told[name] = sorted(planned.pop())
        assert not planned
    (directory / f"told-{rank}.json").write_text(json.dumps(told))
    end_job()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
