"""Configuration: every key from every source, precedence, and refusal of what is unknown or impossible."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from deeppart.codec import Chooser
from deeppart.config import Config
from deeppart.config.checks import DEFAULT_EVERY
from deeppart.config.job import expand_directory, job_name, launcher_world, node_name
from deeppart.errors import ConfigError
from deeppart.model import DEFAULT_KEEP
from tests.users import STRANGER, needs_root


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in MACHINES:
        (tmp_path / name).write_text('[memory]\ntensor = "2 us"\ncopy = "5 GB/s"\n')
    return tmp_path


def write_toml(text: str) -> None:
    Path("deeppart.toml").write_text(text, encoding="utf-8")


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


MACHINES = ("one.toml", "two.toml", "three.toml")

# key -> (argument, environment, toml literal, value seen) for four different values
SOURCES: dict[str, tuple[tuple[Any, Any], tuple[str, Any], tuple[str, Any]]] = {
    "persistent_dir": (("a", "a"), ("b", "b"), ('"c"', "c")),
    "local_dir": (("/a", "/a"), ("/b", "/b"), ('"/c"', "/c")),
    "compression": (("none", "none"), ("zstd:7", "zstd:7"), ('"zstd"', "zstd")),
    "replicated": (("all", "all"), ("none", "none"), ('"all"', "all")),
    "on_busy": (("wait", "wait"), ("skip", "skip"), ('"skip"', "skip")),
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
    "machine": ((MACHINES[0], MACHINES[0]), (MACHINES[1], MACHINES[1]), (f'"{MACHINES[2]}"', MACHINES[2])),
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


def test_auto_from_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(every="auto").every == "auto" == Config(every="auto", local_dir="x").every
    write_toml('every = "auto"\n')
    assert Config().every == "auto"
    assert Config(every={"persistent": 2}).every == {**DEFAULT_EVERY, "local": 0, "persistent": 2}
    write_toml("[every]\npersistent = 3\n")
    monkeypatch.setenv("DEEPPART_EVERY", "auto")
    assert Config().every == "auto"


def test_sources_are_combined_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    write_toml('persistent_dir = "from file"\ntimeout = 11\nnode_size = 4\n')
    monkeypatch.setenv("DEEPPART_TIMEOUT", "22")
    monkeypatch.setenv("DEEPPART_ON_BUSY", "skip")
    config = Config(node_size=1)
    assert (config.persistent_dir, config.timeout, config.on_busy, config.node_size) == ("from file", 22.0, "skip", 1)


IMPOSSIBLE: list[tuple[str, Any]] = [
    ("persistent_dir", ""), ("persistent_dir", None), ("persistent_dir", 5), ("persistent_dir", b"x"),
    ("persistent_dir", "{host}/x"), ("persistent_dir", "a/{}"), ("local_dir", ""), ("local_dir", "{user}"),
    ("every", {"locl": 1}), ("every", {"local": -1}), ("every", {"local": 1.0}), ("every", {"local": True}),
    ("every", "often"), ("every", "AUTO"),
    ("every", 1), ("every", None), ("every", {"persistent": 0}), ("every", {"partner": 1}), ("every", {"parity": 2}),
    ("keep", {"disk": 1}), ("keep", {"local": -1}), ("keep", {"local": "1"}), ("keep", {"local": None}), ("keep", 3),
    ("compression", "gzip"), ("compression", "zstd:"), ("compression", "zstd:x"), ("compression", None),
    ("compression", "zstd:3 "), ("compression", "zstd:23"), ("compression", "zstd:-8"),
    ("compression", "tensors"), ("compression", 3),
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


IMPOSSIBLE_TEXTS = [
    ("timeout", "soon"), ("timeout", "nan"), ("timeout", "-1"), ("node_size", "2.5"), ("node_size", "0"),
    ("every", "local"), ("every", "local=x"), ("every", "local=1,"), ("every", "local=-1"), ("every", "disk=1"),
    ("keep", "persistent=1.5"), ("flush_bandwidth", "fast"), ("flush_bandwidth", "1X"), ("flush_bandwidth", "0"),
    ("flush_bandwidth", "1 GiB/h"), ("compression", "best"), ("kappa", "-1"),
    ("parity_group", "1"), ("parity_tolerate", "all"), ("local_dir", "{user}"), ("on_busy", "WAIT"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text"), IMPOSSIBLE_TEXTS)
def test_impossible_variables_are_named(key: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DEEPPART_{key.upper()}", text)
    with pytest.raises(ConfigError) as caught:
        Config()
    assert key in str(caught.value).lower()


IMPOSSIBLE_FILES = {
    "timeout = ": "toml",
    "timeout = 'x'": "timeout",
    "timeout = true": "timeout",
    "every = 3": "every",
    "[every]\nlocal = -1": "every",
    "[keep]\ndisk = 1": "keep",
    "timout = 5": "timout",
    "[deeppart]\ntimeout = 5": "deeppart",
    "timeout = 5\ntimeout = 6": "toml",
    "\xff\xfe": "toml",
}


@pytest.mark.parametrize("text", IMPOSSIBLE_FILES)
def test_impossible_files_are_named(text: str) -> None:
    Path("deeppart.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        Config()
    assert IMPOSSIBLE_FILES[text] in str(caught.value)


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


def test_a_config_is_a_frozen_dataclass_like_any_other() -> None:
    config = Config("here", local_dir="x", every={"persistent": 4}, sign_key_file="key")
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    changed = dataclasses.replace(config, timeout=5)
    assert (changed.persistent_dir, changed.timeout, changed.every) == ("here", 5, config.every)
    assert list(inspect.signature(Config).parameters) == [field.name for field in dataclasses.fields(Config)]
    assert not hasattr(config, "__dict__") and repr(config).startswith("Config(persistent_dir='here'")
    with pytest.raises(TypeError, match="multiple values"):
        Config("here", persistent_dir="there")  # type: ignore[misc]


def test_unknown_keys_are_errors_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'tiemout'"):
        Config(tiemout=3)  # type: ignore[call-arg]
    monkeypatch.setenv("DEEPPART_TIEMOUT", "3")
    with pytest.raises(ConfigError, match="'tiemout'") as caught:
        Config(timeout=3)
    assert "timeout" in str(caught.value), "the known ones are listed"
    monkeypatch.delenv("DEEPPART_TIEMOUT")
    write_toml("tiemout = 3")
    with pytest.raises(ConfigError, match="'tiemout'"):
        Config(timeout=3)


@needs_root
def test_a_file_that_a_stranger_has_put_into_a_shared_directory(tmp_path: Path) -> None:
    """As deeppart.toml in /tmp; in a directory that is not everyone's, whoever may write there is trusted with it."""
    write_toml("timeout = 5")
    tmp_path.chmod(0o1777)
    assert Config().timeout == 5
    os.chown("deeppart.toml", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=str(STRANGER)):
        Config()
    tmp_path.chmod(0o755)
    assert Config().timeout == 5
    tmp_path.chmod(0o1777)
    Path("deeppart.toml").rename("mine.toml")
    Path("deeppart.toml").symlink_to("mine.toml")
    os.lchown("deeppart.toml", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=str(STRANGER)):
        Config()


def test_a_directory_in_place_of_the_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "deeppart.toml").mkdir()
    assert Config().timeout == 600.0


@pytest.mark.parametrize("text", ["none", "tensor", "zstd", "zstd:1", "zstd:22", "zstd:-7"])
def test_what_the_configuration_lets_through_the_codec_takes(text: str) -> None:
    assert Chooser(Config(compression=text).compression).compression == text


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    config = Config(persistent_dir=tmp_path, local_dir=tmp_path / "local")  # type: ignore[arg-type]
    assert config.persistent_dir == str(tmp_path) and config.local_dir == str(tmp_path / "local")


# --- directories ------------------------------------------------------------------------------------------------------


def test_placeholders_variables_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/home/me")
    expand: dict[str, Any] = {"node": "n7", "rank": 12, "job": "4711"}
    assert expand_directory("$SCRATCH/{job}/{node}.{rank}", **expand) == Path("/scratch/me/4711/n7.12")
    assert expand_directory("${SCRATCH}/x", **expand) == Path("/scratch/me/x")
    assert expand_directory("~/x", **expand) == Path("/home/me/x")
    assert expand_directory("x", **expand) == Path.cwd() / "x"
    with pytest.raises(ConfigError, match="NOWHERE"):
        expand_directory("$NOWHERE/x", **expand)
    with pytest.raises(ConfigError, match="NOWHERE"):
        expand_directory("${NOWHERE}/{rank}", **expand)
    assert Config(local_dir="${SCRATCH}/{node}").local_dir == "${SCRATCH}/{node}"


def test_a_variable_may_hold_braces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a variable expands to is a directory, not a template."""
    monkeypatch.setenv("ODD", "/a{rank}b")
    assert expand_directory("$ODD/{rank}", node="n", rank=3, job="j") == Path("/a{rank}b/3")


SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID")


def test_the_job_name_is_the_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)
    assert job_name() == "job"
    for name in reversed(SCHEDULERS):
        monkeypatch.setenv(name, f"{name}/1[2]")
        assert job_name() == f"{name}_1_2_", "safe as a directory name"


def test_the_node_is_the_schedulers_or_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert node_name() == os.uname().nodename
    monkeypatch.setenv("SLURMD_NODENAME", "node3")
    assert node_name() == "node3"


def test_the_launcher_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE")
    for name in (*names, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert launcher_world() is None
    monkeypatch.setenv("RANK", "1")
    assert launcher_world() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launcher_world() == ("torchrun", 1, 4)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert launcher_world() == ("torchrun", 1, 4)
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "8")
    assert launcher_world() == ("mpirun (PMI)", 3, 8)
    monkeypatch.setenv("PMI_RANK", "x")
    assert launcher_world() == ("torchrun", 1, 4)


def test_kappa_of_a_machine_file() -> None:
    assert Config(machine="one.toml").kappa == pytest.approx(2e-6 * 5e9)
    assert Config(machine="one.toml", kappa=7).kappa == 7
    Path("other.toml").write_text("[memory]\ntensor = 3e-6\ncopy = 1e10\n")
    assert Config(machine="other.toml").kappa == pytest.approx(3e4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "memory = 3",
        "[memory]\ntensor = 1e-6",
        '[memory]\ntensor = "soon"\ncopy = 1e9',
        "[memory]\ntensor = -1\ncopy = 1",
    ],
)
def test_machine_files_that_will_not_do(text: str) -> None:
    Path("bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"machine|kappa"):
        Config(machine="bad.toml")
    with pytest.raises(ConfigError, match="there is none"):
        Config(machine="nowhere.toml")
    with pytest.raises(ConfigError, match="machine"):
        Config(machine=3)  # type: ignore[arg-type]


RULES = {"replay/*": "none", "best/*": "rank0", "*": "auto"}


def test_replicated_by_globs_from_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    write_toml('[replicated]\n"replay/*" = "none"\n"best/*" = "rank0"\n"*" = "auto"\n')
    assert list(Config().replicated.items()) == list(RULES.items())  # type: ignore[union-attr]
    monkeypatch.setenv("DEEPPART_REPLICATED", "replay/*=none, best/*=rank0,a=b=verify,*=auto")
    found = Config().replicated
    assert list(found.items()) == list((RULES | {"a=b": "verify"}).items())[:2] + [("a=b", "verify"), ("*", "auto")]  # type: ignore[union-attr]
    assert Config(replicated={"x": "all"}).replicated == {"x": "all"}
    with_order = Config(replicated={"a": "none", "*": "all"}), Config(replicated={"*": "all", "a": "none"})
    first, second = (repr(config.shared_settings()["replicated"]) for config in with_order)
    assert first != second, "the order counts: ranks with different ones do not agree"


@pytest.mark.parametrize("value", [{"x": "some"}, {"": "none"}, {1: "none"}, {"x": None}, ["x"], "rank0"])
def test_impossible_rules(value: Any) -> None:
    with pytest.raises(ConfigError, match="replicated"):
        Config(replicated=value)


def test_rules_that_cannot_be_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPPART_REPLICATED", "x=none,y")
    with pytest.raises(ConfigError, match="GLOB=MODE"):
        Config()


def test_the_file_and_the_environment_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are of one moment: none of them is from before a change, and another from after it."""
    from deeppart.config import sources

    read = sources._read_environment
    calls = []
    monkeypatch.setattr(sources, "_read_environment", lambda found: calls.append(1) or read(found))
    monkeypatch.setenv("DEEPPART_TIMEOUT", "7")
    assert Config(persistent_dir=str(tmp_path)).timeout == 7 and len(calls) == 1
    monkeypatch.setenv("DEEPPART_TIMEOUT", "8")
    assert Config(persistent_dir=str(tmp_path)).timeout == 8 and len(calls) == 2
