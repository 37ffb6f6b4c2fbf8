"""The text format of Prometheus: read by its own parser where that is installed, and by the rules of ``promtool``."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from deeppart.telemetry import prometheus_text
from tests.unit.telemetry.samples import BEGAN_S, status

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


def test_labels_are_escaped() -> None:
    text = prometheus_text([status(node=STRANGE)])
    text.encode("utf-8")
    (labels,) = parsed(text)["deeppart_ranks"]
    assert dict(labels)["node"] == STRANGE.replace("\ud800", r"\ud800")


def test_labels_do_not_steer_a_terminal() -> None:
    text = prometheus_text([status(node="\x1b[2J\x9b1m\u202e\r\x85\n", job="\x07")])
    assert text.replace("\n", "").isprintable()
    (labels,) = parsed(text)["deeppart_ranks"]
    assert dict(labels)["node"] == r"\x1b[2J\x9b1m\u202e\r\x85" + "\n"


def test_nothing_is_nothing() -> None:
    assert prometheus_text([]) == ""


def test_the_parser_of_prometheus_reads_it() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = prometheus_text([status(0), status(2, node=STRANGE)])
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    counter = families["deeppart_level_written_bytes"]
    assert counter.type == "counter" and len(counter.samples) == 4
    assert {each.labels["node"] for each in counter.samples} == {"node0", STRANGE.replace("\ud800", r"\ud800")}
    samples = [sample for family in families.values() for sample in family.samples]
    assert len(samples) == sum(map(len, parsed(text).values()))
