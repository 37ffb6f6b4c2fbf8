"""Names of settings that do not exist: the error names the one that was most likely meant."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection
from dataclasses import fields
from typing import Any, TypeVar

from deeppart.errors import ConfigError

T = TypeVar("T")


def no_such_setting(name: str, known: Collection[str], where: str | None = None) -> ConfigError:
    """The refusal of a setting that does not exist."""
    close = difflib.get_close_matches(name.lower(), known, 1)
    todo = f"write {close[0]}=..." if close else "remove it; docs/configuration.md describes all settings"
    expected = f"one of {', '.join(sorted(known))}"
    return ConfigError(f"there is no setting {name!r}", expected=expected, where=where, todo=todo)


def settings_by_name(kind: type[T]) -> type[T]:
    """Class decorator: a dataclass of settings refuses arguments of other names with :func:`no_such_setting`.

    Python's own TypeError names neither the settings that there are nor the nearest one, and is no DeeppartError. Type
    checkers see the class as it was.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    create = kind.__init__

    @functools.wraps(create)
    def __init__(self: T, *args: Any, **settings: Any) -> None:  # noqa: N807 - it becomes the method of that name
        for name in settings:
            if name not in known:
                raise no_such_setting(name, known)
        create(self, *args, **settings)

    kind.__init__ = __init__  # type: ignore[assignment, method-assign]
    return kind
