"""Decides at start-up which nodes of the job protect each other.

If there are too few nodes for the configured protection, the job continues with the best that is possible and reports
it; with ``protection = "strict"`` it refuses. No level is turned off without a report, except for the default partner
level if it cannot protect against anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deeppart.config import DEFAULT_PARITY_GROUP, DEFAULT_PARITY_TOLERATE, Config
from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.plan.redundancy import Copy, Nodes, ParitySet, parity_sets, partner_copies


@dataclass(frozen=True, slots=True)
class Protection:
    """The protection between the nodes of this job.

    Attributes:
        nodes: the job's nodes.
        every: level -> n if every n-th checkpoint is stored at it; for all levels. With "auto", 1 for levels in use.
        copies: of the partner level; empty if it is off.
        sets: of the parity level; empty if it is off.
        group_size, tolerate: the numbers with which the parity sets were made.
        shortfalls: lines about requested protection that is not possible, and what holds instead.
    """

    nodes: Nodes
    every: Mapping[str, int]
    copies: tuple[Copy, ...]
    sets: tuple[ParitySet, ...]
    group_size: int
    tolerate: int
    shortfalls: tuple[str, ...] = ()


def protect(config: Config, nodes: Nodes, names: tuple[str, ...], shared: tuple[tuple[int, int], ...]) -> Protection:
    """Resolve the levels that protect against the loss of nodes."""
    every = _auto_levels(config) if isinstance(config.every, str) else dict(config.every)
    useful = len(nodes) >= 2 and not shared
    every.setdefault(Level.PARTNER, every[Level.LOCAL] if useful else 0)
    shortfalls: list[str] = []
    for level in REDUNDANT_LEVELS:
        if every[level] and len(nodes) < 2:
            if config.protection == "strict":
                raise _refusal(level, every[level], "two nodes or more", f"one node, {names[0]}", "switch it off")
            shortfalls.append(f"{level} (every {every[level]}) is off: there is one node, {names[0]}, and no other")
            every[level] = 0
        if every[level] and shared:
            one, other = shared[0]
            found = f"nodes {names[one]} and {names[other]} have one local_dir: it would be lost with either of them"
            todo = "give every node a directory on storage of its own; for virtual nodes, with {node} in local_dir"
            raise _refusal(level, every[level], "a local_dir of its own on every node", found, todo)
    group_size, tolerate = _asked(config, len(nodes))
    sets: tuple[ParitySet, ...] = ()
    if every[Level.PARITY]:
        if config.protection == "strict":
            _check_groups(config, len(nodes), group_size, tolerate)
        else:
            asked = (config.parity_group or 0, tolerate)
            group_size, tolerate = _possible(config, len(nodes))
            if group_size < asked[0] or tolerate < asked[1]:
                shortfalls.append(_less_parity(config, len(nodes), group_size, tolerate))
        sets = parity_sets(nodes, group_size, tolerate)
    copies = partner_copies(nodes) if every[Level.PARTNER] else ()
    return Protection(nodes, every, copies, sets, group_size, tolerate, tuple(shortfalls))


def _asked(config: Config, count: int) -> tuple[int, int]:
    """(nodes in a parity group, how many of them may be lost) by the configuration."""
    group_size = config.parity_group or max(min(DEFAULT_PARITY_GROUP, count), 2)
    return group_size, config.parity_tolerate or DEFAULT_PARITY_TOLERATE


def _possible(config: Config, count: int) -> tuple[int, int]:
    """The same, reduced to what is possible with ``count`` nodes, at least two."""
    group_size, tolerate = _asked(config, count)
    if config.parity_group is None:
        group_size = max(group_size, tolerate + 1)  # the default size may be exceeded
    group_size = min(group_size, count)
    return group_size, min(tolerate, group_size - 1)


def _less_parity(config: Config, count: int, group_size: int, tolerate: int) -> str:
    names = (("parity_group", config.parity_group), ("parity_tolerate", config.parity_tolerate))
    asked = " and ".join(f"{name} = {value}" for name, value in names if value is not None)
    return f"{asked}, but there are {count} nodes: groups have {group_size} of them, of which {tolerate} may be lost"


def _auto_levels(config: Config) -> dict[str, int]:
    """The levels that ``every="auto"`` uses: all, but only the configured one of partner and parity."""
    if config.local_dir is None:
        return {Level.LOCAL: 0, Level.PARTNER: 0, Level.PARITY: 0, Level.PERSISTENT: 1}
    if config.parity_group is None and config.parity_tolerate is None:
        return {Level.LOCAL: 1, Level.PARITY: 0, Level.PERSISTENT: 1}
    return {Level.LOCAL: 1, Level.PARTNER: 0, Level.PARITY: 1, Level.PERSISTENT: 1}


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
