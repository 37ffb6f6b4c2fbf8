"""``deeppart-sim published``: figures that others have published, beside what the simulator says of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from deeppart.cli.commands import GOOD

from ..timing.published import TARGET, Figure, figures
from .consoles import console, table
from .options import print_json


@click.command(short_help="Show published figures beside simulated ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def published(as_json: bool) -> int:
    """Simulate what others have published of torch.save, TorchSnapshot, MLPerf Storage and the DeepPart thesis, and say
    what the differences come from. The machines are the presets p4d, azure-lustre and cte-power.
    """
    found = figures()
    if as_json:
        print_json({"format": "deeppart-sim-published", "version": 1, "figures": [_document(each) for each in found]})
        return GOOD
    out = console()
    names = ["source", "case", "published", "simulated", "difference", "reproduced"]
    listing = table(f"published and simulated; reproduced: within {TARGET:.0%}", names, left=2)
    listing.add_column("why", no_wrap=True)
    before = None
    for each in found:
        if before not in (None, each.source):
            listing.add_section()
        before = each.source
        listing.add_row(
            each.source, each.case, f"{each.published:.3g} {each.unit}", f"{each.simulated:.3g} {each.unit}",
            f"{each.difference:+.0%}", "(given)" if each.given else "yes" if each.reproduced else "no", each.why,
        )  # fmt: skip
    out.print(listing)
    return GOOD


def _document(figure: Figure) -> dict[str, Any]:
    return asdict(figure) | {"difference": figure.difference, "reproduced": figure.reproduced}
