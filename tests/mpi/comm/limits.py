"""How long an operation of a test may take."""

from __future__ import annotations

from typing import Any

from deeppart.comm import Comm, finish

LIMIT_S = 100.0


def do(comm: Comm, operation: Any) -> Any:
    """Bring an operation to its end."""
    return finish(comm, operation, "test", LIMIT_S)
