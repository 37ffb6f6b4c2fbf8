"""What a package offers to others fits on a page; import-linter sees to it that they use nothing else."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import deeppart

#: Names that a package may offer.
MOST = 40
PACKAGES = [
    each.name for each in pkgutil.walk_packages(deeppart.__path__, "deeppart.") if each.ispkg and "._" not in each.name
]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_face_has_few_names(name: str) -> None:
    assert len(getattr(importlib.import_module(name), "__all__", ())) <= MOST
