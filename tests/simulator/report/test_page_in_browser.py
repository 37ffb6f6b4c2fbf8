"""The pages of ``--report`` in a browser: on phones, on a desk, and on paper."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.cli import main
from matplotlib import image

from tests.simulator.report.browser import BROWSER, Seen, browse, look_at

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium"),
    pytest.mark.now_and_then(2, together=True),
    pytest.mark.xdist_group("browser"),
]
PHONE, DESK = 420, 1280
#: Smaller phones, and a sheet of A4 without its margins.
SMALLER, PAPER = (360, 320), 688
EVERYTHING = ["How it scales", "One checkpoint", "Advice", "A campaign"]
LLAMA = ("--state", "llama3-8b+adam", "--ranks", "256")
BERT = ("--state", "bert-large+adam")
WITH = ("--machine llama3", "--machine summit --compression tensor --parity 8/2")
#: Command lines, which between them draw every chart and every kind of bar.
COMMANDS = {
    "advise": ("advise", *LLAMA, "--parity", "8/2"),
    "scale": ("scale", *BERT, "--ranks", "1,64,1024", "--strategy", "deeppart,rank0,whole,flat"),
    "campaign": ("campaign", *BERT, "--machine", "llama3", "--ranks", "512", "--days", "2", "--seeds", "2"),
    "compare": ("advise", *LLAMA, "--partner", "--with", WITH[0], "--with", WITH[1]),
}  # fmt: skip
COMMANDS |= {
    "restart": ("restart", "--state", "llama3-8b+adam-mixed@fsdp", "--machine", "llama3"),
    "goodput": ("scale", "--goodput", "--state", "mlperf-70b", "--machine", "p4d", "--ranks", "64"),
}
HEADINGS = dict.fromkeys(COMMANDS, EVERYTHING) | {
    "campaign": [each for each in EVERYTHING if each != "Advice"],
    "compare": ["Jobs beside each other", *(f"{each}: one checkpoint" for each in ("base", *WITH))],
    "restart": ["After one failure", "Share of the time"],
    "goodput": ["Blocked time and goodput", *EVERYTHING],
}


#: Everything that must not be.
FAULTY = """<body style="margin:0"><p style="font-size:9px">a</p><div style="width:2000px">b</div>
<div class=panels><figure><svg width=200 height=50 viewBox="0 0 400 100">
<text x=9 y=30 style="font-size:16px">c</text>
<text x=12 y=30 style="font-size:30px">d</text>
<text x=390 y=90 style="font-size:30px">eee</text></svg></figure></div>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file, found = tmp_path_factory.mktemp("pages") / "out.html", {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deeppart_simulator.report.sections._WALL_S", 5 * 86400.0)
        for name, arguments in COMMANDS.items():
            assert main([*arguments, "--report", str(file)], standalone_mode=False) == 0
            found[name] = file.read_text()
    return found


@pytest.fixture(scope="module")
def seen(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[str, int], Seen], str]:
    return look_at(tmp_path_factory.mktemp("browser"), pages | {"faulty": FAULTY}, (PHONE, DESK, *SMALLER))


def whole(seen: tuple[dict[tuple[str, int], Seen], str]) -> dict[tuple[str, int], Seen]:
    """Without the page that has faults."""
    return {place: found for place, found in seen[0].items() if place[0] != "faulty"}


def test_faults_are_seen(seen: tuple[dict[tuple[str, int], Seen], str]) -> None:
    found = seen[0]["faulty", PHONE]
    assert [text for text, _ in found.small] == ["a", "c"] and found.small[1][1] == 8
    assert found.crossed == [["c", "d"]] and "eee" in found.cut and found.wide == 2000 - PHONE


def test_every_page_is_readable_at_both_widths(seen: tuple[dict[tuple[str, int], Seen], str]) -> None:
    assert len(whole(seen)) == 4 * len(COMMANDS)
    for (name, width), found in whole(seen).items():
        where = f"{name} at {width} pixels"
        assert found.texts > 60, where
        assert not found.small, (where, found.small)
        assert width == min(SMALLER) or not found.cut, (where, found.cut)  # there charts scroll in boxes of their own
        assert not found.crossed, (where, found.crossed)
        assert found.wide <= 0, where


def test_charts_stack_on_a_phone_and_stand_side_by_side_on_a_desk(
    seen: tuple[dict[tuple[str, int], Seen], str],
) -> None:
    for (name, width), found in whole(seen).items():
        assert found.columns, name
        assert max(found.columns) >= 2 if width == DESK else max(found.columns) == 1, (name, width)


def test_the_pages_open_offline(seen: tuple[dict[tuple[str, int], Seen], str]) -> None:
    for (name, _), found in whole(seen).items():
        assert found.headings == HEADINGS[name]
    for trouble in ("ERR_", "Refused", "Uncaught", "Failed to load"):
        assert trouble not in seen[1]


def test_nothing_is_cut_on_paper(pages: dict[str, str], tmp_path: Path) -> None:
    """Paper does not scroll: tables with many columns become lists."""
    print_rules = "@media print{@page{margin:14mm}"
    assert all(print_rules in page for page in pages.values())
    printed = {
        name: page.replace(print_rules, "@media all{").replace("@media print,", "@media all,")
        for name, page in pages.items()
    }
    for (name, _), found in look_at(tmp_path, printed, (PAPER,))[0].items():
        assert not found.cut and found.wide <= 0, (name, found.cut, found.wide)


def test_a_page_is_drawn(pages: dict[str, str], tmp_path: Path) -> None:
    shot, file = tmp_path / "page.png", tmp_path / "page.html"
    file.write_text(pages["advise"])
    browse(tmp_path, "--window-size=1240,2400", f"--screenshot={shot}", file.as_uri())
    pixels = image.imread(shot)[..., :3]
    assert pixels.shape[:2] == (2400, 1240)
    colours = np.unique((pixels.reshape(-1, 3) * 15).astype(int) @ (256, 16, 1))
    assert len(colours) > 60  # curves, bars and text, not an empty page


def test_paper_has_a_page_for_each_section_and_what_is_folded(
    pages: dict[str, str], seen: tuple[dict[tuple[str, int], Seen], str], tmp_path: Path
) -> None:
    file, paper = tmp_path / "page.html", tmp_path / "page.pdf"
    file.write_text(pages["advise"])
    browse(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}", file.as_uri())
    printed = paper.read_bytes()
    assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", printed)) >= len(EVERYTHING)
    streams = [_inflated(each) for each in re.findall(rb"stream\r?\n(.*?)endstream", printed, re.DOTALL)]
    # Every text of the page with everything unfolded, of which the folded tables are more than half.
    texts = seen[0]["advise", DESK].texts
    assert sum(len(re.findall(rb"\bT[jJ]\b", each)) for each in streams) >= texts > 2 * texts_outside(pages["advise"])


def texts_outside(text: str) -> int:
    """About as many texts as there are outside of what is folded."""
    return len(re.findall(r">[^<>]*[^<>\s][^<>]*<", re.sub("<(details|style).*?</\\1>", "", text, flags=re.DOTALL)))


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(stream)
    except zlib.error:
        return b""
