"""The page of ``--report``: everything is in it, and it needs nothing."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, sim

# --- pictures and pages -----------------------------------------------------------------------------------------------


class _Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.headings: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_heading = tag == "h2"
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and value and not value.startswith("#"):
                self.outside.append(value)

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_a_page_has_everything_and_needs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "out.html"
    more = ("--days", "1", "--seeds", "1", "--advised") if command == "campaign" else ()
    code, _, err = sim(capsys, command, *SMALL, "--ranks", "64", "--report", str(file), *more)
    assert code == 0, err
    reader = _Reader()
    reader.feed(file.read_text())
    assert reader.headings == ["How it scales", "One checkpoint", "Advice", "A campaign"]
    assert reader.outside == [] and "script" not in reader.tags
    # Time and speed-up, the timeline with its axis, loss and front, two bills, and what the campaign has.
    text = file.read_text()
    assert text.count("What 30 days take") == text.count("What the run takes") == 1
    assert text.count("<figure") in (7, 8) and text.count('class="lanes"') >= 2 and "<img" not in text


def test_the_same_page_has_the_same_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        arguments = ("--ranks", "1,8", "--machine", "machine.toml", "--report", str(tmp_path / name))
        quiet = tmp_path / "machine.toml"
        quiet.write_text('base = "frontier"\n[failures]\nnode = "never"\ngroup = "never"\nsystem = "never"\n')
        assert sim(capsys, "scale", "--state", "bert-base", *arguments[:3], str(quiet), *arguments[4:])[0] == 0
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "two").read_text() and "<h2>Advice</h2>" not in text
