"""How long the partitioner takes and how well it balances, up to 100,000 leaves over 65,536 ranks.

    python benchmarks/partition_scale.py [--json] [--repeat 3]

Sizes only, no tensors: BERT-large with its Adam state (by shapes), and synthetic models of growing depth. Plan seconds
are the best of the repeats and include everything from a shuffled list of LeafSpecs: canonical order, cuts, and bytes
and spans per rank; "from arrays" starts from ``Leaves`` kept from before. Own-share milliseconds are the slowest of 64
ranks. max/mean is the largest cost over the mean cost of the leaves unsplit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from deeppart.model import LeafSpec
from deeppart.partition import STRATEGIES, Leaves, partition


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    state: str
    leaves: int
    ranks: int
    strategy: str
    plan_seconds: float
    plan_seconds_from_arrays: float
    own_share_ms: float
    max_over_mean: float
    split_leaves: int


def bert_large_shapes() -> dict[str, tuple[int, ...]]:
    """The 391 parameters of BERT-large as in ``transformers.BertModel``: 335 million elements."""
    hidden, inner = 1024, 4096
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (30522, hidden),
        "embeddings.position_embeddings.weight": (512, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(24):
        linear = {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }
        for name, (rows, columns) in linear.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (rows,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (hidden,)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (hidden,)
    shapes["pooler.dense.weight"] = (hidden, hidden)
    shapes["pooler.dense.bias"] = (hidden,)
    return shapes


def with_adam(shapes: dict[str, tuple[int, ...]]) -> list[LeafSpec]:
    """float32 parameters, then exp_avg, exp_avg_sq and a 4-byte step for each: four leaves per parameter."""
    leaves = [LeafSpec(f"model/{name}", 4 * int(np.prod(shape)), 4) for name, shape in shapes.items()]
    for number, shape in enumerate(shapes.values()):
        nbytes = 4 * int(np.prod(shape))
        leaves.append(LeafSpec(f"optimizer/state/{number}/step", 4, 4))
        leaves.append(LeafSpec(f"optimizer/state/{number}/exp_avg", nbytes, 4))
        leaves.append(LeafSpec(f"optimizer/state/{number}/exp_avg_sq", nbytes, 4))
    return leaves


def synthetic(count: int, seed: int = 1) -> list[LeafSpec]:
    """A model of 16 parameters per layer and its Adam state, sizes log-uniform from 4 B to 64 MiB, shuffled."""
    draw = random.Random(seed)
    shapes: dict[str, tuple[int, ...]] = {
        f"blocks.{number // 16}.p{number % 16}": (int(2 ** draw.uniform(0, 24)),) for number in range(-(-count // 4))
    }
    leaves = with_adam(shapes)[:count]
    draw.shuffle(leaves)
    return leaves


def measure(state: str, specs: list[LeafSpec], ranks: int, strategy: str, repeat: int) -> Row:
    """Time one plan and one rank's own share of it."""
    kept = Leaves.of(specs)
    cold, warm = [], []
    for _ in range(repeat):
        began = time.perf_counter()
        plan = partition(specs, ranks, strategy=strategy)
        cold.append(time.perf_counter() - began)
        began = time.perf_counter()
        partition(kept, ranks, strategy=strategy)
        warm.append(time.perf_counter() - began)
    own = []
    for rank in np.linspace(0, ranks - 1, min(64, ranks)).astype(int).tolist():
        began = time.perf_counter()
        plan.share(rank)
        own.append(time.perf_counter() - began)
    mean = sum(spec.nbytes + plan.kappa * (spec.nbytes > 0) for spec in specs) / ranks
    return Row(
        state=state,
        leaves=len(specs),
        ranks=ranks,
        strategy=strategy,
        plan_seconds=min(cold),
        plan_seconds_from_arrays=min(warm),
        own_share_ms=1e3 * max(own),
        max_over_mean=float(plan.costs().max()) / mean,
        split_leaves=plan.split_leaves(),
    )


def rows(repeat: int) -> list[Row]:
    """Every case of the table."""
    bert = with_adam(bert_large_shapes())
    cases = [("BERT-large + Adam", bert, ranks) for ranks in (4, 16, 64, 256, 1024)]
    cases += [("synthetic", synthetic(leaves), ranks) for leaves, ranks in ((10_000, 4096), (100_000, 65_536))]
    return [measure(*case, strategy, repeat) for case in cases for strategy in STRATEGIES]


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    parser.add_argument("--repeat", type=int, default=3, help="plans per case, of which the best counts")
    arguments = parser.parse_args()
    table = rows(arguments.repeat)
    if arguments.json:
        json.dump([asdict(row) for row in table], sys.stdout, indent=1)
        print()
        return
    print(f"{'state':<18}{'leaves':>8}{'ranks':>7}  {'strategy':<9}{'plan s':>8}{'from arrays s':>15}", end="")
    print(f"{'own share ms':>14}{'max/mean':>11}{'split':>8}")
    for row in table:
        print(f"{row.state:<18}{row.leaves:>8}{row.ranks:>7}  {row.strategy:<9}{row.plan_seconds:>8.4f}", end="")
        print(f"{row.plan_seconds_from_arrays:>15.4f}{row.own_share_ms:>14.3f}", end="")
        print(f"{row.max_over_mean:>11.4f}{row.split_leaves:>8}")


if __name__ == "__main__":
    main()
