"""The file that lists the runs in a persistent directory (docs/format.md). Pure.

:mod:`deeppart.cadence.history` writes the file on rank 0 of a job with ``every = "auto"``; the simulator reads it to
fit failure rates to those of a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deeppart.model.records import LEVELS

_MOST_NODES = 1 << 24
_SESSION = re.compile(r"[0-9a-f]{32}")
_TIME = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\.[0-9]{6}Z")


class RunsFile:
    """The document in the file.

    Attributes:
        NAME: of the file, in the persistent directory.
        MOST: older runs are dropped.
        LATER: fields filled in later: the last time seen before a failure, of a regular end, the restored step.
    """

    NAME = "deeppart-runs.json"
    FORMAT, VERSION = "deeppart-runs", 1
    MOST = 500
    LATER = ("seen", "ended", "restored")

    @classmethod
    def document(cls, runs: list[dict[str, Any]]) -> dict[str, Any]:
        """Of these runs, oldest first."""
        return {"format": cls.FORMAT, "version": cls.VERSION, "runs": runs[-cls.MOST :]}

    @classmethod
    def records(cls, document: Any) -> list[dict[str, Any]]:
        """The runs in a document, oldest first, each with session, began, nodes, seen, ended and restored.

        Example:
            >>> RunsFile.records({"format": "deeppart-runs", "version": 1, "runs": []})
            []
        """
        if (document["format"], document["version"]) != (cls.FORMAT, cls.VERSION):
            raise ValueError(f"format {_short(document['format'])}, version {_short(document['version'])}")
        if type(document["runs"]) is not list or len(document["runs"]) > cls.MOST:
            raise ValueError(f"runs are {_short(document['runs'])}")
        return [_checked(record) for record in document["runs"]]


def _checked(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: record[name] for name in ("session", "began", "nodes", *RunsFile.LATER)}
    for name in ("began", "seen", "ended"):
        if (found[name] is not None or name == "began") and not _matches(_TIME, found[name]):
            raise ValueError(f"{name} {_short(found[name])}")
    nodes = found["nodes"]
    if found["restored"] not in (None, *LEVELS) or type(nodes) is not int or not 1 <= nodes <= _MOST_NODES:
        raise ValueError(f"restored {_short(found['restored'])}, nodes {_short(nodes)}")
    if not _matches(_SESSION, found["session"]):
        raise ValueError(f"session {_short(found['session'])}")
    return found


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)}"  # not its repr: it may be nested too deeply for that
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
