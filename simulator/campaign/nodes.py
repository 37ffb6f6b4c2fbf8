"""The nodes of a job in a simulation: the one at each place, spare ones, and those that are given back.

A place is where a node stands: number n of the machine, with its switch, its rack and its power. What fails strikes a
place, whatever node is there now: a node that takes the place of a lost one is in the same groups.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from .survival import PLACES, place_of


class JobNodes:
    """The nodes of a job.

    Attributes:
        used: nodes of the job, in the order of their places. Each has a number of its own, from which
            :func:`~deeppart_simulator.campaign.survival.place_of` tells its place.
        turn: counts how often the job has got other nodes.

    Example:
        >>> from deeppart_simulator.campaign.nodes import JobNodes
        >>> from deeppart_simulator.campaign.survival import place_of
        >>> nodes = JobNodes(4, spares=1)
        >>> lost, _ = nodes.lose([1, 2]), nodes.take()
        >>> lost, [place_of(node) for node in nodes.used], nodes.waiting
        ([1, 2], [0, 1, 3], 0)
    """

    def __init__(self, places: int, spares: int) -> None:
        self._places, self._spares = places, spares
        self._made = 0  # how often nodes have taken places that others had before
        self._fresh = spares  # spare nodes on which nothing of the job is stored
        self._back: list[int] = []  # of the job before, with what is stored on them
        self._empty: list[int] = []  # places of lost nodes, ascending
        self.used = list(range(places))
        self.turn = 0

    @property
    def waiting(self) -> int:
        """Spare nodes, of whatever kind."""
        return self._fresh + len(self._back)

    @property
    def missing(self) -> int:
        """Places that are empty."""
        return self._places - len(self.used)

    def at(self, places: Iterable[int]) -> list[int]:
        """The job's nodes at some places."""
        found = ((place, bisect_left(self.used, place, key=place_of)) for place in sorted(set(places)))
        return [self.used[at] for place, at in found if at < len(self.used) and place_of(self.used[at]) == place]

    def lose(self, places: Iterable[int]) -> list[int]:
        """Those nodes are gone; returns them."""
        struck = self.at(places)
        gone = set(struck)
        self.used = [node for node in self.used if node not in gone]
        self._empty = sorted([*self._empty, *map(place_of, struck)])
        return struck

    def repaired(self) -> None:
        """A lost node is back, empty."""
        self._fresh += 1

    def take(self) -> None:
        """Fill empty places, first with nodes that the job had there before."""
        filled, self._empty = self._empty[: self._fresh], self._empty[self._fresh :]
        self._fresh -= len(filled)
        fresh = [place + PLACES * (self._made + number) for number, place in enumerate(filled, 1)]
        self._made += len(fresh)
        if self._back or fresh:
            self.used = sorted([*self.used, *self._back, *fresh], key=place_of)
        self._back = []

    def keep(self, count: int) -> None:
        """The job goes on with so many; the others wait."""
        self._back += self.used[count:]
        self.used = self.used[:count]

    def renew(self) -> None:
        """The scheduler has given the job other nodes, as many as at the beginning."""
        self._made += 1
        self.turn += 1
        self.used = [place + PLACES * self._made for place in range(self._places)]
        self._fresh, self._back, self._empty = self._spares, [], []
