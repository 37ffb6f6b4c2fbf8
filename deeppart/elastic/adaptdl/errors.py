"""The error of everything here that is used in a way in which it cannot be."""

from __future__ import annotations

from deeppart.errors import ConfigError


class UsageError(ConfigError, RuntimeError, ValueError):
    """As the library's errors, and of the types that AdaptDL raises, RuntimeError or ValueError."""
