"""Settings from the environment and from files: read once, by name, and refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deeppart.config import Config
from deeppart.errors import ConfigError
from tests.unit.config.files import write_toml
from tests.users import STRANGER, needs_root

pytestmark = pytest.mark.usefixtures("empty_directory")


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


@needs_root
def test_a_file_that_a_stranger_has_put_into_a_shared_directory(tmp_path: Path) -> None:
    """It is refused whatever it says of permissions; which settings a file has is known."""
    write_toml('timeout = 5\npermissions = "unchecked"')
    assert Config().timeout == 5 and list(Config().from_file.values()) == [str(tmp_path / "deeppart.toml")] * 2
    assert list(Config(timeout=3).from_file) == ["permissions"]
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match="not used") as caught:
        Config()
    assert caught.value.where == str(tmp_path) and "directory of your own" in str(caught.value.todo)
    tmp_path.chmod(0o755)
    os.chown("deeppart.toml", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=str(STRANGER)):
        Config()


def test_rules_that_cannot_be_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPPART_REPLICATED", "x=none,y")
    with pytest.raises(ConfigError, match="GLOB=MODE"):
        Config()
