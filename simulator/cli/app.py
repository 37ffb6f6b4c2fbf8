"""The ``deeppart-sim`` command and its subcommands.

Exit codes: 0 good; 1 a validation missed its target; 2 bad usage or impossible input.
"""

from __future__ import annotations

import click

from deeppart.cli.commands import Commands


class _Commands(Commands):
    package = "deeppart_simulator.cli"
    names = ("scale", "campaign", "advise", "restart", "cluster", "calibrate", "validate", "published")
    extra = (("simpy", "scipy", "matplotlib"), "pip install 'deeppart[sim]'")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Ask what checkpoints will cost before paying for nodes: how they scale, how often to make them and where, and
    what failures will cost.

    scale, campaign, advise and restart take the same --state, --machine, --ranks and --ranks-per-node;
    docs/simulator.md explains them. An option that would change nothing is refused.
    """
