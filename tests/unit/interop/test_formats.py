"""Which format an export has, by its name and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.errors import ConfigError
from deeppart.interop.formats import FORMATS, form_of, writer_for


def test_names_ask_for_formats() -> None:
    asked = {name: form_of(Path(name)) for name in ("a.h5", "a.hdf5", "a.PT", "a.pth", "b/a.safetensors")}
    assert list(asked.values()) == ["hdf5", "hdf5", "torch", "torch", "safetensors"]
    for name in ("a", "a.bin"):
        with pytest.raises(ConfigError, match="does not say its format"):
            form_of(Path(name))


def test_what_is_a_directory() -> None:
    found = {form: writer_for(form, Path("out")) for form in FORMATS}
    assert {form for form, writer in found.items() if writer.is_directory} == {"safetensors", "dcp"}
    assert not writer_for("safetensors", Path("x.safetensors")).is_directory
    assert all(writer.form == form for form, writer in found.items())


def test_options_that_a_format_does_not_have() -> None:
    for form, out in (("safetensors", "x.safetensors"), ("torch", "x.pt"), ("hdf5", "x.h5")):
        with pytest.raises(ConfigError, match="no shards"):
            writer_for(form, Path(out), 100)
    for form in ("safetensors", "torch", "dcp"):
        with pytest.raises(ConfigError, match="no compression"):
            writer_for(form, Path("x"), None, "gzip")
    assert writer_for("dcp", Path("x"), 100).is_directory
