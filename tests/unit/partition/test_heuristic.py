"""Where the cuts between shares fall: evenly, and at the structure where it is near."""

from __future__ import annotations

from benchmarks.partition_scale import bert_large_shapes, with_adam
from deeppart.model import LeafSpec
from deeppart.partition import Plan, partition
from deeppart.partition.strategies import tolerance


def spans(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(leaf, start, length) of every rank."""
    return [[(span.leaf, span.start, span.length) for span in share.spans] for share in plan.shares()]


def test_a_cut_goes_to_the_end_of_the_most_significant_collection_within_reach() -> None:
    # Mean 100,000, reach 499. Boundaries at 99,600 (end of layer 0), 100,000 (inside layer 1) and 100,100.
    leaves = [
        LeafSpec("layer/0/w", 99_600),
        LeafSpec("layer/1/a", 400),
        LeafSpec("layer/1/b", 100),
        LeafSpec("layer/1/w", 99_900),
    ]
    assert spans(partition(leaves, 2, kappa=0)) == [
        [(0, 0, 99_600)],
        [(1, 0, 400), (2, 0, 100), (3, 0, 99_900)],
    ]
    # Where the structure says nothing, the nearest boundary.
    flat = [LeafSpec(f"x{i}", leaf.nbytes) for i, leaf in enumerate(leaves)]
    assert spans(partition(flat, 2, kappa=0))[0] == [(0, 0, 99_600), (1, 0, 400)]
    # Halfway between two of them, the lower.
    even = [LeafSpec("x0", 99_800), LeafSpec("x1", 400), LeafSpec("x2", 99_800)]
    assert spans(partition(even, 2, kappa=0))[0] == [(0, 0, 99_800)]
    # Out of reach (501 bytes), the balance decides and a leaf is split.
    far = [LeafSpec("layer/0/w", 99_499), LeafSpec("layer/1/w", 100_501)]
    assert spans(partition(far, 2, kappa=0))[0] == [(0, 0, 99_499), (1, 0, 501)]


def test_a_states_first_level_is_more_significant_than_its_layers() -> None:
    # Reach is 499 around 100,000: "model" ends at 99,700, a layer of the optimizer at 100,100.
    leaves = [
        LeafSpec("model/w", 99_700),
        LeafSpec("optimizer/0/w", 400),
        LeafSpec("optimizer/1/w", 99_900),
    ]
    assert spans(partition(leaves, 2, kappa=0))[0] == [(0, 0, 99_700)]


def test_structure_is_seen_through_leaves_without_bytes() -> None:
    # The boundary between a/x and b/y is the end of a, though what stands between them is empty.
    leaves = [
        LeafSpec("a/x", 99_700),
        LeafSpec("a/z", 0),
        LeafSpec("b/a", 0),
        LeafSpec("b/y", 300),
        LeafSpec("b/z", 100_000),
    ]
    assert spans(partition(leaves, 2, kappa=0))[0] == [(0, 0, 99_700)]


def test_reach_leaves_room_for_rounding() -> None:
    for mean in (*range(5000), 10**6, 10**12):
        for element in (1, 4, 16):
            reach = tolerance(mean, element)
            assert reach == 0 or (100 * (2 * reach + 1) <= mean and 100 * (reach + element) <= mean)
    assert tolerance(10**6, 4) == 4999


def test_drawing_cuts_to_the_structure_splits_fewer_leaves() -> None:
    bert = with_adam(bert_large_shapes())
    assert partition(bert, 4).split_leaves() == 1
    assert partition(bert, 4, strategy="flat").split_leaves() == 3
