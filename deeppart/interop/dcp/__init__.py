"""Checkpoints of torch.distributed.checkpoint (DCP)."""

from deeppart.interop.dcp.loading import load

__all__ = ["load"]
