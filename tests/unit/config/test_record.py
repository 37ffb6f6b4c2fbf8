"""The configuration as one frozen record: every key from every source, and which source comes first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deeppart.config import Config
from deeppart.config.checks import DEFAULT_EVERY
from deeppart.config.record import OF_EACH_RANK
from deeppart.errors import ConfigError
from deeppart.model import DEFAULT_KEEP
from tests.unit.config.files import write_toml

pytestmark = pytest.mark.usefixtures("empty_directory")


def test_defaults() -> None:
    config = Config()
    assert config.persistent_dir == "ckpt" and config.local_dir is None
    assert config.every == {"local": 0, "parity": 0, "persistent": 1}, "no local level without local_dir"
    assert config.keep == DEFAULT_KEEP
    assert (config.compression, config.capture, config.replicated, config.on_busy) == ("auto", "eager", "auto", "wait")
    assert (config.flush_bandwidth, config.node_size, config.timeout, config.kappa) == (None, None, 600.0, None)
    assert Config(local_dir="x").every == DEFAULT_EVERY
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.timeout = 1.0  # type: ignore[misc]


# key -> (argument, environment, toml literal, value seen) for four different values
SOURCES: dict[str, tuple[tuple[Any, Any], tuple[str, Any], tuple[str, Any]]] = {
    "persistent_dir": (("a", "a"), ("b", "b"), ('"c"', "c")),
    "local_dir": (("/a", "/a"), ("/b", "/b"), ('"/c"', "/c")),
    "compression": (("none", "none"), ("zstd:7", "zstd:7"), ('"zstd"', "zstd")),
    "replicated": (("all", "all"), ("none", "none"), ('"all"', "all")),
    "on_busy": (("wait", "wait"), ("skip", "skip"), ('"skip"', "skip")),
    "status": (("rank", "rank"), ("none", "none"), ('"rank"', "rank")),
    "metrics_file": (("a.prom", "a.prom"), ("{rank}", "{rank}"), ('"c"', "c")),
    "exclude": (("a/*", ("a/*",)), ("a,b*", ("a", "b*")), ('["c", "d"]', ("c", "d"))),
    "events_file": (("a.jsonl", "a.jsonl"), ("{node}", "{node}"), ('"c"', "c")),
    "capture": (("eager", "eager"), ("lazy", "lazy"), ('"eager"', "eager")),
    "flush_bandwidth": ((5.5, 5.5), ("1.5G", 1.5e9), ("250_000_000", 250_000_000)),
    "scrub_bandwidth": ((5.5, 5.5), ("1.5G", 1.5e9), ("250_000_000", 250_000_000)),
    "parity_group": ((2, 2), ("5", 5), ("9", 9)),
    "parity_tolerate": ((1, 1), ("2", 2), ("3", 3)),
    "protection": (("best", "best"), ("strict", "strict"), ('"strict"', "strict")),
    "encode_threads": ((1, 1), ("2", 2), ("3", 3)),
    "incremental": ((False, False), ("false", False), ("true", True)),
    "node_size": ((1, 1), ("2", 2), ("3", 3)),
    "timeout": ((1.5, 1.5), ("2.5", 2.5), ("3", 3)),
    "kappa": ((0, 0), ("64k", 64e3), ("65536", 65536)),
    "sign_key_file": (("a", ("a",)), ("b:c", ("b", "c")), ('["d", "~/e"]', ("d", "~/e"))),
    "permissions": (("umask", "umask"), ("group", "group"), ('"unchecked"', "unchecked")),
    "keep": (
        ({"local": 5}, {**DEFAULT_KEEP, "local": 5}),
        ("persistent=7, local=0", {**DEFAULT_KEEP, "persistent": 7, "local": 0}),
        ("{ local = 9 }", {**DEFAULT_KEEP, "local": 9}),
    ),
    "every": (
        ({"persistent": 5}, {**DEFAULT_EVERY, "local": 0, "persistent": 5}),
        ("persistent=6", {**DEFAULT_EVERY, "local": 0, "persistent": 6}),
        ("{ persistent = 7 }", {**DEFAULT_EVERY, "local": 0, "persistent": 7}),
    ),
}


def test_every_key_is_tested() -> None:
    names = {field.name for field in dataclasses.fields(Config)}
    assert names == set(SOURCES)


@pytest.mark.parametrize("key", SOURCES)
def test_argument_over_environment_over_file_over_default(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argument, environment, file = SOURCES[key]
    write_toml(f"{key} = {file[0]}\n")
    assert getattr(Config(), key) == file[1]
    monkeypatch.setenv(f"DEEPPART_{key.upper()}", environment[0])
    assert getattr(Config(), key) == environment[1]
    assert getattr(Config(**{key: argument[0]}), key) == argument[1]
    monkeypatch.setenv(f"DEEPPART_{key.upper()}", "")
    assert getattr(Config(), key) == file[1], "an empty variable is none"


RULES = {"replay/*": "none", "best/*": "rank0", "*": "auto"}


def test_replicated_by_globs_from_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    write_toml('[replicated]\n"replay/*" = "none"\n"best/*" = "rank0"\n"*" = "auto"\n')
    assert list(Config().replicated.items()) == list(RULES.items())  # type: ignore[union-attr]
    monkeypatch.setenv("DEEPPART_REPLICATED", "replay/*=none, best/*=rank0,a=b=verify,*=auto")
    found = Config().replicated
    assert list(found.items()) == list((RULES | {"a=b": "verify"}).items())[:2] + [("a=b", "verify"), ("*", "auto")]  # type: ignore[union-attr]
    assert Config(replicated={"x": "all"}).replicated == {"x": "all"}
    with_order = Config(replicated={"a": "none", "*": "all"}), Config(replicated={"*": "all", "a": "none"})
    first, second = (config.shared_settings()["replicated"] for config in with_order)
    assert first != second, "the order counts: ranks with different ones do not agree"


def test_a_setting_is_the_same_on_all_ranks_unless_it_is_listed() -> None:
    names = {each.name for each in dataclasses.fields(Config)}
    assert names > OF_EACH_RANK
    assert set(Config().shared_settings()) == names - OF_EACH_RANK | {"local_dir", "scrub_bandwidth"}
    with_it, other = Config(scrub_bandwidth=1e6), Config(scrub_bandwidth=2e6)
    assert with_it.shared_settings() == other.shared_settings() != Config().shared_settings()


def test_the_nearest_key_is_named_wherever_it_is_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(make: Any) -> str:
        with pytest.raises(ConfigError, match="no setting") as caught:
            make()
        assert "one of capture, compression" in str(caught.value.expected)
        return str(caught.value.todo)

    assert found(lambda: Config(persistant_dir="x")) == "write persistent_dir=..."  # type: ignore[call-arg]
    assert found(lambda: Config(local_dir="x", flush_bandwith=1)) == "write flush_bandwidth=..."  # type: ignore[call-arg]
    assert found(lambda: Config(TIMEOUT=1)) == "write timeout=..."  # type: ignore[call-arg]
    assert found(lambda: dataclasses.replace(Config(), keeps=1)) == "write keep=..."  # type: ignore[call-arg]
    assert "configuration.md" in found(lambda: Config(qqq=1))  # type: ignore[call-arg]
    monkeypatch.setenv("DEEPPART_TIMEOUTS", "3")
    assert found(Config) == "write timeout=..."
    write_toml("persistant_dir = 'x'\n")
    assert found(Config) == "write persistent_dir=..."


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
        "sign_key_file: new, old\n"
        "parity_group: 8 nodes\n"
        "all others as by default"
    )
