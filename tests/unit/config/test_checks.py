"""Which settings are possible: what is not is named with what was expected."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from deeppart.config import Config
from deeppart.errors import ConfigError

pytestmark = pytest.mark.usefixtures("empty_directory")


IMPOSSIBLE: list[tuple[str, Any]] = [
    ("persistent_dir", ""), ("persistent_dir", None), ("persistent_dir", 5), ("persistent_dir", b"x"),
    ("persistent_dir", "{host}/x"), ("persistent_dir", "a/{}"), ("local_dir", ""), ("local_dir", "{user}"),
    ("every", {"locl": 1}), ("every", {"local": -1}), ("every", {"local": 1.0}), ("every", {"local": True}),
    ("every", "often"), ("every", "AUTO"),
    ("every", 1), ("every", None), ("every", {"persistent": 0}), ("every", {"partner": 1}), ("every", {"parity": 2}),
    ("keep", {"disk": 1}), ("keep", {"local": -1}), ("keep", {"local": "1"}), ("keep", {"local": None}), ("keep", 3),
    ("compression", None), ("compression", 3),  # texts: tests/unit/model/test_compression.py
    ("capture", "late"), ("capture", None), ("replicated", "some"), ("replicated", True), ("on_busy", "drop"),
    ("permissions", "0700"), ("permissions", None),
    ("flush_bandwidth", 0), ("flush_bandwidth", -1), ("flush_bandwidth", math.inf), ("flush_bandwidth", math.nan),
    ("flush_bandwidth", "1G"), ("flush_bandwidth", True),
    ("timeout", 0), ("timeout", -1.0), ("timeout", None), ("timeout", math.inf), ("timeout", math.nan),
    ("timeout", "5"), ("kappa", -1), ("kappa", math.nan), ("kappa", "x"),
    ("node_size", 0), ("node_size", -2), ("node_size", 1.5), ("node_size", True), ("node_size", "2"),
    ("encode_threads", 0), ("encode_threads", True), ("encode_threads", 1.0),
    ("incremental", 1), ("incremental", "true"),
    ("parity_group", 1), ("parity_group", 128), ("parity_group", True), ("parity_group", 4.0),
    ("parity_tolerate", 0), ("parity_tolerate", True), ("scrub_bandwidth", 0),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), IMPOSSIBLE, ids=[f"{key}={value!r}" for key, value in IMPOSSIBLE])
def test_impossible_values_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{key: value})
    assert key in str(caught.value) and "expected" in str(caught.value)


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    config = Config(persistent_dir=tmp_path, local_dir=tmp_path / "local")  # type: ignore[arg-type]
    assert config.persistent_dir == str(tmp_path) and config.local_dir == str(tmp_path / "local")


@pytest.mark.parametrize("value", [{"x": "some"}, {"": "none"}, {1: "none"}, {"x": None}, ["x"], "rank0"])
def test_impossible_rules(value: Any) -> None:
    with pytest.raises(ConfigError, match="replicated"):
        Config(replicated=value)


@pytest.mark.parametrize(
    ("name", "value", "todo"),
    [
        ("keep", 3, 'write keep={"persistent": 3}'),
        ("keep", {"persitent": 2}, "write 'persistent' for 'persitent'"),
        ("keep", {"locl": 1, "Partner": 1}, "write 'local' for 'locl'; write 'partner' for 'Partner'"),
        ("every", "atuo", 'write every="auto"'),
        ("every", 10, 'write every={"persistent": 10}'),
    ],
)
def test_what_was_most_likely_meant_is_told(name: str, value: Any, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert todo in str(caught.value)
