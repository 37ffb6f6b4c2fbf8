"""The time between failures and training, piece by piece: the same for campaigns and for advice."""

from __future__ import annotations

from collections.abc import Iterable

from ..machine.record import Restart
from ..machine.ways import PIECES, WAYS

#: The pieces that come after nodes are gathered.
AFTER = ("relaunch", "imports", "communicator", "first_step")
#: The time that a node takes to join whose processes are not ready, where those of spare nodes would be.
_COLD = frozenset({"relaunch", "imports"})


def pieces_s(restart: Restart, ranks: int, kinds: Iterable[str], *, cold: bool = False) -> dict[str, float]:
    """Piece -> seconds, of those that are paid after failures of some classes; in their order, without the restore.

    A scheduler that starts a job again gives it other nodes for those that are lost: of the time to replace one, only
    what is longer than that comes on top.

    Example:
        >>> from deeppart_simulator.campaign.comeback import pieces_s
        >>> from deeppart_simulator.machine.record import Restart
        >>> pieces_s(Restart(detect=30.0, relaunch=60.0, imports=20.0, mode="standby"), 64, {"node"})
        {'detect': 30.0, 'relaunch': 60.0, 'communicator': 0.0, 'first_step': 0.0}
    """
    paid = WAYS[restart.mode].after(kinds) | (_COLD if cold else frozenset())
    found = {piece: seconds for piece, seconds in restart.seconds(ranks).items() if piece in paid}
    if "replace" in found:
        found["replace"] = max(0.0, found["replace"] - found.get("requeue", 0.0))
    return found


def stopped_s(restart: Restart, ranks: int) -> float:
    """Seconds that a job pays that stops by itself to take nodes in; without the restore."""
    pieces = pieces_s(restart, ranks, {"node"})
    return sum(seconds for piece, seconds in pieces.items() if piece != PIECES[0])


def new_turn_s(restart: Restart, ranks: int) -> float:
    """Seconds from the begin of a new turn, on other nodes, until the processes are ready; without the restore."""
    pieces = pieces_s(restart, ranks, {"system"})
    return sum(pieces.get(piece, 0.0) for piece in AFTER)
