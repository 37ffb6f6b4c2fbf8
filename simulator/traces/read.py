"""Any trace: the format is told by how the file begins."""

from __future__ import annotations

from pathlib import Path

from deeppart.errors import ConfigError

from . import lanl, own_runs, philly, plain, slurm
from .record import Trace
from .refusal import refusal, shown, unreadable

FORMATS = (slurm.NAME, lanl.NAME, philly.NAME, plain.NAME, own_runs.NAME)
#: Enough to tell formats apart.
_BEGINNING = 4096


def read_trace(path: Path, *, nodes: int | None = None, system: str | None = None) -> Trace:
    """A trace."""
    found = format_of(path)
    if system is not None and found != lanl.NAME:
        raise ConfigError(
            "--system would change nothing", expected="it chooses one of LANL's systems", found=f"format {found}",
            where="--system", todo="leave it out",
        )  # fmt: skip
    if found == slurm.NAME:
        return slurm.read_slurm(path)
    if found == lanl.NAME:
        return lanl.read_lanl(path, system)
    if found == philly.NAME:
        return philly.read_philly(path)
    return own_runs.read_own_runs(path) if found == own_runs.NAME else plain.read_plain(path, nodes)


def format_of(path: Path) -> str:
    """The format of a file, by its beginning, or that of a directory."""
    if path.is_dir():
        return own_runs.NAME
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise unreadable(path, error) from error
    first_line = beginning.split("\n", 1)[0]
    known = {
        slurm.NAME: slurm.is_slurm(first_line),
        lanl.NAME: lanl.is_lanl(first_line),
        philly.NAME: philly.is_philly(beginning),
        own_runs.NAME: own_runs.is_own_runs(beginning),
        plain.NAME: plain.is_plain(beginning),
    }
    for name, fits in known.items():
        if fits:
            return name
    raise refusal(
        path, 1, shown(first_line.rstrip("\r")),
        "the columns of `sacct --parsable2` with State, Start, End and NodeList, or of LANL's file; an array of "
        "Philly's jobs; the runs of a persistent directory; or the columns at_s, kind and nodes",
    )  # fmt: skip
