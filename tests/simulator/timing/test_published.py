"""Published figures: what the model says of them, by hand, and which of them it reproduces."""

from __future__ import annotations

from deeppart_simulator.timing.published import (
    MLPERF,
    TARGET,
    THESIS,
    TORCHSNAPSHOT,
    figures,
)


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


def test_all_but_one_are_reproduced_and_the_table_says_so() -> None:
    found = {figure.case: figure for figure in figures() if figure.source == MLPERF}
    assert len(found) == 8 and [case for case, figure in found.items() if figure.given] == [
        "8B, write, 2 x 4", "8B, read, 2 x 4"
    ]  # fmt: skip
    free = [figure for figure in found.values() if not figure.given]
    assert [figure.case for figure in free if not figure.reproduced] == ["1T, write, 128 x 8"]
    assert "measured was more" in found["1T, write, 128 x 8"].why, "than the storage is sold with"
    assert all(abs(figure.difference) <= TARGET for figure in free if figure.reproduced)
