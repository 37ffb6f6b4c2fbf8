"""A state that one rank cannot make: all ranks are to hear why, and none is to wait for it in ``checkpoint()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from deeppart.errors import DeeppartError


class Refused:
    """Stands for a state that cannot be made: raises when it is looked at, which ends the call on all ranks."""

    def __init__(self, error: DeeppartError) -> None:
        self._error = error

    def state_dict(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    def load_state_dict(self, state: Any) -> NoReturn:
        """Raise the error."""
        raise self._error


def or_refusal(make: Callable[[], Any]) -> Any:
    """A state to be saved; or, where this rank cannot make it, one of which all ranks hear why.

    Example:
        >>> from deeppart.interop.refusal import or_refusal
        >>> or_refusal(lambda: {"step": 3})
        {'step': 3}
    """
    try:
        return make()
    except DeeppartError as error:
        return Refused(error)
