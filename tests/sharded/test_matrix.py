"""From every layout into every other one, on 1 to 5 ranks: every byte, against what torch splits and gathers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import deeppart
from tests.sampling import sampled
from tests.sharded.layouts import LAYOUTS, build, clear, fill, group_of, mesh_of, wrong
from tests.sharded.ranks import run_job

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]

#: Layout, ranks, and ranks of a node: parts that are not in the memory of one's own node come as messages.
SOURCES = [
    source
    for source in (
        ("fsdp", 4, 1),
        ("fsdp", 3, 8),
        ("hsdp", 4, 2),
        ("tp", 2, 8),
        ("tp-dp", 4, 1),
        ("replicated", 2, 1),
        ("replicated", 1, 8),
    )
    if source[0] in LAYOUTS
]
#: What comes from which layout to which: (source, target), both with their numbers of ranks.
PAIRS = [
    (f"{saved} {ranks}", f"{layout} {count}")
    for saved, ranks, _ in SOURCES
    for layout, counts in LAYOUTS.items()
    for count in counts
]


def settings(directory: Path, source: tuple[str, int, int], ranks: int) -> dict[str, Any]:
    layout, count, node_size = source
    local = directory / f"local-{layout}-{count}" / f"of-{ranks}" / "{rank}"
    return {
        "persistent_dir": str(directory / f"{layout}-{count}"),
        "local_dir": str(local),
        "node_size": node_size,
        "every": {"partner": 0},
        "timeout": 60.0,
    }


def saved_and_restored(directory: Path, pairs: str) -> dict[str, list[str]]:
    """Save in several layouts, and restore each in those that are asked for; what is wrong then."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {count: group_of(count) for count in range(1, size + 1)}
    for source in SOURCES:
        layout, count, _ = source
        mesh = mesh_of(layout, count)
        if rank < count:
            state = build(layout, mesh)
            with deeppart.Checkpointer(**settings(directory, source, count), comm=groups[count]) as ck:
                for step in (1, 2):
                    fill(state, step)
                    assert not wrong(state, step), "the oracle does not agree with itself"
                    ck.checkpoint(state, step).wait("persistent")
    found = {}
    for layout, counts in LAYOUTS.items():
        for count in (each for each in counts if each <= size):
            dist.barrier()
            mesh = mesh_of(layout, count)
            if rank >= count:
                continue
            state = build(layout, mesh)
            for source in SOURCES:
                name = f"{source[0]} {source[1]} -> {layout} {count}"
                if name not in pairs.split(","):
                    continue
                clear(state)
                with deeppart.Checkpointer(**settings(directory, source, count), comm=groups[count]) as ck:
                    restored = ck.restore(state)
                found[name] = wrong(state, 2) if restored == 2 else [f"step {restored}"]
    return found


def test_every_byte_comes_from_every_layout_to_every_other(tmp_path: Path) -> None:
    pairs = [" -> ".join(pair) for pair in sampled(PAIRS, 6, kind=lambda pair: pair[0])]
    found = run_job(5, saved_and_restored, tmp_path, ",".join(pairs))
    assert found[0].keys() == set(pairs)
    assert [each for of_rank in found for each in of_rank.items() if each[1]] == []
    for layout, ranks, _ in SOURCES:
        for mmap in (False, True):
            assert wrong(deeppart.load(tmp_path / f"{layout}-{ranks}", mmap=mmap), 2) == []
