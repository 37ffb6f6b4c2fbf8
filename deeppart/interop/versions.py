"""Which versions of a trainer a module of this package knows."""

from __future__ import annotations

import re
from importlib import metadata

from deeppart.errors import ConfigError


class _TrainerImportError(ConfigError, ImportError):
    """A module of this package that is imported without what it is for."""


def require(package: str, oldest: str, purpose: str) -> None:
    """Refuse a package that is missing or too old, before anything is done with it.

    Args:
        package: its name on PyPI.
        oldest: the first version that will do: ``"0.3"``.
        purpose: the module that needs it.

    Raises:
        ConfigError: it is not installed, or older. It is an ImportError, too, as of any module that cannot be imported.

    Example:
        >>> from deeppart.interop.versions import require
        >>> require("torch", "2.4", "this example")
    """
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = ""
    if found and _numbers(found) >= _numbers(oldest):
        return
    raise _TrainerImportError(
        f"{purpose} needs {package}" if not found else f"{purpose} needs a newer {package}",
        expected=f"{package} {oldest} or newer",
        found=found or "none is installed",
        todo=f"pip install '{package}>={oldest}'",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (0, 3) of "0.3.0rc1+cpu". Pre-releases count as their release, zeros at the end not."""
    matched = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(number) for number in matched[1].split(".")] if matched else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
