"""The time of one stream of ``torch.save``: what is done to every byte of it before a storage has to take it.

``torch.save`` works on one thread. Tensor after tensor, it copies what is on a device to memory that is not pinned,
computes a CRC-32 and writes the bytes through the page cache (torch/serialization.py and, of torch's own zip writer,
caffe2/serialize/inline_container.cc). Nothing of this is done at the same time. Only what the kernel writes on to the
storage is.
"""

from __future__ import annotations

import numpy as np

from ..machine.record import Machine
from ..workload.layout import Layout
from .bandwidth_sharing import FloatArray, finish_times


def device_copies_s(machine: Machine, nbytes: FloatArray) -> FloatArray:
    """Seconds that each rank takes to copy bytes from its device to memory that is not pinned."""
    serialize = machine.serialize
    if np.isinf(serialize.copy) and np.isinf(serialize.node_copy):
        return np.zeros_like(nbytes)
    return finish_times(nbytes, serialize.copy, serialize.node_copy)


def streams_s(machine: Machine, nbytes: FloatArray, tensors: FloatArray) -> FloatArray:
    """Seconds of each rank's stream: its copies, its bytes and its tensors, one after the other."""
    serialize = machine.serialize
    streams = np.count_nonzero(tensors, axis=1)
    crowding = np.array([machine.crowding(max(1, int(count))) for count in streams])[:, None]
    computing = (nbytes / serialize.stream + tensors * serialize.tensor) * crowding
    times: FloatArray = device_copies_s(machine, nbytes) + computing
    return times


def torch_save_words(layout: Layout) -> str:
    """What the strategy "rank0" is: where ranks hold parts, one of those that hold the same saves it, all at a time."""
    return "torch.save on rank 0" if layout == Layout() else "torch.save, one rank for each part"
