"""A dict of sums that ranks only add to, but for blocks in which it is a dict like any other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Self


class Sums(MutableMapping[Any, Any]):
    """What accumulators have in common: outside of such a block, reading finds an empty dict."""

    #: The sums of the block that is open; None outside of one.
    _open: dict[Any, Any] | None = None

    @abstractmethod
    def _addend(self, key: Any) -> Any:
        """What ``sums[key]`` is outside of a block: something to be added to, which comes back by ``__setitem__``."""

    def update(self, *args: Any, **values: Any) -> None:
        """Add to the sums, as ``+=`` does; within a block, too, where a new one begins at 0."""
        for key, value in dict(*args, **values).items():
            self._begin(key)
            self[key] += value

    def subtract(self, *args: Any, **values: Any) -> None:
        """Take from the sums, in the same way."""
        for key, value in dict(*args, **values).items():
            self._begin(key)
            self[key] -= value

    def get(self, key: Any, default: Any = None) -> Any:
        """As of a dict: the default outside of a block."""
        return super().get(key, default) if key in self else default

    def _begin(self, key: Any) -> None:
        if self._open is not None and key not in self._open:
            self._open[key] = 0

    def __iadd__(self, other: Mapping[Any, Any]) -> Self:
        """``sums += {"loss": loss}``: as :meth:`update`."""
        self.update(other)
        return self

    def __isub__(self, other: Mapping[Any, Any]) -> Self:
        """As :meth:`subtract`."""
        self.subtract(other)
        return self

    def __getitem__(self, key: Any) -> Any:
        """A sum; outside of a block, something to be added to."""
        return self._addend(key) if self._open is None else self._open[key]

    def __delitem__(self, key: Any) -> None:
        """Within a block."""
        del ({} if self._open is None else self._open)[key]

    def __contains__(self, key: object) -> bool:
        """False outside of a block."""
        return self._open is not None and key in self._open

    def __iter__(self) -> Iterator[Any]:
        """Of nothing, outside of a block."""
        return iter({} if self._open is None else self._open)

    def __len__(self) -> int:
        """0 outside of a block."""
        return 0 if self._open is None else len(self._open)
