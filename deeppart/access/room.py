"""Room for one more descriptor, where this process may not have more (``EMFILE``).

Nothing is wrong with the file that could not be opened, so nothing else may be concluded from that: not that it is
damaged, nor that an older checkpoint must do.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: This process, or this machine, has no more descriptors.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
_GIVING_WAY: list[Callable[[], bool]] = []


def give_way(close_idle: Callable[[], bool]) -> None:
    """Have something asked to close what it does not need now; it says whether it has closed anything."""
    _GIVING_WAY.append(close_idle)


def with_room(do: Callable[[], T]) -> T:
    """What this returns; if there are no more descriptors, room is made, and it is tried again."""
    while True:
        try:
            return do()
        except OSError as error:
            if error.errno not in EXHAUSTED or not (_close_idle() or _raise_limit()):
                raise


def _close_idle() -> bool:
    return sum(close_idle() for close_idle in _GIVING_WAY) > 0  # all of them, not only the first that can


def _raise_limit() -> bool:
    """Raise the soft limit of open files to the hard one; True if it is higher now.

    The soft limit is 1,024 for the sake of programs that use ``select(2)``, which cannot take higher numbers; the hard
    limit is what the administrator allows. A job that comes here has used the soft one up, by files and connections of
    its own. To fail then would cost it the checkpoint; not to touch the limit before leaves it as the user has set it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True


def advice(error: OSError) -> dict[str, str]:
    """What an error message says of the limit; {} for any other error."""
    if error.errno == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        todo = "raise the limit of open files of the job's processes (`ulimit -n`): nothing is wrong with the file"
        return {"found": f"this process may not open more than {soft} files", "todo": todo}
    if error.errno == errno.ENFILE:
        todo = "raise the machine's limit (sysctl fs.file-max), or end what has so many open"
        return {"found": "no process of this machine may open more files", "todo": todo}
    return {}
