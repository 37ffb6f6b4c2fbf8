"""One version, wherever it is asked for."""

from __future__ import annotations

import configparser
from pathlib import Path

import deeppart
from deeppart.model.version import VERSION


def test_the_package_the_metadata_and_the_model_have_one_version() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(Path(__file__).parents[3] / "setup.cfg")
    assert deeppart.__version__ == VERSION == metadata["metadata"]["version"]
