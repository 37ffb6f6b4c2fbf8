"""Two checkpoints, leaf by leaf: what only one of them has, and what differs (docs/commands.md, diff)."""

from deeppart.offline.diff.comparing import compare

__all__ = ["compare"]
