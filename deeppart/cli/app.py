"""The ``deeppart`` command: its subcommands, exit codes, and how errors are told.

Exit codes: 0 good; 1 something is damaged or incomplete, or there is nothing; 2 bad usage, or it was refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from deeppart.cli.output import INTERRUPTED, NOT_GOOD, REFUSED, end_quietly, print_json
from deeppart.errors import DeeppartError, FormatError, RestoreError, StructureMismatchError
from deeppart.version import VERSION

#: Errors that say something about what is stored there, rather than about how it was asked for.
_ABOUT_CONTENT = (FormatError, RestoreError, StructureMismatchError)


#: Each in a module of its own name, imported when it is called: on a cluster's file system torch, which some of them
#: need, can take a minute to import.
COMMANDS = ("ls", "show", "verify", "restore", "export", "prune")


class _Commands(click.Group):
    """A group whose commands return their exit code and may raise deeppart's errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"deeppart.cli.{cmd_name}"), cmd_name)
        return found

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
        as_json = "--json" in arguments
        try:
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
            return code if isinstance(code, int) else 0
        except DeeppartError as error:
            return _tell(error, NOT_GOOD if isinstance(error, _ABOUT_CONTENT) else REFUSED, as_json)
        except click.Abort:
            click.echo("interrupted", err=True)
            return INTERRUPTED
        except click.ClickException as error:
            if as_json:
                return _tell(DeeppartError(error.format_message()), REFUSED, as_json, kind="UsageError")
            error.show()
            return REFUSED
        except OSError as error:
            refusal = DeeppartError("the operating system refused", found=str(error))
            return _tell(refusal, REFUSED, as_json, kind="OSError")


def _tell(error: DeeppartError, code: int, as_json: bool, kind: str | None = None) -> int:
    """Print an error the way that was asked for; returns the exit code."""
    if as_json:
        answers = {name: getattr(error, name) for name in ("summary", "expected", "found", "where", "tried", "todo")}
        print_json({"error": {"kind": kind or type(error).__name__, **answers, "exit_code": code}})
    else:
        click.echo(f"error: {error}", err=True)
    return code


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="deeppart")
def main() -> None:
    """Look at checkpoints, verify and repair them, see what a restore would do, export them, and remove those
    no longer wanted.

    DIR is a persistent directory: what the job was given as persistent_dir.
    """
