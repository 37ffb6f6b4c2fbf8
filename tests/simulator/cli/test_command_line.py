"""The command that made a page: it makes the same page once more."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path

import pytest
from deeppart_simulator.cli import main

LINES = {
    "goodput": "goodput --state mlperf-8b --machine p4d --ranks 64 --every 1min,10min --days 7.5",
    "restart": "restart --state gpt2 --machine llama3 --ranks 256 --no-partner --parity 8/2",
    "compare": "compare --state gpt2 --with '--machine llama3' --with '--machine summit --no-local'",
}


def made_by(arguments: list[str], file: Path) -> tuple[str, str]:
    """The page, and the command at its end."""
    assert main([*arguments, "--report", str(file), "--csv", f"{file}.csv"], "deeppart-sim", standalone_mode=False) == 0
    text = file.read_text()
    found = re.search(r"<footer><p>Made by</p><pre>(.*?)</pre>", text)
    assert found is not None
    return text, unescape(found[1])


@pytest.mark.sweep(3)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_page_says_how_to_make_it_once_more(line: str, tmp_path: Path) -> None:
    text, command = made_by(shlex.split(line), tmp_path / "a.html")
    assert sorted(shlex.split(command)) == sorted(["deeppart-sim", *shlex.split(line)])
    assert made_by(shlex.split(command)[1:], tmp_path / "b.html") == (text, command)


def test_a_name_with_signs_of_a_shell_is_one_word(tmp_path: Path) -> None:
    file = tmp_path / "a $(b) <i>'c.toml"
    file.write_text('base = "p4d"\n')
    text, command = made_by(["goodput", "--machine", str(file), "--ranks", "8"], tmp_path / "page.html")
    assert shlex.split(command) == ["deeppart-sim", "goodput", "--machine", str(file), "--ranks", "8"]
    assert "<i>" not in text
