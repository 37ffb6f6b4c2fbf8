"""What a job's ranks run, and which modules they will import."""

from __future__ import annotations

import ast
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
#: By which a rank prints the stacks of its threads.
STACKS_SIGNAL = signal.SIGRTMIN + 3
#: Modules that must not be imported before a process is forked.
NOT_FORKED = ("mpi4py.MPI",)
#: What torch's optimizers and the first checkpoint import.
_IMPORTED_LATER = ("torch._dynamo", "deeppart.checkpointer")
#: Options of the interpreter that take another word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class Command:
    """The command of each rank.

    Attributes:
        interpreter: a Python and its options; empty if another program is run, or its text is given with -c.
        arguments: a script, or -m and a module, and their arguments; all words of another program.
    """

    interpreter: tuple[str, ...]
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Command:
        """From the words of a command line: ``python -u train.py --lr 0.1``, ``train.py``, ``./program``."""
        if words[0].endswith(".py"):
            return cls((sys.executable,), tuple(words))
        if _PYTHON.fullmatch(Path(words[0]).name) is None:
            return cls((), tuple(words))
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            if words[at][:2] == "-c" or words[at] == "-":
                return cls((), tuple(words))
            at += 2 if words[at] in _WITH_VALUE else 1
        found = tuple(words[at:])
        return cls(tuple(words[:at]), found) if found and found != ("-m",) else cls((), tuple(words))

    def script(self) -> Path | None:
        """The file of a script or module; None if there is none, or another interpreter would have to look for it."""
        if not self.interpreter:
            return None
        if self.arguments[0] != "-m":
            return Path(self.arguments[0])
        try:
            spec = find_spec(self.arguments[1])
        except (ImportError, ValueError):
            return None
        return None if spec is None or spec.origin is None else Path(spec.origin)

    def imports(self) -> list[str]:
        """The modules that the script imports when it is run, and training later; [] if it cannot be read."""
        script = self.script()
        try:
            tree = ast.parse(b"" if script is None else script.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return []
        found = without_local(_imported(tree.body), Path() if script is None else script.parent)
        return [*found, *_IMPORTED_LATER] if found else []


def _imported(statements: Iterable[ast.stmt]) -> list[str]:
    found: list[str] = []
    for statement in statements:
        if isinstance(statement, ast.Import):
            found += [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.append(statement.module)
        elif isinstance(statement, (ast.Try, ast.With)):
            found += _imported(statement.body)
    return found


def without_local(modules: Iterable[str], directory: Path) -> list[str]:
    """The modules that do not lie in the directory of the script or the working directory: those may be edited."""
    local = {directory.resolve(), Path.cwd()}
    return [name for name in modules if not any(_lies_in(name.partition(".")[0], each) for each in local)]


def _lies_in(name: str, directory: Path) -> bool:
    return (directory / f"{name}.py").exists() or (directory / name).is_dir()
