"""Copies a share into staging memory: its layout, the copy itself, and copies after the call (``capture="lazy"``)."""

from deeppart.state.capture.copying import CapturePlan
from deeppart.state.capture.layout import ChunkPlan, ShareLayout, lay_out
from deeppart.state.capture.lazy import DeferredCopy, LazyCapture
from deeppart.state.capture.staging import Staging, staging_bytes

__all__ = [
    "CapturePlan",
    "ChunkPlan",
    "DeferredCopy",
    "LazyCapture",
    "ShareLayout",
    "Staging",
    "lay_out",
    "staging_bytes",
]
