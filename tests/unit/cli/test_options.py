"""Options that commands share: what the command gets, and that no link leads it out of what it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import deeppart
from deeppart import access
from deeppart.cli.app import main
from deeppart.cli.options import directory_argument, local_option, sign_key_option
from deeppart.errors import ConfigError
from deeppart.part import Signing


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
        "advise s3://b/run", "elastic-run --max 2 --checkpoints s3://b/run -- true",
    ],
)  # fmt: skip
def test_a_url_is_refused_by_every_command(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments.split(), catch_exceptions=False)
    assert result.exit_code == 2 and "is a URL" in result.output and "s3:/" in result.output, result.output
    assert not list(tmp_path.iterdir())


def test_a_url_is_not_loaded() -> None:
    with pytest.raises(ConfigError, match="is a URL"):
        deeppart.load("s3://b/run")


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
