"""Published figures: what the model says of them, by hand, and which of them it reproduces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.timing.published import FTI_CORE, TAKE_ENTRY_S, TAKE_S, TARGET, THESIS, TORCHSNAPSHOT, Figure, figures, prototype_s, take_s, torch_save_s
from deeppart_simulator.workload.states import read_state

from tests.simulator.timing.jobs import MACHINE

P4D, PARAMETERS = read_machine("p4d"), read_state("tensors-200x100MB")


def test_torchsnapshots_table_is_reproduced() -> None:
    """All that the machine file does not itself have from that table, which is one number for each storage."""
    found = [figure for figure in figures() if figure.source == TORCHSNAPSHOT]
    assert len(found) == 10 and {figure.published for figure in found} >= {32.0, 38.0, 3.38, 2.02, 1.29}
    given = [figure.case for figure in found if figure.given]
    assert given == ["take, local, 1 x 8", "take, FSx for Lustre, 1 x 8"]
    for figure in found:
        assert abs(figure.difference) <= TARGET, figure
        assert figure.reproduced is not figure.given


def test_the_thesis_is_not_reproduced_and_the_table_says_so() -> None:
    """When a number with a source changes this, the documents have to say something else."""
    found = {figure.published: figure for figure in figures() if figure.source == THESIS}
    assert list(found) == [5.6, 2.1, 2.7]
    assert not any(figure.reproduced for figure in found.values())
    assert all(figure.simulated > figure.published for figure in found.values())
    assert "on 24 ranks" in found[5.6].why and "on 9 ranks" in found[2.1].why


def test_a_difference_is_a_share_of_what_was_published() -> None:
    figure = Figure("who", "what", "s", 2.0, 2.5, "")
    assert figure.difference == 0.25 and figure.reproduced
    assert not replace(figure, simulated=1.49).reproduced
    assert not replace(figure, given=True).reproduced


def test_torch_save_by_hand() -> None:
    """20 GB: from an A100 at 1.4 GB/s, then serialized at 1.24; on more ranks it takes the same and a meeting."""
    alone = torch_save_s(P4D, PARAMETERS, 1, 8, persistent=False)
    assert alone == pytest.approx(20 / 1.4 + 20 / 1.24 + 200 * 24.3e-6)
    assert torch_save_s(P4D, PARAMETERS, 32, 8, persistent=False) == pytest.approx(alone + 2 * 20e-6 * 5)


def test_a_take_ends_with_the_node_that_has_most_whole_tensors() -> None:
    """200 tensors on 16 ranks: 8 ranks have 13 of them, which are on one node and copied at 6.06 GB/s."""
    calls = TAKE_S + TAKE_ENTRY_S * 200 * 16
    assert take_s(P4D, PARAMETERS, 16, 8, persistent=False) == pytest.approx(calls + 8 * 1.3 / 6.06)
    lustre = replace(P4D, persistent=replace(P4D.persistent, node_write=1e9))
    assert take_s(lustre, PARAMETERS, 16, 8, persistent=True) == pytest.approx(calls + 8 * 1.3)
    lustre = replace(lustre, persistent=replace(lustre.persistent, write=2e9, others=0.5))
    assert take_s(lustre, PARAMETERS, 16, 8, persistent=True) == pytest.approx(calls + 20)


def test_the_prototype_serializes_digests_and_writes_in_turn() -> None:
    """1 GB on each of 16 ranks, 4 on a node that writes 1 GB/s; the codec leaves 0.8 of it."""
    state = read_state("tensors-64x250MB")
    serialized, digested = 1 / 1.24 + 4 * 24.3e-6, 1e9 / FTI_CORE
    raw = prototype_s(MACHINE, state, 16, 4, compressed=False)
    assert raw == pytest.approx(serialized + digested + 4.0)
    encoded = prototype_s(MACHINE, state, 16, 4, compressed=True)
    assert encoded == pytest.approx(serialized + 1.0 + 0.8 * digested + 3.2)
