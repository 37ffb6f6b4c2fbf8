"""The command of a job's ranks, and the modules that they will import."""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart.errors import ConfigError

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
#: Signals that are passed on to the ranks.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
#: Makes a rank print the stacks of its threads.
STACKS_SIGNAL = signal.SIGRTMIN + 3
#: Modules that must not be imported before a process is forked; and packages that read the rank when imported.
NOT_FORKED = ("mpi4py.MPI",)
READ_THE_RANK = ("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics")
#: Modules that torch's optimizers and the first checkpoint import.
_IMPORTED_LATER = ("torch._dynamo", "deeppart.checkpointer")
#: Options of the interpreter that have an argument.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class Command:
    """The command of each rank.

    Attributes:
        interpreter: a Python interpreter and its options; empty for another program, and for Python with -c.
        arguments: a script or -m and a module, with arguments; for another program, all of its words.
    """

    interpreter: tuple[str, ...]
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Command:
        """Parse the words of a command line: ``python -u train.py --lr 0.1``, ``train.py``, ``./program``."""
        if words[0].endswith(".py"):
            return cls((sys.executable,), tuple(words))
        if _PYTHON.fullmatch(Path(words[0]).name) is None:
            return cls((), tuple(words))
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            option = words[at]
            if not option.startswith(("--", "-W", "-X")) and (option == "-" or {"c", "m"} & set(option)):
                return cls((), tuple(words))  # a text, or a module behind other letters
            at += 2 if option in _WITH_VALUE else 1
        found = tuple(words[at:])
        return cls(tuple(words[:at]), found) if found and found != ("-m",) else cls((), tuple(words))

    def script(self) -> Path | None:
        """The file of the script or module; None if there is none, or it is not in a usual place."""
        if not self.interpreter:
            return None
        if self.arguments[0] != "-m":
            return Path(self.arguments[0])
        parts = self.arguments[1].split(".")  # not by importlib, which would import the packages around it
        for base in (Path(), *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
            for file in (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__main__.py")):
                if file.is_file():
                    return file
        return None

    def check(self) -> None:
        """Raise ConfigError for a script that does not exist: ranks would fail repeatedly."""
        script = self.script()
        if script is not None and not script.exists():
            raise ConfigError("there is no such script", where=str(script.absolute()), todo="correct the command")

    def imports(self) -> list[str]:
        """The modules that the script imports first, and those that training imports later; [] without a script."""
        script = self.script()
        try:
            tree = ast.parse(b"" if script is None else script.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return []
        found = _imported(tree.body)
        return [*found, *_IMPORTED_LATER] if found else []


def _imported(statements: Iterable[ast.stmt]) -> list[str]:
    """The imports before the first statement that may affect later imports, such as changes of ``sys.path``."""
    found: list[str] = []
    for statement in statements:
        if isinstance(statement, ast.Import):
            found += [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            found += [statement.module] if statement.module and not statement.level else []
        elif isinstance(statement, ast.Try):
            found += _imported(statement.body)
        elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and not _is_text(statement):
            break
    return found


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
