"""``deeppart-sim published``: figures that others have published, beside what the simulator says of them."""

from __future__ import annotations

from ..report.tables import figures_table
from ..timing.published import figures
from .options import Asked, command
from .output import emit, flat


@command("Show published figures beside simulated ones.", "json")
def published(asked: Asked) -> int:
    """Simulate what others have published of torch.save, TorchSnapshot, MLPerf Storage and the DeepPart thesis, and say
    what the differences come from. The machines are the presets p4d, azure-lustre and cte-power.
    """
    found = figures()
    rows = [flat(each) | {"difference": each.difference, "reproduced": each.reproduced} for each in found]
    head = {"format": "deeppart-sim-published", "version": 1}
    return emit(asked.values, lambda: head | {"figures": rows}, lambda: [figures_table(found)])
