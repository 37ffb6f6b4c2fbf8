"""What was done to storage in one scenario, byte for byte: written down, so that it can be done again.

A plan says what is to be harmed; which files there are to harm is known only when a life is over. The trace says which
ones it were. ``--trace FILE`` writes a line of JSON per scenario, ``--replay FILE`` plays these scenarios again and
does to the same files what was done to them, instead of choosing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Harm:
    """One file, or one node's directory, was harmed before a life.

    Attributes:
        life: number of the life.
        path: of the file, below the scenario's directory, as :func:`tests.faults.campaign.files.steady_name` gives it.
        how: "flip", "truncate", "remove", "garbage", "swap", "plant", "node" or "exchange".
        kind: row of the report.
        size: of the file before, in bytes.
        flips: (offset, what the byte is combined with by exclusive or), of "flip".
        length: of "truncate", in bytes.
        source: the file whose bytes it got, of "swap".
        content: its new bytes are drawn from this key, of "garbage" and "plant".
    """

    life: int
    path: str
    how: str
    kind: str
    size: int = 0
    flips: tuple[tuple[int, int], ...] = ()
    length: int = 0
    source: str = ""
    content: str = ""

    @property
    def text(self) -> str:
        """Readable."""
        what = {
            "flip": f"flipped {[place for place, _ in self.flips]} of {self.size}",
            "truncate": f"truncated to {self.length} of {self.size}",
            "swap": f"replaced by {self.source}",
        }
        return f"{self.path}: {what.get(self.how, self.how)}"


@dataclass(slots=True)
class Trace:
    """One scenario.

    Attributes:
        scenario: ``SEED:NUMBER``.
        options: of the command line, without which it is another one.
        harm: what was done between lives.
        met: what happened to processes and operations in lives: which, and at which place.
    """

    scenario: str
    options: str = ""
    harm: list[Harm] = field(default_factory=list)
    met: list[dict[str, Any]] = field(default_factory=list)

    def before(self, life: int) -> list[Harm]:
        """What was done before a life."""
        return [each for each in self.harm if each.life == life]

    def to_json(self) -> dict[str, Any]:
        """For a file or a report."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Trace:
        """Inverse of :meth:`to_json`."""
        harm = []
        for each in document["harm"]:
            each["flips"] = tuple((place, mask) for place, mask in each["flips"])
            harm.append(Harm(**each))
        return cls(**(document | {"harm": harm}))


def read_traces(path: Path) -> list[Trace]:
    """All scenarios of a file that ``--trace`` has written."""
    return [Trace.from_json(json.loads(line)) for line in path.read_text().splitlines()]
