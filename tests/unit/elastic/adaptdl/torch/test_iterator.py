"""It says that there is nothing left to iterate over."""

from __future__ import annotations

import pytest

from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.torch.iterator import AdaptiveBPTTIterator


def test_it_refuses() -> None:
    with pytest.raises(UsageError, match=r"torchtext since 0\.12"):
        AdaptiveBPTTIterator([], batch_size=1, bptt_len=1)
