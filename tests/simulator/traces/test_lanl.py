"""LANL's published file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from deeppart_simulator.traces.read import is_lanl, read_lanl

from deeppart.errors import ConfigError
from tests.simulator.traces.logs import LANL, written


def _days(later: datetime, earlier: datetime) -> float:
    return (later - earlier).total_seconds() / 86400


def test_lines_of_the_file(tmp_path: Path) -> None:
    trace = read_lanl(written(tmp_path, LANL))
    since, last = datetime(1997, 1, 1), datetime(2005, 9, 6, 9, 13)
    assert [(event.kind, event.nodes) for event in trace.events] == [("node", (n,)) for n in ("1", "1", "0", "0")]
    assert trace.events[0].at_s == _days(datetime(1997, 2, 23, 13), since) * 86400
    seen = trace.observation
    assert seen.nodes == 49 and seen.seconds == pytest.approx(_days(last, since) * 86400)
    # Node 0 came in June 2005; the 47 without a failure were there as the two lines of most nodes have it.
    front = _days(last, datetime(2005, 6, 1))
    usual = {48 * _days(last, since) + front, _days(last, since) + 48 * front}
    assert any(seen.node_s == pytest.approx(days * 86400) for days in usual)
    assert len(trace.names) == 49 and trace.tells == ("node", "group", "system")


def test_a_system_is_chosen(tmp_path: Path) -> None:
    other = LANL.splitlines()[1].replace("2,cluster,49", "9,cluster,256", 1)
    file = written(tmp_path, LANL + other + "\n")
    with pytest.raises(ConfigError, match="one of 2, 9"):
        read_lanl(file)
    with pytest.raises(ConfigError, match="one of 2, 9"):
        read_lanl(file, "17")
    assert read_lanl(file, "9").observation.nodes == 256 and len(read_lanl(file, "2").events) == 4


def test_without_a_day_of_production_watching_begins_with_the_first_failure(tmp_path: Path) -> None:
    trace = read_lanl(written(tmp_path, LANL.replace("Jan-97", "before tracking").replace("5-Jun", "before tracking")))
    assert trace.events[0].at_s == 0 and "first failure" in trace.notes[0]


def test_lines_without_a_node_are_left_out(tmp_path: Path) -> None:
    empty = ",".join(["2"] + [""] * 15 + ["1/8/1997 8:40", "1/8/1997 8:50", "10", "", "Other", "", "", "", "", "No"])
    trace = read_lanl(written(tmp_path, LANL + empty + "\n"))
    assert len(trace.events) == 4 and "1 lines without" in trace.notes[0]
    with pytest.raises(ConfigError, match="nodenumz"):
        read_lanl(written(tmp_path, LANL.splitlines()[0] + "\n" + empty + "\n"))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("2/23/1997 13:00", "1997-02-23", "Prob Started"),
        ("2/23/1997 13:00", "2/30/1997 13:00", "Prob Started"),
        ("Jan-97", "January", "node prod"),
        ("5-Nov,part", "5-Now,part", "node decom"),
        ("2,cluster,49,", "2,cluster,many,", "nodes"),
        ("128,1,1,Nov", "128,1,x,Nov", "nodenumz"),
    ],
)
def test_impossible_lines(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in LANL
    with pytest.raises(ConfigError, match=f"line [2-5], column {what}"):
        read_lanl(written(tmp_path, LANL.replace(old, new)))


def test_how_it_begins(tmp_path: Path) -> None:
    assert is_lanl(LANL.splitlines()[0] + "\r\n") and not is_lanl("System,nodes")
    with pytest.raises(ConfigError, match="no column nodenumz"):
        read_lanl(written(tmp_path, "System,nodes\n"))
