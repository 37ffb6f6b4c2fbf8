"""One version, wherever it is asked for."""

from __future__ import annotations

from importlib.metadata import version

import deeppart
from deeppart.model.version import VERSION


def test_the_package_the_metadata_and_the_model_have_one_version() -> None:
    assert deeppart.__version__ == VERSION == version("deeppart")
