"""``deeppart-sim published``: figures that others have published, beside what the simulator says of them."""

from __future__ import annotations

from ..report.blocks import Result
from ..report.sections import published_section
from ..timing.published import figures
from .options import OUTPUT, Asked, command
from .output import flat


@command("Show published figures beside simulated ones.", *OUTPUT)
def published(asked: Asked) -> Result:
    """Simulate what others have published of torch.save, TorchSnapshot, MLPerf Storage and the DeepPart thesis, and say
    what the differences come from. The machines are the presets p4d, azure-lustre and cte-power.
    """
    found = figures()
    rows = [flat(each) | {"difference": each.difference, "reproduced": each.reproduced} for each in found]
    document = {"format": "deeppart-sim-published", "version": 1, "figures": rows}
    return Result("Published figures", document, [published_section(found)], rows)
