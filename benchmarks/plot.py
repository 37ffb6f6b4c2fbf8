"""A picture of a result: who blocks how long, when bytes are safe, how long a restore takes, beside the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_OURS, _PEERS, _LIMIT = "#1b6ca8", "#b9c4cf", "#c8553d"

_BROADCAST = ("broadcast", "limits", "bcast_s")
#: panel title -> (unit divisor, bars as (label, who, metric), limit line as (label, who, metric) or None)
_PANELS: dict[str, tuple[float, list[tuple[str, str, str]], tuple[str, str, str] | None]] = {
    "training blocked, s": (
        1.0,
        [
            ("deeppart lazy", "deeppart lazy", "blocked_s"),
            ("deeppart", "deeppart", "blocked_s"),
            ("dcp.async_save\nstager kept", "dcp.async_save", "kept_blocked_s"),
            ("dcp.async_save", "dcp.async_save", "blocked_s"),
            ("torchsnapshot\nasync_take", "torchsnapshot", "async_blocked_s"),
            ("dcp.save", "dcp", "save_s"),
            ("torch.save", "torch.save", "save_s"),
        ],
        ("bare copy", "limits", "bare_copy_s"),
    ),
    "until on disk, s": (
        1.0,
        [
            ("deeppart", "deeppart", "persistent_s"),
            ("dcp.save", "dcp", "save_s"),
            ("dcp.async_save", "dcp.async_save", "done_s"),
            ("torch.save", "torch.save", "save_s"),
            ("torchsnapshot", "torchsnapshot", "save_s"),
        ],
        ("direct write", "limits", "disk_write_s"),
    ),
    "restore into live tensors, s": (
        1.0,
        [
            ("deeppart\nlocal", "deeppart", "restore_local_s"),
            ("deeppart\npersistent", "deeppart", "restore_persistent_s"),
            ("dcp.load", "dcp", "restore_s"),
            ("torch.load", "torch.save", "restore_s"),
            ("torchsnapshot", "torchsnapshot", "restore_s"),
        ],
        _BROADCAST,
    ),
    "extra memory per rank, GB": (
        1e9,
        [
            ("deeppart\nsave", "deeppart", "memory_bytes"),
            ("dcp.async_save", "dcp.async_save", "memory_bytes"),
            ("deeppart\nrestore", "deeppart", "restore_persistent_memory_bytes"),
            ("dcp.load", "dcp", "restore_memory_bytes"),
            ("torch.load", "torch.save", "restore_memory_bytes"),
        ],
        None,
    ),
}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the picture.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {(entry["who"], entry["metric"]): entry for entry in result["measurements"]}
    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(18, 4.6), layout="constrained")
    for axis, (title, (divisor, bars, limit)) in zip(axes, _PANELS.items(), strict=True):
        if limit == _BROADCAST and result["settings"]["ranks"] == 1:
            limit = ("read from the page cache", "limits", "cache_read_s")
        present = [(label, found[who, metric]) for label, who, metric in bars if (who, metric) in found]
        for place, (label, entry) in enumerate(present):
            middle = entry["median"] / divisor
            spread = [[middle - entry["min"] / divisor], [entry["max"] / divisor - middle]]
            colour = _OURS if label.startswith("deeppart") else _PEERS
            axis.bar(place, middle, color=colour, yerr=spread, capsize=3)
            top = (place, entry["max"] / divisor)
            axis.annotate(f"{middle:.2g}", top, (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axis.set_xticks(range(len(present)), [label for label, _ in present], rotation=40, ha="right", fontsize=8)
        if limit is not None and limit[1:] in found:
            height = found[limit[1:]]["median"] / divisor
            axis.axhline(height, color=_LIMIT, linestyle="--", linewidth=1.2, label=f"limit: {limit[0]} {height:.2g}")
            axis.legend(fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    state = result["state"]
    figure.suptitle(
        f"{state['state_bytes'] / 1e9:.2f} GB, {state['leaves']} leaves, {result['settings']['ranks']} ranks, "
        f"{result['machine']['cpu']}: medians, bars from min to max",
        fontsize=10,
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
