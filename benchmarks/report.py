"""Shows the result of a run: the machine, one table of figures, one of targets."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import BRIEFLY


def show(result: dict[str, Any], console: Console) -> None:
    """Print everything."""
    _show_machine(result, console)
    _warn(result, console)
    console.print(_figures(result))
    console.print(_targets(result))
    for name, reason in result["skipped"].items():
        console.print(f"{name} skipped: {reason}")
    compared = result["restores_compared"]
    console.print(f"{compared} restores, every byte of each compared by xxh3-128 on every rank: all exact.")
    _warn(result, console)  # once more, where it is read


def _warn(result: dict[str, Any], console: Console) -> None:
    if result["machine"]["no_evidence"]:
        console.print(f"[yellow]{result['machine']['no_evidence']}[/]")


def show_briefly(results: dict[str, dict[str, Any]], left_out: dict[str, str], console: Console) -> None:
    """One table of everyone in all cases."""
    table = Table(title="all cases: medians, seconds of the slowest rank", title_justify="left")
    for name in ("state-ranks", "who", "blocked", "durable", "restore", "on disk", "memory"):
        table.add_column(name, justify="left" if name in ("state-ranks", "who") else "right", no_wrap=True)
    for case, result in results.items():
        found = {(entry["who"], entry["metric"]): entry for entry in result["measurements"]}
        limits = [found.get(("limits", metric)) for metric in ("bare_copy_s", "disk_write_s", "bcast_s")]
        cells = ["" if entry is None else amount(entry["median"], "s") for entry in limits]
        table.add_row(case, "[dim]limit: copy, disk, broadcast[/]", *cells, "", "")
        for who, *metrics in BRIEFLY:
            entries = [found.get((who, metric)) for metric in metrics]
            if any(entries):
                cells = ["" if each is None else amount(each["median"], each["unit"]) for each in entries]
                table.add_row("", who, *cells)
        table.add_section()
    console.print(table)
    for case, reason in left_out.items():
        console.print(f"{case} left out: {reason}")
    for case, result in results.items():
        if result["machine"]["no_evidence"]:
            console.print(f"[yellow]{case}: {result['machine']['no_evidence']}[/]")


def _show_machine(result: dict[str, Any], console: Console) -> None:
    machine, settings, state = result["machine"], result["settings"], result["state"]
    versions = machine["versions"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.1f} GB, {machine['kernel']}\n"
        f"torch {versions['torch']}, {versions['mpi']}, mpi4py {versions['mpi4py']}, deeppart {versions['deeppart']}"
        f" ({machine['commit'] or 'no commit'}), Python {machine['python']}\n"
        + "\n".join(f"{name}: {kind}" for name, kind in machine["file_systems"].items())
        + (f"\nall ranks with GLIBC_TUNABLES={machine['tunables']}" if machine["tunables"] else "")
        + f"\n{settings['ranks']} ranks, {state['state_bytes'] / 1e9:.3f} GB in {state['leaves']} leaves, replicated"
        f" ({settings['state']}, {state['parameters'] / 1e6:.1f} M parameters);"
        f" share {state['share_bytes'] / 1e9:.3f} GB\n"
        f"{settings['repetitions']} rounds in turn after one that does not count; load average at the start "
        f"{machine['load_at_start']:.1f}; processors in use then {100 * machine['busy']:.0f} %, meanwhile by others "
        f"{100 * machine['others']:.0f} %, taken by the host {100 * machine['stolen']:.1f} %",
        highlight=False,
    )


def _figures(result: dict[str, Any]) -> Table:
    table = Table(title="slowest rank; seconds unless said otherwise", title_justify="left")
    table.add_column("who", no_wrap=True)
    table.add_column("what", no_wrap=True)
    for name in ("median", "min", "max", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for entry in result["measurements"]:
        if before and entry["who"] != before:
            table.add_section()
        speed = entry["bytes_per_s"]
        table.add_row(
            entry["who"] if entry["who"] != before else "",
            entry["label"],
            *(amount(entry[key], entry["unit"]) for key in ("median", "min", "max")),
            "" if speed is None else f"{speed / 1e9:.2f}",
        )
        before = entry["who"]
    return table


def _targets(result: dict[str, Any]) -> Table:
    table = Table(title="targets (ratios round by round)", title_justify="left")
    for name in ("what", "target", "measured", "min", "max", "met"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    for entry in result["targets"]:
        sign = "<=" if entry["at_most"] else ">="
        found = [entry[key] for key in ("measured", "min", "max")]
        values = ["-" if value is None else amount(value, entry["unit"]) for value in found]
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}[entry["met"]]
        target = "" if entry["target"] is None else f"{sign} {amount(entry['target'], entry['unit'])}"
        table.add_row(entry["name"], target, *values, met if target else "")
    return table


def amount(value: float, unit: str) -> str:
    """A number with as many digits as it deserves; bytes in powers of 1000."""
    if unit == "bytes":
        return f"{value / 1e9:.3f} GB" if abs(value) >= 1e9 else f"{value / 1e6:.1f} MB"
    if unit == "x":
        return f"{value:.2f}x"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}"
