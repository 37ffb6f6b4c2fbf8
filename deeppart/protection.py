"""Which nodes protect each other in this job: checked against its topology at start-up.

Levels that cannot do what the configuration asks are refused here, never switched off in silence. Only the partner
level that nobody asked for, because it is on by default, is left out where there is nothing it could protect against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deeppart.config import DEFAULT_PARITY_GROUP, DEFAULT_PARITY_TOLERATE, Config
from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS
from deeppart.redundancy import Copy, Nodes, ParitySet, parity_sets, partner_copies


@dataclass(frozen=True, slots=True)
class Protection:
    """What goes between nodes at a checkpoint.

    Attributes:
        nodes: the job's nodes.
        every: level -> every how many checkpoints; all levels, as resolved for this job. With "auto", 1 for those that
            are on.
        copies: of the partner level; () where it is off.
        sets: of the parity level; () where it is off.
        group_size, tolerate: what the parity sets were made with.
    """

    nodes: Nodes
    every: Mapping[str, int]
    copies: tuple[Copy, ...]
    sets: tuple[ParitySet, ...]
    group_size: int
    tolerate: int


def protect(config: Config, nodes: Nodes, names: tuple[str, ...], shared: tuple[tuple[int, int], ...]) -> Protection:
    """Resolve the levels that protect against the loss of nodes.

    Args:
        names: of the nodes, for messages.
        shared: pairs of nodes whose ``local_dir`` is one and the same directory.

    Raises:
        ConfigError: the topology cannot give what was asked for; the message says what it can give.
    """
    every = _auto_levels(config) if isinstance(config.every, str) else dict(config.every)
    useful = len(nodes) >= 2 and not shared
    every.setdefault("partner", every["local"] if useful else 0)
    for level in REDUNDANT_LEVELS:
        if every[level] and len(nodes) < 2:
            raise _refusal(level, every[level], "two nodes or more", f"one node, {names[0]}", "switch it off")
        if every[level] and shared:
            one, other = shared[0]
            found = f"nodes {names[one]} and {names[other]} have one local_dir: it would be lost with either of them"
            todo = "give every node a directory on storage of its own; for virtual nodes, with {node} in local_dir"
            raise _refusal(level, every[level], "a local_dir of its own on every node", found, todo)
    tolerate = config.parity_tolerate or DEFAULT_PARITY_TOLERATE
    group_size = config.parity_group or max(min(DEFAULT_PARITY_GROUP, len(nodes)), 2)
    sets: tuple[ParitySet, ...] = ()
    if every["parity"]:
        _check_groups(config, len(nodes), group_size, tolerate)
        sets = parity_sets(nodes, group_size, tolerate)
    copies = partner_copies(nodes) if every["partner"] else ()
    return Protection(nodes, every, copies, sets, group_size, tolerate)


def _auto_levels(config: Config) -> dict[str, int]:
    """The levels that are on with ``every="auto"``: all, of partner and parity the one that is asked for."""
    if config.local_dir is None:
        return {"local": 0, "partner": 0, "parity": 0, "persistent": 1}
    if config.parity_group is None and config.parity_tolerate is None:
        return {"local": 1, "parity": 0, "persistent": 1}
    return {"local": 1, "partner": 0, "parity": 1, "persistent": 1}


def _check_groups(config: Config, count: int, group_size: int, tolerate: int) -> None:
    if group_size > count:
        raise ConfigError(
            f"parity_group = {group_size}, but this job has fewer nodes",
            expected=f"at least {group_size} nodes",
            found=f"{count} nodes",
            todo=f"with {count} nodes, parity_group can be 2 to {count} and parity_tolerate 1 to {count - 1}",
        )
    if tolerate >= group_size:
        raise ConfigError(
            f"parity_tolerate = {tolerate}, but a parity group has {group_size} nodes",
            expected="at least one node of a group to be left",
            found=f"groups of {group_size} of this job's {count} nodes",
            todo=f"parity_tolerate can be 1 to {group_size - 1}"
            + ("" if config.parity_group else f"; with parity_group = {count}, 1 to {count - 1}"),
        )


def _refusal(level: str, count: int, expected: str, found: str, todo: str) -> ConfigError:
    return ConfigError(
        f"the {level} level (every {count}) cannot protect anything in this job",
        expected=expected,
        found=found,
        todo=todo,
    )
