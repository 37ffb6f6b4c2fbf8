"""Settings as text: directory, cadence and what is kept, then what is not as by default, with units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deeppart.config import Config
from deeppart.config.text import show_settings


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no ``deeppart.toml``."""
    monkeypatch.chdir(tmp_path)


def test_settings_that_are_not_as_by_default() -> None:
    assert str(Config()) == (
        "persistent_dir: ckpt\n"
        "every: persistent 1 (in checkpoints)\n"
        "keep: persistent 3 (in steps)\n"
        "all others as by default"
    )
    chosen = Config(
        persistent_dir="/lustre/run",
        local_dir="/local",
        every={"local": 1, "parity": 4, "persistent": 4},
        keep={"persistent": 0},
        replicated={"replay/*": "none"},
        flush_bandwidth=500e6,
        timeout=120,
        parity_group=8,
        sign_key_file=["new", "old"],
    )
    assert str(chosen) == (
        "persistent_dir: /lustre/run\n"
        "local_dir: /local\n"
        "every: local 1, parity 4, persistent 4 (in checkpoints)\n"
        "keep: local 1, partner 1, parity 1, persistent all (in steps)\n"
        "replicated: replay/* none\n"
        "flush_bandwidth: 500 MB/s per node\n"
        "timeout: 2 min\n"
        "parity_group: 8 nodes\n"
        "sign_key_file: new, old\n"
        "all others as by default"
    )


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"every": "auto"}, "keep: persistent 3 (in steps)"),
        ({"every": "auto", "local_dir": "/local"}, "keep: local 1, partner 1, parity 1, persistent 3 (in steps)"),
        ({"local_dir": "/local", "every": {"partner": 0}}, "keep: local 1, persistent 3 (in steps)"),
    ],
)
def test_levels_that_are_off_are_left_out_of_what_is_kept(settings: dict[str, Any], kept: str) -> None:
    assert kept in str(Config(**settings)).splitlines()


def test_settings_from_the_environment_are_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPPART_TIMEOUT", "7")
    assert "timeout: 7 s" in str(Config()).splitlines()


def test_settings_from_a_file_are_shown_too() -> None:
    Path("deeppart.toml").write_text("timeout = 120\nkeep = { persistent = 5 }\n")
    assert str(Config()) == (
        "persistent_dir: ckpt\n"
        "every: persistent 1 (in checkpoints)\n"
        "keep: persistent 5 (in steps)\n"
        "timeout: 2 min\n"
        "all others as by default"
    )


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("flush_bandwidth", 2.5e9, "flush_bandwidth: 2.5 GB/s per node"),
        ("scrub_bandwidth", 1e6, "scrub_bandwidth: 1 MB/s per node"),
        ("timeout", 0.5, "timeout: 500 ms"),
        ("kappa", 4096, "kappa: 4.1 kB"),
        ("node_size", 4, "node_size: 4 ranks"),
        ("parity_group", 3, "parity_group: 3 nodes"),
        ("parity_tolerate", 1, "parity_tolerate: 1 of a group's nodes may be lost"),
        ("on_busy", "skip", "on_busy: skip"),
        ("incremental", False, "incremental: False"),
        ("sign_key_file", ["one"], "sign_key_file: one"),
        ("replicated", {"a/*": "none", "b": "all"}, "replicated: a/* none, b all"),
        ("compression", "zstd:3", "compression: zstd:3"),
    ],
)
def test_each_setting_has_its_unit(setting: str, value: Any, line: str) -> None:
    lines = str(Config(**{setting: value})).splitlines()
    assert line in lines and lines[-1] == "all others as by default" and len(lines) == 5


def test_what_is_as_by_default_is_not_a_line_even_where_it_was_said() -> None:
    plain = Config()
    assert str(Config(timeout=plain.timeout, on_busy=plain.on_busy)) == str(plain)


DEFAULTS: dict[str, Any] = {
    "persistent_dir": "ckpt",
    "local_dir": None,
    "every": "auto",
    "keep": {},
    "timeout": 600.0,
    "kappa": None,
}


def test_nothing_is_left_out_without_saying_so() -> None:
    every: dict[str, Any] = {
        "persistent_dir": "a",
        "local_dir": "b",
        "every": "auto",
        "keep": {"local": 2},
        "timeout": 1.0,
    }
    assert show_settings(every, DEFAULTS) == (
        "persistent_dir: a\nlocal_dir: b\nevery: auto\nkeep: local 2 (in steps)\ntimeout: 1 s"
    )
    assert show_settings(DEFAULTS, DEFAULTS).splitlines()[-1] == "all others as by default"


def test_none_has_no_unit() -> None:
    settings = {**DEFAULTS, "timeout": None, "kappa": 1000}
    assert show_settings(settings, {**DEFAULTS, "kappa": 1}).splitlines()[-3:-1] == ["timeout: None", "kappa: 1 kB"]


@pytest.mark.parametrize(
    ("every", "local_dir", "shown"),
    [
        ({"local": 1, "partner": 0, "persistent": 5}, "/l", "local 1, persistent 5"),
        ({"local": 0, "partner": 2, "parity": 2, "persistent": 5}, "/l", "persistent 5"),  # they copy the local level
        ({"local": 1, "partner": 2, "persistent": 5}, None, "persistent 5"),
    ],
)
def test_levels_that_cannot_be_are_off(every: dict[str, int], local_dir: str | None, shown: str) -> None:
    settings = {**DEFAULTS, "every": every, "local_dir": local_dir, "keep": dict.fromkeys(every, 0)}
    lines = show_settings(settings, DEFAULTS).splitlines()
    assert f"every: {shown} (in checkpoints)" in lines
    kept = ", ".join(f"{name.split()[0]} all" for name in shown.split(", "))
    assert f"keep: {kept} (in steps)" in lines
