"""A bill on a page: bars for what was not useful, every line in the table, and sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.budget.bill import USEFUL, Bill, bill
from deeppart_simulator.machine.record import Power, Price
from deeppart_simulator.report.bill_part import bill_chart, bill_html
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.simulator.timing.jobs import MACHINE

PRICED = replace(MACHINE, price=Price(currency="$<b>", node_hour=3.0), power=Power(busy=2000.0))


def bill_of(**shares: float) -> Bill:
    return bill(PRICED, 10, 86400.0, {USEFUL: 1 - sum(shares.values()), **shares})


def test_bars_are_as_long_as_what_is_lost() -> None:
    found = bill_of(down=0.1, blocked=0.05)
    axes = Figure().add_subplot()
    bill_chart(found, "bill", found.items[1:]).panels[0].draw(axes)
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == pytest.approx([24.0, 12.0])
    assert [text.get_text() for text in axes.texts] == ["down: 72 $<b>", "blocked: 36 $<b>"]


def test_the_table_has_every_line_and_sums_and_no_markup() -> None:
    text = bill_html(bill_of(down=0.1, blocked=0.05, waiting=0.0), "bill-a")
    assert text.count("<tr>") == 1 + 3 + 2 and "<b>" not in text and "720 $&lt;b&gt;" in text and "480 kWh" in text
    assert "waiting" not in text and 'id="bill-a-0-' in text


def test_where_all_was_useful_there_is_no_chart() -> None:
    assert "<svg" not in bill_html(bill_of(), "bill-a")
