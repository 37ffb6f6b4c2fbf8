"""Ways for a job to come back after a failure, and the pieces of time that each of them pays for.

The pieces are those of a machine's ``[restart]`` (:class:`deeppart_simulator.machine.record.Restart`). Reading the
state back and doing lost work again come after them, whatever the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Pieces of the time until a restore begins, and the first step after it; in the order in which they come.
PIECES = ("detect", "requeue", "replace", "relaunch", "imports", "communicator", "first_step")
#: Whatever the way: the failure is noticed, all ranks meet again, and a first step is taken.
_ALWAYS = frozenset({"detect", "communicator", "first_step"})
#: Nothing is left that could be kept; the nodes are the same, so none is replaced.
_ALL_STOPPED = frozenset(PIECES) - {"replace"}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to come back.

    Attributes:
        name: as in machine files and options.
        words: what happens.
        pays: failure class -> the pieces that lie between the failure and training; groups of any name pay as "group".

    Example:
        >>> from deeppart_simulator.machine.ways import WAYS
        >>> sorted(WAYS["allocation"].after({"node"}) - WAYS["spares"].after({"node"}))
        ['replace']
    """

    name: str
    words: str
    pays: Mapping[str, frozenset[str]]

    def after(self, kinds: Iterable[str]) -> frozenset[str]:
        """The pieces that are paid once where failures of some classes struck before training went on."""
        return frozenset().union(*(self.pays.get(kind, self.pays["group"]) for kind in kinds))


def _way(name: str, words: str, process: Iterable[str], node: Iterable[str]) -> Way:
    a_process, a_node = _ALWAYS.union(process), _ALWAYS.union(node)
    pays = {"process": a_process, "node": a_node, "group": a_node, "system": _ALL_STOPPED}
    return Way(name, words, MappingProxyType(pays))


_STARTED = ("relaunch", "imports")
#: By name, each with a piece less than the one before. The job waits for the slower of two: the processes of nodes that
#: are well, and those that take the place of lost ones. So a spare node that has imported everything spares no imports
#: as long as all others import, too.
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        way.name: way
        for way in (
            _way(
                "job", "the scheduler starts the whole job again",
                ("requeue", *_STARTED), ("requeue", "replace", *_STARTED),
            ),
            _way(
                "allocation", "a launcher starts all processes again on the nodes that the job holds",
                _STARTED, ("replace", *_STARTED),
            ),
            _way("spares", "likewise, and the job holds spare nodes that are ready to run", _STARTED, _STARTED),
            _way(
                "standby", "likewise, and on every node processes wait that have imported everything",
                ("relaunch",), ("relaunch",),
            ),
            _way("in-process", "processes that are well stay, and waiting ones take the place of lost ones", (), ()),
        )
    }
)  # fmt: skip
