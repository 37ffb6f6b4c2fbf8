"""Parts of pages: whatever the words, they are shown as they are."""

from __future__ import annotations

from deeppart_simulator.report.chart import Mark
from deeppart_simulator.report.html import breakable, document, facts, folded, legend, section, table

EVIL = '<script>alert("1&2")</script>'
SAFE = "&lt;script&gt;alert(&quot;1&amp;2&quot;)&lt;/script&gt;"


def test_no_text_is_markup() -> None:
    for found in (
        document(EVIL, ""), section(EVIL, ""), folded(EVIL, ""), facts([(EVIL, EVIL)]), table([[EVIL], [EVIL]]),
        legend([Mark(EVIL, "teal")]),
    ):  # fmt: skip
        assert EVIL not in found and SAFE in found


def test_long_names_can_be_broken() -> None:
    assert breakable("a+b@tp=8,pp=2") == "a+<wbr>b@<wbr>tp=8,<wbr>pp=2"
    assert breakable("2.5 GB/s") == "2.5 GB/s"


def test_words_are_on_the_left_and_numbers_on_the_right() -> None:
    rows = [["levels", "lost", "nothing"], ["local", "1 %", ""], ["a text of more than twenty letters", "-2 %", ""]]
    found = table(rows, marked={1}, stacked=True)
    assert "<th scope=col class=text>levels</th><th scope=col>lost</th>" in found
    assert '<td class="text" data-name="levels">local</td><td data-name="lost">1 %</td><td></td>' in found
    assert '<tr class=marked><td class="text long"' in found and '"wide stacked"' in found
    assert "<tbody></tbody>" in table([["only", "a head"]])


def test_nothing_to_explain_is_no_legend() -> None:
    assert legend([]) == ""
