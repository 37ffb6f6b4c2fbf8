"""AdaptDL's iterator over torchtext's old data sets, which have not existed since torchtext 0.12 (2022)."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError


class AdaptiveBPTTIterator:
    """Refuses to be made: there is nothing left that it could iterate over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError(
            "AdaptiveBPTTIterator needs torchtext's BPTTIterator",
            found="no torchtext since 0.12 has one",
            todo="make a data set of windows of the text, and loop over it with an AdaptiveDataLoader",
        )
