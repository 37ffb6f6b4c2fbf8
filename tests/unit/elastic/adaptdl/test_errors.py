"""One error, for those who wait for the library's and for those who wait for AdaptDL's."""

from __future__ import annotations

import pytest

from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.errors import ConfigError


@pytest.mark.parametrize("kind", [ConfigError, RuntimeError, ValueError])
def test_all_of_them_are_met(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="wrong\n  expected: right"):
        raise UsageError("wrong", expected="right")
