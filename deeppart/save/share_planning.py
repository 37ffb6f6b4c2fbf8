"""This rank's share of a state: planned alike on every rank, laid out for this one."""

from __future__ import annotations

import numpy as np

from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.partition import partition, usual_kappa
from deeppart.state.capture.layout import ShareLayout, lay_out, leaf_specs
from deeppart.state.compare.owners import trained_leaves
from deeppart.state.compare.state_layout import StateLayout
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.paths import readable


def plan_share(
    comm: Comm, layout: StateLayout, flat: FlatState, kappa: float | None, within: tuple[str, float], *, all_tell: bool
) -> ShareLayout | str:
    """Plan the share of this rank. Every rank computes the same plan; only the sizes of per-rank leaves are exchanged.

    Args:
        kappa: cost of a leaf, in bytes; None for the usual one.
        within: what this is a part of, and its timeout in seconds.
        all_tell: on all ranks: their structures are cut apart, so that sizes are exchanged whatever a rank has.

    Returns:
        The share, or why it cannot be planned on this rank. The others go on, and hear of it in the commit rounds.
    """
    sized = [i for i, kind in enumerate(layout.types) if kind.nbytes and i not in layout.aliases]
    carries = [i for i in sized if layout.per_rank[i]]
    rank0 = [i for i in carries if flat.shared[0] <= i < flat.common[0]]
    own = [i for i in carries if i not in set(rank0)] if rank0 else carries
    shared = [i for i in sized if not layout.per_rank[i]]
    if kappa is None:
        kappa = usual_kappa(np.array([layout.types[i].nbytes for i in shared], dtype=np.int64))
    carried = np.zeros(comm.size, dtype=np.int64)
    carried[comm.rank] = sum(layout.types[i].nbytes for i in carries) + int(kappa) * len(carries)
    if layout.per_rank[: flat.shared[0]].any() or all_tell:
        what, timeout = within
        carried = finish(comm, comm.maximum(carried), what, timeout)
    try:
        paths = [readable(leaf.path) for leaf in flat.arrays]
        specs = leaf_specs(layout.types, paths, shared)
        plan = partition(specs, comm.size, kappa=kappa, preload=carried.astype(np.float64))
        spans = [(shared[span.leaf], span.start, span.length) for span in plan.share(comm.rank).spans]
        spans += [(leaf, 0, layout.types[leaf].nbytes) for leaf in rank0]
        return lay_out(layout.types, spans, own, trained_leaves(flat))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
