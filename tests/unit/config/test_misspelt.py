"""Keys that do not exist: the one that was meant is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deeppart.config import Config
from deeppart.errors import ConfigError
from tests.unit.config.files import write_toml

pytestmark = pytest.mark.usefixtures("empty_directory")


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
