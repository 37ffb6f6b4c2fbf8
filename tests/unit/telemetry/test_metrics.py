"""Metrics: what is counted of events, and the forms of it. Text for Prometheus is read by its own parser where that is
installed, and by the rules of ``promtool``; docs/configuration.md has a row for each name.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from deeppart.telemetry import prometheus_text
from deeppart.telemetry.events import CheckpointEnded, Ended, Event, Restored, Started, event_line, level_ended
from deeppart.telemetry.metrics import Metrics
from tests.unit.telemetry.samples import BEGAN, BEGAN_S, SESSION, report, status

_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')
STRANGE = 'a\\b"c\nd\ud800 é{}'


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Name -> labels -> value, by the rules: HELP, then TYPE, then all samples of a name; each once."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    kinds: dict[str, str] = {}
    helped = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split()[2]
            assert helped not in kinds and line.endswith(".")
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == helped
            kinds[name] = kind
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == helped, "samples of a name stand together, below its type"
            labels = tuple(sorted((name, unescape(value)) for name, value in _LABEL.findall(match[2])))
            assert labels not in found[match[1]]
            found[match[1]][labels] = float(match[3])
    for name, kind in kinds.items():
        assert name.startswith("deeppart_") and (kind == "counter") == name.endswith("_total"), name
        assert not re.search(r"_(ms|us|kb|mb|milliseconds)(_|$)", name), "base units"
    return found


def unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)


def test_names_types_and_values() -> None:
    found = parsed(prometheus_text([status(0), status(2, scrubbed=None, ended="2026-11-27T00:31:23.000000Z")]))
    first, second = (("node", "node0"), ("rank", "0")), (("node", "node1"), ("rank", "2"))
    assert found["deeppart_checkpoint_blocked_seconds_total"] == {first: 0.75, second: 0.75}
    assert found["deeppart_session_running"] == {first: 1, second: 0}
    assert found["deeppart_session_start_time_seconds"][first] == BEGAN_S
    assert found["deeppart_scrub_read_bytes_total"] == {first: 4000}, "the other has none"
    local, persistent = (tuple(sorted((*first, ("level", name)))) for name in ("local", "persistent"))
    assert found["deeppart_level_last_step"][local] == 3 and persistent not in found["deeppart_level_last_step"]
    assert found["deeppart_level_complete_total"][persistent] == 0
    assert "deeppart_next_checkpoint_time_seconds" not in found, "of every=auto alone"
    assert found["deeppart_reduced_protection"][first] == 1


def test_labels_do_not_steer_a_terminal() -> None:
    text = prometheus_text([status(node="\x1b[2J\x9b1m\u202e\r\x85\n", job="\x07")])
    assert text.replace("\n", "").isprintable()
    (labels,) = parsed(text)["deeppart_ranks"]
    assert dict(labels)["node"] == r"\x1b[2J\x9b1m\u202e\r\x85" + "\n"


def test_the_parser_of_prometheus_reads_it() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = prometheus_text([status(0), status(2, node=STRANGE)])
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    counter = families["deeppart_level_written_bytes"]
    assert counter.type == "counter" and len(counter.samples) == 4
    assert {each.labels["node"] for each in counter.samples} == {"node0", STRANGE.replace("\ud800", r"\ud800")}
    samples = [sample for family in families.values() for sample in family.samples]
    assert len(samples) == sum(map(len, parsed(text).values()))


def test_every_metric_is_documented() -> None:
    metrics = Metrics(("local",))
    metrics.count(level_ended(report(1, local="done"), "local", BEGAN_S))
    metrics.count(CheckpointEnded(BEGAN, report(1, stages=("capture",))))
    now = status(metrics=metrics.snapshot(), period_s=60.0, next_due=BEGAN)
    docs = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    table = docs[docs.index("| metric (`deeppart_...`) |") : docs.index("Every sample has the labels")]
    names = [line.split("|")[1] for line in table.splitlines()[2:] if line]
    documented = set(re.findall(r"`([a-z_]+)(?:\{[a-z_,]*\})?`", " ".join(names)))
    assert {name.removeprefix("deeppart_") for name in parsed(prometheus_text([now]))} == documented


def test_each_event_is_one_line_that_says_where_it_comes_from() -> None:
    origin = {"session": SESSION, "job": "4711", "node": "node\n0", "rank": 3}
    ended = report(5, local="done", persistent="failed")
    events: list[Event] = [
        Started("deeppart 0", 7, 4, 2, ()), level_ended(ended, "persistent", BEGAN_S), CheckpointEnded(BEGAN, ended),
        Restored(4, 0.5), Ended(failed=True, checkpoints=3),
    ]  # fmt: skip
    lines = [event_line(event, BEGAN, origin) for event in events]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    found = {each["event"]: each for each in map(json.loads, lines)}
    assert list(found) == ["started", "level", "checkpoint", "restored", "ended"]
    for each in found.values():
        assert (each["session"], each["job"], each["node"], each["rank"]) == (SESSION, "4711", "node\n0", 3)
    assert (found["started"]["ranks"], found["started"]["nodes"]) == (4, 2)
    assert (found["level"]["step"], found["level"]["level"], found["level"]["error"]) == (5, "persistent", "no space")
    checkpoint = found["checkpoint"]
    assert (checkpoint["step"], checkpoint["began"], checkpoint["blocked_s"]) == (5, BEGAN, 0.25)
    assert checkpoint["levels"].keys() == {"local", "persistent"}, "none that are off"
    assert found["ended"]["failed"] and found["ended"]["checkpoints"] == 3
    assert (found["restored"]["step"], found["restored"]["seconds"]) == (4, 0.5)
