"""What ``deeppart`` and ``deeppart-sim`` share: subcommands found when called, exit codes, errors told."""

from __future__ import annotations

import json
from typing import ClassVar

import click
import pytest

from deeppart.cli.commands import GOOD, INTERRUPTED, NOT_GOOD, REFUSED, Commands
from deeppart.errors import ConfigError, CorruptFileError, DeeppartError

RAISED: dict[str, BaseException | int | None] = {
    "good": None,
    "code": 7,
    "config": ConfigError("impossible", expected="a number", todo="write one"),
    "damage": CorruptFileError("a file is damaged", where="/ckpt"),
    "system": PermissionError(13, "Permission denied", "/ckpt"),
    "interrupted": KeyboardInterrupt(),
    "module": ModuleNotFoundError("No module named 'extra_package'", name="extra_package"),
    "other": ModuleNotFoundError("No module named 'mistyped'", name="mistyped"),
}


class Group(Commands):
    """Commands that do what they are called."""

    package: ClassVar[str] = "nowhere"
    names: ClassVar[tuple[str, ...]] = tuple(RAISED)
    about_content: ClassVar[tuple[type[DeeppartError], ...]] = (CorruptFileError,)
    extra: ClassVar[tuple[tuple[str, ...], str]] = (("extra_package",), "pip install extra")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        @click.command(name=cmd_name)
        @click.option("--json", "as_json", is_flag=True)
        @click.option("--out", "-o")
        @click.option("--pair", nargs=2)
        @click.option("--quiet", is_flag=True)
        @click.argument("names", nargs=-1)
        def command(as_json: bool, **others: object) -> int | None:
            what = RAISED[cmd_name]
            if isinstance(what, BaseException):
                raise what
            return what

        return command if cmd_name in RAISED else None


def run(*arguments: str) -> int:
    return int(Group(name="test").main([*arguments], standalone_mode=False))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("good", GOOD),
        ("code", 7),
        ("config", REFUSED),
        ("damage", NOT_GOOD),
        ("system", REFUSED),
        ("interrupted", INTERRUPTED),
        ("module", REFUSED),
        ("no such command", REFUSED),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], name: str, code: int) -> None:
    assert run(name) == code
    out, err = capsys.readouterr()
    assert out == "" and bool(err) == (name not in ("good", "code"))


def test_an_error_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "--json") == REFUSED
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert err == "" and (error["kind"], error["exit_code"]) == ("ConfigError", REFUSED)
    assert (error["summary"], error["expected"], error["todo"]) == ("impossible", "a number", "write one")
    for name, kind in (("system", "OSError"), ("module", "ModuleNotFoundError"), ("nothing", "UsageError")):
        assert run(name, "--json") == REFUSED
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_what_installs_a_missing_package_is_told_and_other_modules_are_a_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("module")
    assert "pip install extra" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError, match="mistyped"):
        run("other")


@pytest.mark.parametrize(("name", "said"), [("moduel", " Did you mean 'module'?"), ("zzz", "")])
def test_a_misspelt_command_is_refused_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    class Named(Group):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return super().get_command(ctx, cmd_name) if cmd_name in self.names else None

    assert Named().main([name], standalone_mode=False) == REFUSED
    assert capsys.readouterr().err.endswith(f"No such command '{name}'.{said}\n")
