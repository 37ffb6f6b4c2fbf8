"""What programs that run ranks of one checkout or two have in common: options, exit codes, figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.checkout import MalfunctionError
from benchmarks.launching import CannotRunError, add_bypass_caches, tunables_of
from benchmarks.machine import Load, describe_machine

T = TypeVar("T")


def parser_for(description: str | None, *, local: bool = True) -> argparse.ArgumentParser:
    """A parser that knows ``--disk``, ``--bypass-caches`` and ``--json``; and ``--tmpfs`` for a local level."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", type=Path, default=Path.cwd(), help="where persistent files go (default: here)")
    if local:
        tmpfs = Path("/dev/shm")
        parser.add_argument("--tmpfs", type=Path, default=tmpfs, help="where local files go (default /dev/shm)")
    add_bypass_caches(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


def run_command(
    options: argparse.Namespace, measure: Callable[[], T], show: Callable[[T, Console], None], key: str = "found"
) -> int:
    """Measure, show, and write what was measured under ``key``; returns the exit code.

    Exit code: 0 measured, 1 malfunction, 2 cannot run here.
    """
    machine = describe_machine({name: str(vars(options)[name]) for name in ("disk", "tmpfs") if name in options})
    load = Load()
    try:
        found = measure()
    except CannotRunError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 2
    except MalfunctionError:
        return 1
    machine |= {"tunables": tunables_of(options)} | load.as_dict()
    console = Console(width=None if sys.stdout.isatty() else 150)
    show(found, console)
    if machine["no_evidence"]:
        console.print(f"[yellow]{machine['no_evidence']}[/]")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, key: found}, indent=1) + "\n", encoding="utf-8")
    return 0
