"""What is proposed for a glob that covers nothing covers something, and is spelt like it."""

from __future__ import annotations

import pytest

from deeppart.state.tree.globs import covers, nearest_globs, nearest_paths

PATHS = [
    "model/layers.0.weight", "model/layers.0.bias", "model/head.weight", "model/head.bias", "optimizer/state/0/exp_avg",
    "optimizer/state/0/step", "optimizer/param_groups/0/lr", "epoch", "data/position",
]  # fmt: skip


@pytest.mark.parametrize(
    ("glob", "best"),
    [
        ("modle/*", "model/*"),
        ("model/haed.*", "model/head.*"),
        ("optmizer/state/*/exp_avg", "optimizer/state/*/exp_avg"),
        ("optimizer/state/*/exp_agv", "optimizer/state/*/exp_avg"),
        ("*.wieght", "*.weight"),
        ("*/positon", "*/position"),
        ("epohc", "epoch"),
        ("position", "data/position"),
        ("optimizer.state.*", "optimizer/state/*"),
        ("model/layers/0/weight", "model.layers.0.weight"),
    ],
)
def test_the_best_is_what_was_meant(glob: str, best: str) -> None:
    paths = [*PATHS, "model.layers.0.weight"] if best.startswith("model.") else PATHS
    found = nearest_globs(glob, paths)
    prefixes = ["/".join(path.split("/")[:end]) for path in paths for end in range(1, path.count("/") + 2)]
    assert found[0] == best
    assert all(any(covers(path, [each]) for path in prefixes) for each in found) and len(found) <= 3


@pytest.mark.parametrize("glob", ["xyzzy/*", "[", "?????????????????", "", "*"])
def test_where_nothing_is_like_it(glob: str) -> None:
    assert nearest_globs(glob, []) == []
    assert all(any(covers(path, [each]) for path in PATHS) or "/" not in each for each in nearest_globs(glob, PATHS))
    assert nearest_globs("xyzzy/*", PATHS) == []


def test_paths() -> None:
    assert nearest_paths("model/head.wieght", PATHS)[0] == "model/head.weight"
    assert nearest_paths("lr", PATHS) == ["optimizer/param_groups/0/lr"]
    many = [f"layer{number}/weight" for number in range(20_000)]
    assert nearest_paths("x/weight", many) == many[:3], "so many are not compared letter by letter"
    assert nearest_globs("layer*/weigth", many) == ["layer*/weight"]
