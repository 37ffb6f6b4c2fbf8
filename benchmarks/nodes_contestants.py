"""Who takes part in benchmarks/nodes.py, with which setting, and what each of them can lose. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What a checkpoint survives, in the order of the report.
LOCAL, PARTNER, ONE_OF_4, TWO_OF_4, PERSISTENT = (
    "local alone",
    "partner copies",
    "parity, 1 of 4 may be lost",
    "parity, 2 of 4 may be lost",
    "parallel file system",
)
LEVELS = (LOCAL, PARTNER, ONE_OF_4, TWO_OF_4, PERSISTENT)
#: What is lost before a restore -> the nodes. Two of which neither has the copy of the other.
LOSSES: dict[str, tuple[int, ...]] = {"none": (), "one": (2,), "two": (1, 3)}
OURS = "deeppart"
#: At the end of a contestant's name: its ranks exchange over sockets, as those of torchrun, not by MPI.
SOCKETS = "-sockets"


@dataclass(frozen=True)
class Contestant:
    """Something that is measured once per round, in processes of its own.

    Attributes:
        name: for ``--only``, and in the JSON.
        who, setting: for the table.
        level: what it survives, one of :data:`LEVELS`; empty: not compared with others.
        losses: after which of :data:`LOSSES` it is restored.
        program: of benchmarks/peers_c; empty for what :mod:`benchmarks.nodes_rank` measures.
        arguments: of the program.
    """

    name: str
    who: str
    setting: str
    level: str
    losses: tuple[str, ...] = ()
    program: str = ""
    arguments: tuple[str, ...] = ()

    def runs(self) -> list[tuple[str, ...]]:
        """What to start the program with, one after the other: losses, and its own arguments."""
        if self.program == "fti_rounds":  # restores when it is started
            return [(loss, *self.arguments) for loss in ("save", *self.losses)]
        return [(",".join(self.losses), *self.arguments)]


_NOTHING, _ONE, _TWO = ("none",), ("none", "one"), ("none", "one", "two")
_DIGESTS = "digests (xxh3-128)"
#: Level 3 restores sooner with these than with the default of 1024; redset is fastest with its default.
_FTI_BLOCK_KIB = "512"
#: deeppart's cases: name -> settings; what is on besides the local level.
CASES: dict[str, dict[str, Any]] = {
    "local": {"every": {"partner": 0, "persistent": 0}},
    "partner": {"every": {"partner": 1, "persistent": 0}},
    "parity-1": {"every": {"partner": 0, "parity": 1, "persistent": 0}, "parity_group": 4, "parity_tolerate": 1},
    "parity-2": {"every": {"partner": 0, "parity": 1, "persistent": 0}, "parity_group": 4, "parity_tolerate": 2},
    "both": {"every": {"partner": 1, "parity": 1, "persistent": 0}, "parity_group": 4, "parity_tolerate": 2},
    "persistent": {"every": {"partner": 0, "persistent": 1}},
}


def _ours() -> tuple[Contestant, ...]:
    return (
        Contestant("limits", "limits", "", ""),
        Contestant("local", OURS, _DIGESTS, LOCAL, _NOTHING),
        Contestant("partner", OURS, _DIGESTS, PARTNER, _TWO),
        Contestant("parity-1", OURS, f"parity_tolerate=1, {_DIGESTS}", ONE_OF_4, _ONE),
        Contestant("parity-2", OURS, f"parity_tolerate=2, {_DIGESTS}", TWO_OF_4, _TWO),
        Contestant("both", OURS, f"partner and parity, {_DIGESTS}", ""),
        Contestant("persistent", OURS, _DIGESTS, PERSISTENT, _TWO),
        Contestant("fewer", OURS, "replicated, on three ranks", ""),
        *(
            Contestant(name + SOCKETS, OURS, f"without MPI, {_DIGESTS}", level, losses)
            for name, level, losses in (
                ("local", LOCAL, _NOTHING),
                ("partner", PARTNER, _TWO),
                ("parity-1", ONE_OF_4, _ONE),
                ("parity-2", TWO_OF_4, _TWO),
            )
        ),
    )


def _veloc(name: str, setting: str, level: str, losses: tuple[str, ...], *keys: str) -> list[Contestant]:
    """With its digests and without, which is its default."""
    return [
        Contestant(
            f"veloc-{name}{suffix}", "VELOC", f"{setting}, {digests}", level, losses, "veloc_rounds", (*keys, *more)
        )
        for suffix, digests, more in (("", "no digests", ()), ("-sha", "digests (SHA-256)", ("chksum=true",)))
    ]


def _peers() -> tuple[Contestant, ...]:
    # without parity and a persistent folder, VELOC does not restart; so it has one, and does not write to it for a day
    alone = ("ec_interval=-1", "persistent=FOLDER", "persistent_interval=86400")
    files = ("ec_interval=-1", "persistent=FOLDER")
    background = ("mode=async", "threaded=true")
    return (
        *_veloc("local", "sync", LOCAL, _NOTHING, "mode=sync", *alone),
        *_veloc("xor", "sync XOR", ONE_OF_4, _ONE, "mode=sync", "ec_interval=0"),
        *_veloc("xor-async", "async XOR", ONE_OF_4, _ONE, *background, "ec_interval=0"),
        *_veloc("files-async", "async", PERSISTENT, _TWO, *background, *files),
        *(
            Contestant(f"redset-{scheme}", "redset", f"{words}, no digests", level, losses, "redset_rounds", (scheme,))
            for scheme, words, level, losses in (
                ("partner", "copies", PARTNER, _TWO),
                ("xor", "XOR", ONE_OF_4, _ONE),
                ("rs", "Reed-Solomon", TWO_OF_4, _TWO),
            )
        ),
        *(
            Contestant(f"fti-{n}", "FTI", f"L{n}, digests (MD5)", level, losses, "fti_rounds", (str(n), _FTI_BLOCK_KIB))
            for n, level, losses in (
                (1, LOCAL, _NOTHING),
                (2, PARTNER, _TWO),
                (3, TWO_OF_4, _TWO),
                (4, PERSISTENT, _TWO),
            )
        ),
    )


CONTESTANTS = (*_ours(), *_peers())


def chosen(only: Sequence[str], programs: Path) -> tuple[list[Contestant], dict[str, str]]:
    """Who takes part, and who is left out: name -> why.

    Args:
        only: names, or their beginnings; empty for everyone.
        programs: where the peers' programs are, once they have been built.

    Raises:
        ValueError: nobody has such a name.
    """
    for each in only:
        if not any(one.name.startswith(each) for one in CONTESTANTS):
            raise ValueError(f"no {each}; there are {', '.join(one.name for one in CONTESTANTS)}")
    wanted = [one for one in CONTESTANTS if not only or one.name.startswith(tuple(only))]
    left_out = {
        one.name: "not built (python benchmarks/build_peers.py)"
        for one in wanted
        if one.program and not (programs / one.program).is_file()
    }
    return [one for one in wanted if one.name not in left_out], left_out
