"""A manifest to read whole, or with one thing in it that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.errors import CorruptFileError
from deeppart.part import decode_manifest
from tests.golden import forge

SOUND = forge.seal(forge.manifest_document())


def refused(data: bytes) -> CorruptFileError:
    with pytest.raises(CorruptFileError) as caught:
        decode_manifest(data, where="manifest under test")
    assert caught.value.where == "manifest under test"
    assert len(str(caught.value)) < 2000
    return caught.value


def changed(path: tuple[Any, ...], value: object) -> bytes:
    """The sound document with ``value`` at ``path``, sealed anew."""
    document: Any = forge.manifest_document()
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return forge.seal(document)
