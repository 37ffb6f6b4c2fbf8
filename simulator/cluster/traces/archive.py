"""Files of measurements and workloads, in a folder or a zip archive.

    traces/APPLICATION/placements.csv       placement,local_bsz,step_time,sync_time
    traces/APPLICATION/scalability.csv      num_nodes,num_replicas,local_bsz,step_time,sync_time
    traces/APPLICATION/validation-BATCH.csv progress,iteration,metric,grad_sqr,grad_var
    WORKLOADS/NAME.csv                      name,time,application,num_replicas,batch_size

That is the layout of AdaptDL's branch osdi21-artifact.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from deeppart.errors import ConfigError

#: The trace that comes with the simulator.
SHIPPED = "adaptdl"
#: Bytes of one table; what is longer is none.
_MOST_BYTES = 64 << 20


class Archive:
    """The tables of a trace.

    Example:
        >>> from deeppart_simulator.cluster.traces.archive import Archive
        >>> archive = Archive("adaptdl")
        >>> archive.workloads("workloads")[0], len(archive.table("workloads/workload-1.csv"))
        ('workloads/workload-1.csv', 160)
    """

    def __init__(self, where: str | Path = SHIPPED) -> None:
        self.name = str(where)
        path = Path(str(resources.files(__package__) / "adaptdl.zip")) if self.name == SHIPPED else Path(where)
        self._folder = path if path.is_dir() else None
        self._zip = None
        if self._folder is not None:
            files = [each for each in path.rglob("*.csv") if each.is_file()]
            self.names = tuple(sorted(each.relative_to(path).as_posix() for each in files))
        else:
            self._zip = _opened(path)
            self.names = tuple(sorted(name for name in self._zip.namelist() if name.endswith(".csv")))

    def workloads(self, name: str) -> list[str]:
        """The workloads of a folder, or the one of that name."""
        wanted = name.removesuffix(".csv").rstrip("/")
        found = [each for each in self.names if each == f"{wanted}.csv" or each.rpartition("/")[0] == wanted]
        folders = sorted({each.rpartition("/")[0] for each in self.names if not each.startswith("traces/")})
        if not found or wanted.startswith("traces/"):
            raise ConfigError(
                "there is no such workload", expected=f"a CSV file, or a folder of them: {', '.join(folders)}",
                found=repr(name), where=self.name,
            )  # fmt: skip
        return found

    def table(self, name: str) -> list[Mapping[str, str]]:
        """The rows of a table."""
        if name not in self.names:
            raise ConfigError("a trace lacks a table", expected=name, found="no such file", where=self.name)
        try:
            rows: list[Mapping[str, str]] = list(csv.DictReader(io.StringIO(self._read(name).decode("utf-8"))))
        except (UnicodeDecodeError, csv.Error, zipfile.BadZipFile, OSError) as error:
            where = f"{self.name}: {name}"
            raise ConfigError("a table of a trace cannot be read", found=str(error), where=where) from error
        if not rows or any(None in row or None in row.values() for row in rows):
            raise ConfigError("a table of a trace is empty, or its rows differ", where=f"{self.name}: {name}")
        return rows

    def _read(self, name: str) -> bytes:
        if self._folder is not None:
            with (self._folder / name).open("rb") as file:
                return file.read(_MOST_BYTES)
        assert self._zip is not None
        with self._zip.open(name) as file:
            return file.read(_MOST_BYTES)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            "there is no such trace", expected=f"a folder, a zip archive, or {SHIPPED!r}", found=f"{path}: {error}",
            where="--trace", todo="docs/simulator.md has the layout",
        ) from error  # fmt: skip
