"""The ``deeppart`` command and its subcommands.

Exit codes: 0 success; 1 something is damaged or incomplete, or nothing was found; 2 wrong usage, or a refusal. ``diff``
has those of diff(1).
"""

from __future__ import annotations

import click

from deeppart.cli.commands import Commands
from deeppart.model import VERSION


class _Commands(Commands):
    package = "deeppart.cli"
    names = (
        "ls",
        "show",
        "cat",
        "diff",
        "verify",
        "explain",
        "export",
        "import",
        "prune",
        "watch",
        "halt",
        "advise",
        "run",
        "slurm",
    )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="deeppart")
def main() -> None:
    """Look at checkpoints and compare them, verify and repair them, see what a restore would do, export them, import
    those of others, and remove those no longer wanted; ask which size of a job pays.

    DIR is a persistent directory: what the job was given as persistent_dir.
    """
