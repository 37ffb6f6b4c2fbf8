"""What `make bench` measures: states of several sizes, on several numbers of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.workload import BERT_LAYERS


@dataclass(frozen=True)
class Case:
    """One state on some ranks.

    Attributes:
        name: for tables and for ``--case``.
        state, scale, layers, ranks: see :class:`benchmarks.settings.Settings`.
        repetitions: rounds that count.
        without: contestants that are left out.
    """

    name: str
    state: str
    scale: float
    ranks: int
    repetitions: int
    layers: int = BERT_LAYERS
    without: tuple[str, ...] = ()


#: Who takes minutes for each round of 100,000 tensors.
_NOT_FOR_MANY = ("deeppart tensor", "ZipNN", "dcp zstd", "Orbax")
#: Fewer rounds say little on a machine whose memory changes its speed from minute to minute.
ROUNDS = 5
_SIZES = (
    ("0.1GB", "bert-large+adam", 0.02486),
    ("1.34GB", "bert-large", 1.0),
    ("4.02GB", "bert-large+adam", 1.0),
)
CASES = (
    *(Case(f"{size}-{ranks}", state, scale, ranks, ROUNDS) for size, state, scale in _SIZES for ranks in (1, 2, 4)),
    # What is asked of them is what a tensor costs, not what its bytes do; a round takes minutes all the same.
    *(
        Case(
            f"100k-tensors-{ranks}",
            "small",
            1.0,
            ranks,
            ROUNDS,
            without=("deeppart tensor", "ZipNN", "dcp zstd", "Orbax"),
        )
        for ranks in (1, 2, 4)
    ),
)
#: `--quick`
QUICK = (
    Case("0.1GB-2", "bert-large+adam", 0.02486, 2, 1),
    Case("5k-tensors-2", "small", 0.05, 2, 1),
)


def with_repetitions(cases: tuple[Case, ...], repetitions: int | None) -> tuple[Case, ...]:
    """The cases with another number of rounds, if one is given."""
    return cases if repetitions is None else tuple(replace(case, repetitions=repetitions) for case in cases)
