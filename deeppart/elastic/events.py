"""What happens to a job whose number of ranks changes: for people, in a file, and for scripts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deeppart.storage.timestamps import timestamp

from .agent import name_code


class Events:
    """Tells each event to whoever wants to know. May be used by several threads."""

    def __init__(
        self,
        say: Callable[[str], object] | None = None,
        log: Path | None = None,
        print_json: Callable[[str], object] | None = None,
    ) -> None:
        self._say, self._log, self._print_json = say, log, print_json
        self._began = time.monotonic()
        if log is not None:
            log.open("a").close()

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, event: str, **values: Any) -> None:
        """Something has happened."""
        passed_s = self.passed_s
        known = {name: value for name, value in values.items() if value is not None}
        if self._say is not None:
            self._say(f"{passed_s:.1f} s: {event} {_words(known)}".rstrip())
        line = json.dumps({"time": timestamp(time.time()), "passed_s": round(passed_s, 3), "event": event, **known})
        if self._print_json is not None:
            self._print_json(line)
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:  # the job goes on
                log, self._log = self._log, None
                self.tell("note", text=f"{log} is not written any more: {error.strerror}")


def _words(values: dict[str, Any]) -> str:
    """``rank 0, asked True, step 120: exit code 143 (told to end)``; errors are told elsewhere."""
    shown = {name: value for name, value in values.items() if name not in ("exit_code", "error")}
    words = ", ".join(str(value) if name == "text" else f"{name} {_word(value)}" for name, value in shown.items())
    if "exit_code" not in values:
        return words
    return f"{words}: {name_code(values['exit_code'])}" if words else name_code(values["exit_code"])


def _word(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
