"""What ``deeppart`` and ``deeppart-sim`` share: finding subcommands, exit codes, printing errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any, ClassVar

import click

from deeppart.errors import DeeppartError
from deeppart.model import meant

#: Exit codes (docs/commands.md, docs/simulator.md).
GOOD, NOT_GOOD, REFUSED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


class Commands(click.Group):
    """A group whose commands return their exit code and may raise deeppart's errors.

    Attributes:
        package: contains a module for each command, with its name (``import_`` for ``import``). It is imported when the
            command is called: some need torch, which can take a minute to import on a cluster's file system.
        names: the commands.
        extra: (optional packages, command that installs them).
    """

    package: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    extra: ClassVar[tuple[tuple[str, ...], str]] = ((), "")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.names:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
        found: click.Command = getattr(import_module(f"{self.package}.{name}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error for an unknown one suggests the closest name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = meant(args[0], self.names) if args else None
            if close is None or "mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close!r}?", ctx) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        code = self._run(arguments, prog_name, complete_var, extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return end_quietly()

    def _run(self, arguments: list[str], prog_name: str | None, complete_var: str | None, extra: Any) -> int:
        try:
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
            return code if isinstance(code, int) else GOOD
        except click.Abort:
            click.echo("interrupted", err=True)
            return INTERRUPTED
        except DeeppartError as error:
            return tell(error, REFUSED, self._as_json(arguments))
        except click.ClickException as error:
            if self._as_json(arguments):
                return tell(DeeppartError(error.format_message()), REFUSED, True, kind="UsageError")
            error.show()
            return REFUSED
        except OSError as error:
            refusal = DeeppartError("the operating system refused", found=str(error))
            return tell(refusal, REFUSED, self._as_json(arguments), kind="OSError")
        except ModuleNotFoundError as error:
            packages, installs = self.extra
            if error.name not in packages:
                raise
            refusal = DeeppartError(f"this command needs {error.name}", todo=installs)
            return tell(refusal, REFUSED, self._as_json(arguments), kind="ModuleNotFoundError")

    def _as_json(self, arguments: Sequence[str]) -> bool:
        """Whether ``--json`` is among the options (before ``--``) of a command that has it or does not exist."""
        words = arguments[: arguments.index("--")] if "--" in arguments else arguments
        name = next((word for word in words if not word.startswith("-")), "")
        try:
            command = self.get_command(click.Context(self), name)
        except ImportError:  # the caller is reporting it
            command = None
        return "--json" in words and (command is None or any("--json" in each.opts for each in command.params))


def end_quietly() -> int:
    """End after the reader of the pipe has gone (``deeppart show DIR | head``). Returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit fails, too
    return BROKEN_PIPE


def print_json(document: Any, *, sort_keys: bool = False) -> None:
    """Print the one JSON document of a command."""
    click.echo(json.dumps(document, indent=2, sort_keys=sort_keys, allow_nan=False))


def error_document(error: DeeppartError, code: int, kind: str | None = None) -> dict[str, Any]:
    """The ``--json`` document of an error."""
    answers = {name: getattr(error, name) for name in ("summary", "expected", "found", "where", "tried", "todo")}
    return {"kind": kind or type(error).__name__, **answers, "exit_code": code}


def tell(error: DeeppartError, code: int, as_json: bool, kind: str | None = None) -> int:
    """Print an error as text or JSON. Returns the exit code."""
    if as_json:
        print_json({"error": error_document(error, code, kind)})
    else:
        click.echo(printable_lines(f"error: {error}"), err=True)  # the message may contain keys from a file
    return code


def printable(text: str) -> str:
    """Text with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> str:
    """:func:`printable` for each line."""
    return "\n".join(printable(line) for line in text.split("\n"))
