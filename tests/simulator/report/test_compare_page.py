"""The page of a comparison (in a browser: test_page_in_browser.py)."""

from __future__ import annotations

import re
from pathlib import Path

from deeppart_simulator.advise.compare import side_of
from deeppart_simulator.report.compare_page import comparison_page, side_rows, write_comparison

from tests.simulator.advise.test_sides import FAILING
from tests.simulator.timing.jobs import job


def test_jobs_are_lines_of_one_table() -> None:
    head, quiet, failing = side_rows([side_of("quiet", job()), side_of("failing", job(machine=FAILING))])
    assert len(head) == len(quiet) == len(failing) and head[0] == "job"
    assert (quiet[0], failing[0]) == ("quiet", "failing")
    assert [name for name, cell in zip(head, quiet, strict=True) if not cell] == head[head.index("call every") :]
    assert all(failing[head.index("call every") :])


def test_the_page_has_all_jobs_on_one_scale_and_is_the_same_again(tmp_path: Path) -> None:
    sides = [side_of("slow <1>", job(ranks=4)), side_of("fast", job(ranks=16))]
    write_comparison(tmp_path / "page.html", sides, "compare <2>")
    text = (tmp_path / "page.html").read_text()
    assert (
        text == comparison_page(sides, "compare <2>")
        and "<1>" not in text
        and "<2>" not in text
        and "slow &lt;1&gt;" in text
    )
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org", "")
    # The bars of the faster job end where they end on the scale of the slower one.
    slow, fast = (
        max(float(x) + float(width) for x, width in re.findall(r'<rect x="([\d.]+)%"[^>]* width="([\d.]+)%"', part))
        for part in text.split("<h2>One checkpoint</h2>")[1].split("<h3>")[1:3]
    )
    assert slow > 99.9 and fast < 60
