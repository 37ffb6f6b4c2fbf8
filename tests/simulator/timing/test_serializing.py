"""One stream of ``torch.save``, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.machine.record import Serialize
from deeppart_simulator.timing.stages import TORCH_SAVE, device_copies_s, streams_s, torch_save_words
from deeppart_simulator.workload.states import read_state

from tests.simulator.timing.jobs import MACHINE

#: Two ranks on each of two nodes; the last has nothing.
NBYTES = np.array([[4e9, 4e9], [4e9, 0.0]])
TENSORS = np.array([[100.0, 100.0], [100.0, 0.0]])


def test_copies_share_what_a_node_can_do() -> None:
    machine = replace(MACHINE, serialize=Serialize(copy=2e9, node_copy=3e9))
    assert device_copies_s(machine, NBYTES) == pytest.approx(np.array([[8 / 3, 8 / 3], [2.0, 0.0]]))


def test_tensors_in_the_hosts_memory_are_not_copied() -> None:
    assert not device_copies_s(MACHINE, NBYTES).any()


def test_a_stream_does_one_thing_after_another() -> None:
    machine = replace(MACHINE, serialize=Serialize(copy=2e9, node_copy=3e9, stream=1e9, tensor=0.01))
    assert streams_s(machine, NBYTES, TENSORS) == pytest.approx(np.array([[8 / 3 + 5, 8 / 3 + 5], [7.0, 0.0]]))


def test_streams_share_cores_but_one_alone_has_its_own() -> None:
    machine = replace(MACHINE, cores=1, serialize=Serialize(stream=1e9, tensor=0.0))
    assert streams_s(machine, NBYTES, TENSORS).tolist() == [[8.0, 8.0], [4.0, 0.0]]


def test_where_ranks_hold_parts_one_saves_each_of_them() -> None:
    """The simulated bytes say so: rank 0 has all of a replicated state, and one of eight parts of a sharded one."""
    for layout, words, share in (("", "on rank 0", 1.0), ("@fsdp", "one rank for each part", 1 / 8)):
        state = read_state(f"gpt2{layout}")
        assert words in torch_save_words(state.layout)
        assert int(state.shares(8, TORCH_SAVE).nbytes[0]) == pytest.approx(share * state.nbytes, rel=0.01)
