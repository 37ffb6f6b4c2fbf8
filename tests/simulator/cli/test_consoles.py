"""Consoles: names of the user's are shown as they are, and a reader that has gone has an exit code of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deeppart_simulator.cli.consoles import console, status_console, table

from deeppart.cli.commands import BROKEN_PIPE
from tests.simulator.commands import sim

#: What rich would take for markup, an emoji, and a link.
NAME = "[/red] [bold]a[/] :warning: [link=x]b"


def test_nothing_is_markup(capsys: pytest.CaptureFixture[str]) -> None:
    listing = table(NAME, [NAME])
    listing.add_row(NAME)
    console().print(NAME)
    console().print(listing)
    status_console().print(NAME)
    printed = capsys.readouterr()
    assert printed.out.count(NAME) == 4 and printed.err == NAME + "\n"


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", ["scale", "goodput", "restart", "campaign", "advise", "compare"])
def test_names_of_machines_are_not_markup(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    file = tmp_path / f"{NAME.replace('/', '|')}.toml"
    file.write_text(f'base = "llama3"\nname = "{NAME}"\n')
    more = {"compare": ["--with", "--ranks 1024"], "campaign": ["--days", "1", "--seeds", "1"]}.get(command, [])
    code, out, _ = sim(capsys, command, "--state", "gpt2", "--machine", str(file), "--ranks", "512", *more)
    assert code == 0 and (command == "compare" or NAME in out)


def test_a_reader_that_has_gone_is_no_result() -> None:
    """1 would say that a validation has missed its target."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "deeppart_simulator.cli", "machines"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == BROKEN_PIPE and done.stderr == b""
