"""How two checkpoints differ, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.cli_support import call, call_json, forge, make_state, save, save_states

NAN, INF = float("nan"), float("inf")


def test_equal(tmp_path: Path) -> None:
    save(tmp_path, 1)
    text = call("diff", tmp_path, tmp_path)
    assert text.endswith("equal, bit for bit: 8 leaves and 7 values, 7.36 MB\n")
    assert text.startswith(f"A  {tmp_path} step 1, 1 rank\nB  {tmp_path} step 1, 1 rank\n")
    document = call_json("diff", tmp_path, tmp_path)
    assert document["equal"] is True and [document[name] for name in ("leaves", "values", "nbytes")] == [8, 7, 7360948]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    a, b = make_state(), make_state()
    a |= {"large": torch.tensor([100.0, 1.0]), "zero": torch.tensor(0.0), "old": {"p": torch.zeros(3), "q": 1}}
    b |= {"large": torch.tensor([101.0, 1.0]), "zero": torch.tensor(-0.0), "new": torch.zeros(2)}
    a["inf"], b["inf"] = torch.tensor([1.0]), torch.tensor([INF])
    b["noise"][1, 2] *= 1 + 1e-9
    b["moments"][1][5] = NAN
    b["rate"], b["ids"] = NAN, b["ids"].int()
    a["run"], b["run"] = list(range(20)), [*range(19), -1]
    return save_states(tmp_path_factory.mktemp("two"), a, b)


def test_the_worst_come_first(root: Path) -> None:
    lines = call("diff", f"{root}@1", f"{root}@2", code=1).splitlines()
    at = {line: place for place, line in enumerate(lines)}
    begins = [line.split()[0] for line in lines[at["other elements, the worst first"] + 1 : -1]]
    assert begins == ["moments/1", "inf", "large", "noise", "zero"]
    assert "  moments/1  float32[7]  1 of 7 differ, 1 NaN only in B; at [5] " in "\n".join(lines)
    assert "  large  float32[2]  1 of 2 differ, by 1 at most, relative 0.009901; at [0] 100 | 101" in lines
    assert any(line.endswith("zeros of other sign, or NaNs of other bits; 0 | -0") for line in lines)
    assert lines[at["only in A"] + 1] == "  old  dict of 2: 1 leaf and 1 value  12 B"
    assert lines[at["only in B"] + 1] == "  new  float32[2]  8 B"
    assert "  rate  0.001 | nan" in lines and "  ids  int64[50] | int32[50]" in lines
    assert "  run  1 item of 20 | 20 differ; the first at 19: 19 | -1" in lines
    assert lines[-1] == ("they differ: 5 of 10 leaves, 2 of 8 values, 1 other type, 1 only in A, 1 only in B")


def test_json_has_all_of_it(root: Path) -> None:
    document = call_json("diff", f"{root}@1", f"{root}@2", code=1)
    found = {each["path"]: each for each in document["differences"]}
    assert document["equal"] is False
    assert found["rate"] == {
        "path": "rate", "rank": None, "kind": "value", "a": 1e-3, "b": "nan", "detail": None, "type_a": "float",
        "type_b": "float",
    }  # fmt: skip
    assert found["run"]["detail"] == {"count": 1, "path": "19", "a": "19", "b": "-1"}
    assert found["old"]["a"] == {"text": "dict of 2", "leaves": 1, "values": 1, "nbytes": 12}
    assert found["old"]["b"] is None and found["old"]["kind"] == "only_a"
    assert (found["ids"]["kind"], found["ids"]["a"], found["ids"]["b"]) == ("type", "int64[50]", "int32[50]")
    inf = found["inf"]["detail"]
    assert (inf["largest_absolute"], inf["largest_relative"], inf["a"], inf["b"]) == ("inf", "inf", 1.0, "inf")
    assert inf["place"] == [0]
    nan = found["moments/1"]["detail"]
    assert (nan["nans_only_a"], nan["nans_only_b"], nan["b"], nan["largest_absolute"]) == (0, 1, "nan", None)
    assert (found["zero"]["detail"]["unlike"], found["zero"]["detail"]["equal_numbers"]) == (1, 1)


def test_tolerances(root: Path) -> None:
    document = call_json("diff", f"{root}@1", f"{root}@2", "noise", "zero", "large", "--rtol", "1e-6", code=1)
    assert [each["path"] for each in document["differences"]] == ["large"]
    assert (document["within"], document["tolerance"]) == (2, {"rtol": 1e-6, "atol": 0.0})
    text = call("diff", f"{root}@1", f"{root}@2", "noise", "zero", "large", "--atol", "1")
    assert text.endswith(
        "equal, within the tolerance: 3 leaves and 0 values, 132 B; 3 leaves only within the tolerance\n"
    )


def test_values_within_the_tolerance_are_not_the_same_bit_for_bit(tmp_path: Path) -> None:
    save_states(
        tmp_path, {"x": 0.0, "n": 10**400, "run": [1.0] * 20}, {"x": -0.0, "n": 10**400 + 1, "run": [1.0] * 19 + [1.5]}
    )
    places = f"{tmp_path}@1", f"{tmp_path}@2"
    document = call_json("diff", *places, "--atol", "1")
    assert (document["equal"], document["within"], document["values_within"]) == (True, 0, 3)
    text = call("diff", *places, "--atol", "1")
    assert text.endswith(
        "equal, within the tolerance: 0 leaves and 3 values, 0 B; 3 values only within the tolerance\n"
    )
    assert "equal, bit for bit" in call("diff", places[0], places[0], "--atol", "1")


def test_many_lines_are_cut_and_the_others_counted(tmp_path: Path) -> None:
    states: list[Any] = [{f"k{i:02}": torch.tensor([i + step]) for i in range(50)} for step in (0, 1)]
    save_states(tmp_path, *states)
    text = call("diff", f"{tmp_path}@1", f"{tmp_path}@2", code=1)
    assert text.count(" differ, by 1 at most") == 20 and "  and 30 more; --json lists all\n" in text
    assert len(call_json("diff", f"{tmp_path}@1", f"{tmp_path}@2", code=1)["differences"]) == 50


def test_ranks_are_named(tmp_path: Path) -> None:
    forge(tmp_path / "a", 5)
    forge(tmp_path / "b", 5, ranks=2)
    text = call("diff", tmp_path / "a", tmp_path / "b", code=1)
    assert "  rng (rank 2)  uint8[16]  16 B\n  position (rank 2)  int 1002\n" in text


def test_keys_and_values_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\r"
    a = {evil: torch.zeros(1), f"v{evil}": evil, f"only{evil}": 1, "t": {evil: torch.zeros(2)}, "r": [evil] * 9}
    b = {evil: torch.ones(1), f"v{evil}": 1, "t": {evil: torch.zeros(3)}, "r": [f"{evil}."] * 9}
    save_states(tmp_path, a, b)
    text = call("diff", f"{tmp_path}@1", f"{tmp_path}@2", code=1)
    assert not {"\x1b", "\x07", "\r"} & set(text) and "\\x1b" in text and len(text.splitlines()) == 12
