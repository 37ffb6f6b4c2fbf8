"""A job, and the forms of a table: the same options as elsewhere, without what only pictures and chance need."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner
from deeppart_simulator.cli import main
from deeppart_simulator.cli.options import DEFAULT_MACHINE, DEFAULT_STATE, Common
from deeppart_simulator.cli.table_options import table_options


def test_they_come_as_one_argument(tmp_path: Path) -> None:
    seen: list[Common] = []

    some = click.command("some")(table_options(seen.append))
    file = str(tmp_path / "a.csv")
    assert CliRunner().invoke(some, []).exit_code == 0
    assert CliRunner().invoke(some, ["--state", "gpt2", "--machine", "summit", "--json", "--csv", file]).exit_code == 0
    assert (seen[0].state, seen[0].machine, seen[0].as_json, seen[0].csv_path) == (
        DEFAULT_STATE, DEFAULT_MACHINE, False, None,
    )  # fmt: skip
    assert (seen[1].state, seen[1].machine, seen[1].as_json, seen[1].csv_path) == ("gpt2", "summit", True, Path(file))
    assert CliRunner().invoke(some, ["--seed", "2"]).exit_code == 2


def test_the_job_is_described_by_the_same_words_in_every_command() -> None:
    found = set()
    for name in ("scale", "advise", "restart", "goodput"):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        options = {each.opts[0]: each for each in command.params if isinstance(each, click.Option)}
        found.add(tuple(options[option].help for option in ("--state", "--from", "--machine")))
    assert len(found) == 1
