"""The topology of ranks and nodes, exchanged when all ranks compare their settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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
    given = {"": LIBRARY, "keys": keys, **config.shared_settings()}
    offered = json.dumps(given).encode() if comm.rank == 0 else None
    expected = json.loads(finish(comm, comm.broadcast(offered), what, config.timeout))
    # Each rank only sends the values in which it differs from rank 0.
    differing = {key: value for key, value in given.items() if expected.get(key) != value}
    message = [name, directory, failure_domain(), processors, differing]
    texts = finish(comm, comm.allgather(json.dumps(message).encode()), what, config.timeout)
    names, directories, domains, all_processors, differences = zip(*map(json.loads, texts), strict=True)
    others = {rank: each for rank, each in enumerate(differences) if each}

    def compare(key: str, about: str, advice: str, show: Callable[[Any], str] = str) -> None:
        having = {rank: theirs[key] for rank, theirs in others.items() if key in theirs}
        if key == "local_dir" and all(directories[rank] for rank in (0, *having)):
            return  # they exist, but do not agree whether any checkpoint is saved there, which ``every`` says
        if having:
            error = ConfigError(
                f"ranks were given different {about}",
                expected=f"{show(expected.get(key))}, as on rank 0",
                found=f"{show(having[min(having)])} on {rank_names(having)}",
                where=f"rank {comm.rank}",
                todo=advice,
            )
            raise on_ranks(error, comm.rank)

    # First: data of ranks with other versions may have another meaning.
    compare("", "versions of deeppart", "give every node the same environment", short)
    advice = "give every rank the same key files, in the same order"
    compare("keys", "keys in sign_key_file", advice, lambda each: f"{len(each)} of them")
    for key in config.shared_settings():
        compare(key, f"values for {key}", "give every rank the same configuration, environment and deeppart.toml")
    numbers: dict[str, int] = {}
    node_of = tuple(numbers.setdefault(each, len(numbers)) for each in names)
    domain_of = dict(zip(reversed(node_of), reversed(domains), strict=True))
    node_domains = tuple(domain_of[node] for node in range(len(numbers)))
    share = _share(processors, all_processors)
    idle = share - 1  # one processor is for training
    threads = config.encode_threads or max(1, min(MOST_ENCODE_THREADS, idle))
    topology = Topology(tuple(names), node_of, tuple(directories), node_domains)
    return topology, Processors(threads, spare=idle >= threads, waiting=max(1, min(MOST_WAITING_THREADS, share)))


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
