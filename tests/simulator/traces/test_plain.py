"""Failures as a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.traces.read import format_of, is_plain, read_plain
from deeppart_simulator.traces.record import Event

from deeppart.errors import ConfigError
from tests.simulator.traces.logs import written

WATCHED = "# of our cluster\n# seconds = 1000\n# nodes = 4\n# processes = 32\n"


def test_a_table(tmp_path: Path) -> None:
    text = "at_s,kind,nodes\n10,node,3\n20.5,group,2 0 1\n20.5,process,1\n99,system,\n100,preemption,\n\n"
    trace = read_plain(written(tmp_path, text))
    assert trace.events == (
        Event(10.0, "node", ("3",)),
        Event(20.5, "group", ("0", "1", "2")),
        Event(20.5, "process", ("1",)),
        Event(99.0, "system", ()),
        Event(100.0, "preemption", ()),
    )
    assert trace.names == ("0", "1", "2", "3") and trace.observation.node_s == 0
    watched = read_plain(written(tmp_path, WATCHED + text)).observation
    assert (watched.seconds, watched.nodes, watched.node_s, watched.process_s) == (1000.0, 4, 4000.0, 32000.0)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("time,kind\n", "line 1", "columns"),
        ("", "line 1", "columns"),
        ("at_s,kind,nodes\n-1,node,0\n", "line 2, column at_s", "at least 0"),
        ("at_s,kind,nodes\nsoon,node,0\n", "line 2, column at_s", "soon"),
        ("at_s,kind,nodes\n1,meteor,0\n", "line 2, column kind", "process, node, group, system, preemption"),
        ("at_s,kind,nodes\n1,node,4\n", "line 2, column nodes", "0 to 3"),
        ("at_s,kind,nodes\n1,node,\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,x\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,1 2\n", "line 2", "just one"),
        ("at_s,kind,nodes\n5,node,1\n4,node,1\n", "line 3", "ascending"),
        (WATCHED + "at_s,kind,nodes\n1001,node,1\n", "line 6", "after the end"),
        ("# seconds = never\nat_s,kind\n", "line 1, column seconds", "above 0"),
        ("# nodes = 2.5\nat_s,kind\n", "line 1, column nodes", "whole number"),
    ],
)
def test_impossible_tables_are_refused(tmp_path: Path, text: str, line: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_plain(written(tmp_path, text), nodes=4)
    assert line in str(caught.value) and what in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_plain(tmp_path / "none.csv")
    assert is_plain(WATCHED + "at_s,kind,nodes\n") and not is_plain("a,b\n") and not is_plain("")


def test_a_table_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    """With a mark of the order of bytes, blanks after commas, quotes, and lines that end as on Windows."""
    plain = "# seconds = 99\n# nodes = 9\nat_s,kind,nodes\n1,group,3 4\n2,system,\n"
    other = '\ufeff# seconds = 99\r\n# nodes = 9\r\n"at_s", kind, "nodes"\r\n1, group, "3 4"\r\n2, system,\r\n'
    expected = read_plain(written(tmp_path, plain))
    file = tmp_path / "other.csv"
    file.write_bytes(other.encode())
    found = read_plain(file)
    assert (found.events, found.observation) == (expected.events, expected.observation) and format_of(file) == "csv"
