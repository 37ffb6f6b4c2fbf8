"""The jobs of a workload: who submits what, and when."""

from __future__ import annotations

from deeppart.errors import ConfigError

from .applications import Application, read_application
from .jobs import Request
from .traces.archive import Archive


def read_workload(archive: Archive, name: str, known: dict[str, Application]) -> list[Request]:
    """The jobs of a table, in its order.

    Example:
        >>> from deeppart_simulator.cluster.traces.archive import Archive
        >>> from deeppart_simulator.cluster.workloads import read_workload
        >>> jobs = read_workload(Archive(), "workloads/workload-1.csv", {})
        >>> len(jobs), jobs[0].name, jobs[0].gpus
        (160, 'cifar10-0', 6)
    """
    found = []
    for number, row in enumerate(archive.table(name)):
        try:
            application = row["application"]
            if application not in known:
                known[application] = read_application(archive, application)
            numbers = float(row["time"]), int(row["num_replicas"]), int(row["batch_size"])
        except (ValueError, KeyError) as error:
            raise ConfigError(
                "a row of a workload says nothing", found=f"{type(error).__name__}: {error}",
                where=f"{archive.name}: {name}, row {number + 1}",
            ) from error  # fmt: skip
        submitted_s, gpus, batch = numbers
        found.append(Request(row["name"], submitted_s, known[application], gpus, batch))
    if len({request.name for request in found}) < len(found):
        raise ConfigError("two jobs of a workload have the same name", where=f"{archive.name}: {name}")
    return found
