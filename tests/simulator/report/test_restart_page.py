"""The page of ways to come back: all ways and classes, the machine's own way marked, names as they are."""

from __future__ import annotations

from dataclasses import replace

from deeppart_simulator.report.restart_page import after_rows, restart_page, share_rows

from tests.simulator.report.test_restart_charts import some


def test_rows_are_all_ways_and_classes() -> None:
    found = some()[1]
    head, *rows = after_rows(found)
    assert len(rows) == 5 * 5 and head[:3] == ["way", "failure", "one in"] and head[-2:] == ["back in", "replay"]
    assert all(len(row) == len(head) for row in rows)
    head, *rows = share_rows(found)
    assert [row[1] for row in rows] == ["of the time", "saved by half"] * 5 and head[-1] == "lost"


def test_the_machines_own_way_is_marked_and_names_are_no_markup() -> None:
    chosen, found = some()
    machine = chosen.job.machine
    own = replace(machine, name="<img src=x>", restart=replace(machine.restart, mode="spares"))
    text = restart_page(replace(chosen, job=replace(chosen.job, machine=own)), found, "made")
    assert "<img" not in text and "&lt;img src=x&gt;" in text and "<pre>made</pre>" in text
    assert text.count("<tr class=marked>") == 5 + 2
    assert text.count('<tr class=marked><td class="text" data-name="way">spares</td>') == 5 + 2
