"""Common parts of the commands: consoles, counts and times for people."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from deeppart.cli.commands import end_quietly
from deeppart.model import StepKey
from deeppart.offline.inspect.listing import name_ranks

#: Columns where the output is no terminal: nothing is cut or wrapped in a file or a pipe.
_UNLIMITED_COLUMNS = 100_000

_STYLES = {
    "complete": "green",
    "sound": "green",
    "recoverable": "yellow",
    "unfinished": "yellow",
    "newer": "yellow",
    "removed": "yellow",
    "damaged": "bold red",
}


class PlainConsole(Console):
    """A console that takes text as it is: what comes out of a checkpoint is never markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        if not self.is_terminal:
            self.width = _UNLIMITED_COLUMNS

    def on_broken_pipe(self) -> NoReturn:
        sys.exit(end_quietly())


def console() -> Console:
    """The console on which a command prints."""
    return PlainConsole()


def state_text(state: str) -> Text:
    """A state, coloured."""
    return Text(state, _STYLES.get(state, ""))


def moment(iso: str | None) -> str:
    """UTC time to the second: ``2026-11-21 04:29:49``."""
    return "" if iso is None else iso[:19].replace("T", " ")


def count(number: int, noun: str) -> str:
    """``1 part``, ``2 parts``."""
    plural = noun[:-1] + "ves" if noun.endswith("leaf") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def step_names(keys: Iterable[StepKey]) -> dict[StepKey, str]:
    """``100``; ``100 (session 3f2a..., 7)`` for each of several attempts at one step."""
    listed = list(keys)
    several = {step for step, number in Counter(key.step for key in listed).items() if number > 1}
    return {key: name_step(key) if key.step in several else str(key.step) for key in listed}


def name_step(key: StepKey) -> str:
    """Step and session, the latter by its first digits, and its sequence."""
    return f"{key.step} (session {key.session[:8]}..., {key.sequence})" if key.session else f"{key.step} (older layout)"


def some(texts: Sequence[str], most: int) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def unchecked_line(*steps: int) -> str:
    """A line about signed steps whose signatures were not checked because no key was given."""
    found = sorted(set(steps))
    which = f"step {found[0]} is signed; its" if len(found) == 1 else f"steps {name_ranks(found)} are signed; their"
    return f"{which} signatures were not checked, for lack of a key (--sign-key-file)"
