"""What commands share: subcommands found when called, exit codes, errors told, options, output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import deeppart
from deeppart import access
from deeppart.cli.app import main
from deeppart.cli.commands import GOOD, INTERRUPTED, REFUSED, Commands, printable, printable_lines
from deeppart.cli.options import directory_argument, local_option, sign_key_option
from deeppart.cli.output import json_value, value_text
from deeppart.errors import ConfigError
from deeppart.part import Signing
from tests.unit.cli_support import call, call_json, save

ROOT = Path(__file__).parents[3]

# --- What ``deeppart`` and ``deeppart-sim`` share ---------------------------------------------------------------------


RAISED: dict[str, BaseException | int | None] = {
    "good": None,
    "code": 7,
    "config": ConfigError("impossible", expected="a number", todo="write one"),
    "system": PermissionError(13, "Permission denied", "/ckpt"),
    "interrupted": KeyboardInterrupt(),
    "module": ModuleNotFoundError("No module named 'extra_package'", name="extra_package"),
    "other": ModuleNotFoundError("No module named 'mistyped'", name="mistyped"),
}


class Group(Commands):
    """Commands that do what they are called."""

    package: ClassVar[str] = "nowhere"
    names: ClassVar[tuple[str, ...]] = tuple(RAISED)
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


# --- Options that commands share --------------------------------------------------------------------------------------


def called(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @click.command()
    @directory_argument
    @sign_key_option
    @local_option("to look at")
    def command(**given: Any) -> None:
        found.update(given)
        for directory in (given["directory"], *given["local_dirs"]):
            found[str(directory)] = [name for name in ("step", "link") if opens(directory / name / "secret")]

    result = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found


def opens(path: Path) -> bool:
    try:
        with open(access.open_file(path), "rb"):
            return True
    except OSError:
        return False


def test_directories_and_keys_are_given_as_paths_and_keys(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    found = called(tmp_path, "--local", tmp_path / "a", "--local", tmp_path / "b", "--sign-key-file", key)
    assert found["directory"] == tmp_path and found["local_dirs"] == (tmp_path / "a", tmp_path / "b")
    assert isinstance(found["signing"], Signing)
    assert called(tmp_path)["signing"] is None and called(tmp_path)["local_dirs"] == ()


@pytest.mark.parametrize(
    "arguments",
    [
        "ls s3://b/run", "ls . --local s3://b/run", "show s3://b/run", "cat s3://b/run x", "diff . s3://b/run@3",
        "verify s3://b/run", "explain s3://b/run", "export s3://b/run x.h5", "export . s3://b/x.h5",
        "import s3://b/x.pt run", "import x.pt s3://b/run", "prune s3://b/run --keep 1", "watch s3://b/run",
        "advise s3://b/run", "halt s3://b/run", "slurm init --dir s3://b/run -- ./x",
        "run --ranks 1 --log s3://b/x -- ./x", "run --ranks 1 --size-file s3://b/x -- ./x",
    ],
)  # fmt: skip
def test_a_url_is_refused_by_every_command(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments.split(), catch_exceptions=False)
    assert result.exit_code == 2 and "is a URL" in result.output and "s3:/" in result.output, result.output
    assert not list(tmp_path.iterdir())


def test_a_key_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no key here"):
        called(tmp_path, "--sign-key-file", tmp_path / "no key here")


def test_links_lead_nowhere_while_the_command_runs(tmp_path: Path) -> None:
    inside, outside = tmp_path / "given", tmp_path / "outside"
    for directory in (inside / "step", outside):
        directory.mkdir(parents=True)
        (directory / "secret").write_bytes(b"x")
    (inside / "link").symlink_to(outside)
    assert called(inside)[str(inside)] == ["step"], "of the directory, and not through the link"
    assert called(tmp_path, "--local", inside)[str(inside)] == ["step"]


# --- What commands print ----------------------------------------------------------------------------------------------


def test_control_characters_are_spelled_out() -> None:
    assert printable("a\x1b[2Jb\r\n\u202e\x9b") == "a\\x1b[2Jb\\r\\n\\u202e\\x9b"
    assert printable("Größe 1/2 ✓") == "Größe 1/2 ✓"
    assert printable_lines("a\x07\nb\x1b") == "a\\x07\nb\\x1b"


@pytest.mark.parametrize(
    ("value", "document", "text"),
    [
        (1, 1, "1"),
        (2**63 - 1, 2**63 - 1, "9223372036854775807"),
        (1 << 63, "0x8000000000000000", "0x8000000000000000"),
        (True, True, "True"),
        (None, None, "None"),
        (0.5, 0.5, "0.5"),
        (float("nan"), "nan", "nan"),
        ("a\x1b", "a\x1b", "'a\\x1b'"),
        (torch.bfloat16, "torch.bfloat16", "torch.bfloat16"),
        (np.float32(1), "np.float32(1.0)", "np.float32(1.0)"),
        ([1, 2.5], [1, 2.5], "1, 2.5 (2 in a list)"),
        ({"a": 1}, [["a", 1]], "'a': 1 (1 in a dict)"),
    ],
)
def test_values(value: Any, document: Any, text: str) -> None:
    assert json_value(value) == document and json.dumps(json_value(value), allow_nan=False)
    assert value_text(value) == text


# --- The command as a whole -------------------------------------------------------------------------------------------


COMMANDS = (("ls",), ("show",), ("cat", "key"), ("verify",), ("prune", "--keep", "1", "--yes"))


ERROR_KEYS = {"kind", "summary", "expected", "found", "where", "tried", "todo", "exit_code"}


def test_version_and_help() -> None:
    assert deeppart.__version__ in call("--version")
    text = call("-h")
    assert all(name in text for name in ("ls", "show", "verify", "prune"))
    for name, *_ in COMMANDS:
        assert "--json" in call(name, "--help")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_nothing_there(command: tuple[str, ...], tmp_path: Path) -> None:
    name, *options = command
    text = call(name, tmp_path / "missing", *options, code=1)
    assert "error: there is no such checkpoint directory" in text
    assert "Traceback" not in text
    error = call_json(name, tmp_path / "missing", *options, code=1)["error"]
    assert error.keys() == ERROR_KEYS
    assert (error["kind"], error["exit_code"]) == ("RestoreError", 1)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "x", "--bad"), ("show", "x", "--step", "-1"), ("dance",)])
def test_bad_usage(arguments: tuple[str, ...]) -> None:
    assert "Usage:" in call(*arguments, code=2)
    error = call_json(*arguments, code=2)["error"]
    assert (error["kind"], error["exit_code"]) == ("UsageError", 2)
    assert error["summary"]


def test_a_real_process_and_a_pipe_that_closes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    command = [sys.executable, "-m", "deeppart.cli", "show", str(tmp_path), "--flat"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(60), errors) == (141, "")


def test_ls_and_prune_do_not_wait_for_torch(tmp_path: Path) -> None:
    """Where Python is on a cluster's file system, importing torch can take a minute."""
    save(tmp_path, 1)
    script = """
import sys
from deeppart.cli import main
for words in ("ls", "ls --json", "prune --keep 1 --dry-run"):
    command, *options = words.split()
    main.main([command, sys.argv[1], *options], standalone_mode=False)
    assert "torch" not in sys.modules and "mpi4py" not in sys.modules, words
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
