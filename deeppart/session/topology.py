"""The topology of ranks and nodes, exchanged when all ranks compare their settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deeppart.comm import Comm, finish, rank_names
from deeppart.config import Config, expand_directory, failure_domain, job_name, node_name
from deeppart.errors import ConfigError, on_ranks, short
from deeppart.model import LIBRARY
from deeppart.part import Signing
from deeppart.plan.redundancy import Nodes
from deeppart.save import Processors

#: Each takes about as much memory as two chunks, for each level being written.
MOST_ENCODE_THREADS = 4
#: Threads while training waits. A few use all of the memory bandwidth.
MOST_WAITING_THREADS = 8


@dataclass(frozen=True, slots=True)
class Topology:
    """The node of each rank.

    Attributes:
        names: node name of each rank.
        node_of: node number of each rank, in order of first appearance.
        directories: local directory of each rank, "" without one.
        domains: for each node, the domain that it shares with others (a switch); "" if unknown.
    """

    names: tuple[str, ...]
    node_of: tuple[int, ...]
    directories: tuple[str, ...]
    domains: tuple[str, ...]

    def mates(self, rank: int) -> tuple[int, ...]:
        """Ranks of the same node, ascending."""
        return tuple(other for other, node in enumerate(self.node_of) if node == self.node_of[rank])

    def first_in_directory(self, rank: int) -> int:
        """The first rank of the same node with the same local directory."""
        return self.sharing_directory(rank)[0]

    def sharing_directory(self, rank: int) -> tuple[int, ...]:
        """Ranks of the same node with the same local directory, ascending."""
        return tuple(mate for mate in self.mates(rank) if self.directories[mate] == self.directories[rank])

    @property
    def nodes(self) -> Nodes:
        """Ranks and domains by node."""
        return Nodes.of(self.node_of, self.domains)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The name of each node."""
        return tuple(self.names[ranks[0]] for ranks in self.nodes.ranks)


def compare_settings(comm: Comm, config: Config, signing: Signing | None, what: str) -> tuple[Topology, Processors]:
    """Check that every rank has the same settings; returns the topology, and this rank's processors for encoding.

    Keys are compared by keyed digests of a constant; an error only says that they differ.
    """
    name = node_name() if config.node_size is None else f"node{comm.rank // config.node_size}"
    directory = _local_directory(config, name, comm.rank)
    processors = [os.uname().nodename, hex(sum(1 << number for number in os.sched_getaffinity(0)))]
    keys = [] if signing is None else list(signing.fingerprints)
    message = [LIBRARY, name, config.shared_settings(), directory, failure_domain(), processors, keys]
    texts = finish(comm, comm.allgather(json.dumps(message).encode()), what, config.timeout)
    answers = [json.loads(text) for text in texts]
    advice = "give every node the same environment"
    # First: data of ranks with other versions may have another meaning.
    _compare("versions of deeppart", [answer[0] for answer in answers], comm.rank, advice, show=short)
    columns = zip(*(answer[1:] for answer in answers), strict=True)
    names, all_settings, directories, domains, all_processors, all_keys = columns
    advice = "give every rank the same key files, in the same order"
    _compare("keys in sign_key_file", all_keys, comm.rank, advice, show=lambda each: f"{len(each)} of them")
    advice = "give every rank the same configuration, environment and deeppart.toml"
    for key in all_settings[0]:
        values = [theirs.get(key) for theirs in all_settings]
        if key == "local_dir" and all(directories[rank] for rank in _others(values) | {0}):
            continue  # they exist, but do not agree whether any checkpoint is saved there, which ``every`` says
        _compare(f"values for {key}", values, comm.rank, advice)
    numbers: dict[str, int] = {}
    node_of = tuple(numbers.setdefault(each, len(numbers)) for each in names)
    domain_of = dict(zip(reversed(node_of), reversed(domains), strict=True))
    node_domains = tuple(domain_of[node] for node in range(len(numbers)))
    share = _share(processors, all_processors)
    idle = share - 1  # one processor is for training
    threads = config.encode_threads or max(1, min(MOST_ENCODE_THREADS, idle))
    topology = Topology(tuple(names), node_of, tuple(directories), node_domains)
    return topology, Processors(threads, spare=idle >= threads, waiting=max(1, min(MOST_WAITING_THREADS, share)))


def _others(values: Sequence[Any]) -> set[int]:
    """The ranks that have another value than rank 0."""
    return {rank for rank, value in enumerate(values) if value != values[0]}


def _compare(what: str, values: Sequence[Any], rank: int, advice: str, show: Callable[[Any], str] = str) -> None:
    """Check that all ranks have the same value."""
    if others := sorted(_others(values)):
        error = ConfigError(
            f"ranks were given different {what}",
            expected=f"{show(values[0])}, as on rank 0",
            found=f"{show(values[others[0]])} on {rank_names(others)}",
            where=f"rank {rank}",
            todo=advice,
        )
        raise on_ranks(error, rank)


def _share(mine: list[str], all_processors: tuple[list[str], ...]) -> int:
    """This rank's share of its processors; 0 if ranks have to share one."""
    host, usable = mine[0], int(mine[1], 16)
    sharing = sum(other == host and int(mask, 16) & usable != 0 for other, mask in all_processors)
    return usable.bit_count() // max(1, sharing)


def _local_directory(config: Config, node: str, rank: int) -> str:
    """The path of this rank's local level; "" if there is none, or if it cannot be determined, which is an error
    later.
    """
    if config.local_dir is None:
        return ""
    try:
        return str(expand_directory(config.local_dir, node=node, rank=rank, job=job_name()))
    except ConfigError:
        return ""
