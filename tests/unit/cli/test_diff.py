"""``deeppart diff``: arguments and exit codes; how two checkpoints differ, for people and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.cli_support import (
    call,
    call_json,
    flip,
    invoke,
    make_state,
    manifest_path,
    part_path,
    save,
    save_states,
)


def test_exit_codes_are_those_of_diff(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 1, 2)
    save(b, 1)
    call("diff", a, a, code=0)
    call("diff", f"{a}@1", f"{a}@2", code=1)
    call("diff", f"{a}@1", b, code=0)
    call("diff", a, code=2)
    for wrong in (["--rtol", "-1"], ["--atol", "nan"], ["--atol", "inf"], ["--rank", "-1"], ["--bad"]):
        assert call_json("diff", a, b, *wrong, code=2)["error"]["kind"] == "UsageError"
    for there in (f"{a}@9", tmp_path / "nowhere", f"{tmp_path / 'nowhere'}@1"):
        error = call_json("diff", a, there, code=2)["error"]
        assert (error["kind"], error["exit_code"]) == ("RestoreError", 2)
    assert call_json("diff", a, manifest_path(a, 1), code=2)["error"]["kind"] == "RestoreError"
    assert call_json("diff", a, b, "nothing*", code=2)["error"]["kind"] == "StructureMismatchError"
    assert call_json("diff", a, b, "--rank", 1, code=2)["error"]["kind"] == "RestoreError"


def test_damage_has_another_exit_code_than_a_difference(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 1)
    save(b, 1, 2)
    flip(part_path(b, 1), 4096 + 1000)
    text = call("diff", a, f"{b}@1", code=2)
    assert "B: " in text and "digest of a chunk" in text and "no difference was found in what can be" in text
    assert call_json("diff", a, f"{b}@1", code=2)["equal"] is None
    flip(part_path(b, 2), 4096 + 1000)
    assert call_json("diff", a, f"{b}@2", code=2)["equal"] is False
    flip(manifest_path(b, 2), 300)
    result = invoke("diff", a, f"{b}@2")
    assert (result.exit_code, result.stdout) == (2, "") and "digest of the manifest" in result.stderr
    # The newest with a sound manifest is taken, and that this is not the newest is said.
    assert "step 2 is newer, and cannot be used" in call("diff", a, b, code=2)


NAN, INF = float("nan"), float("inf")


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
    assert "  run/19  19 | -1" in lines
    assert lines[-1] == ("they differ: 5 of 10 leaves, 2 of 27 values, 1 other type, 1 only in A, 1 only in B")


def test_json_has_all_of_it(root: Path) -> None:
    document = call_json("diff", f"{root}@1", f"{root}@2", code=1)
    found = {each["path"]: each for each in document["differences"]}
    assert document["equal"] is False
    assert found["rate"] == {
        "path": "rate", "rank": None, "kind": "value", "a": 1e-3, "b": "nan", "detail": None, "type_a": "float",
        "type_b": "float",
    }  # fmt: skip
    assert (found["run/19"]["kind"], found["run/19"]["a"], found["run/19"]["b"]) == ("value", 19, -1)
    assert found["old"]["a"] == {"text": "dict of 2", "leaves": 1, "values": 1, "nbytes": 12}
    assert found["old"]["b"] is None and found["old"]["kind"] == "only_a"
    assert (found["ids"]["kind"], found["ids"]["a"], found["ids"]["b"]) == ("type", "int64[50]", "int32[50]")
    inf = found["inf"]["detail"]
    assert (inf["largest_absolute"], inf["largest_relative"], inf["a"], inf["b"]) == ("inf", "inf", 1.0, "inf")
    assert inf["place"] == [0]
    nan = found["moments/1"]["detail"]
    assert (nan["nans_only_a"], nan["nans_only_b"], nan["b"], nan["largest_absolute"]) == (0, 1, "nan", None)
    assert (found["zero"]["detail"]["unlike"], found["zero"]["detail"]["equal_numbers"]) == (1, 1)


def test_keys_and_values_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\r"
    a = {evil: torch.zeros(1), f"v{evil}": evil, f"only{evil}": 1, "t": {evil: torch.zeros(2)}, "r": [evil] * 9}
    b = {evil: torch.ones(1), f"v{evil}": 1, "t": {evil: torch.zeros(3)}, "r": [f"{evil}."] * 9}
    save_states(tmp_path, a, b)
    text = call("diff", f"{tmp_path}@1", f"{tmp_path}@2", code=1)
    assert not {"\x1b", "\x07", "\r"} & set(text) and "\\x1b" in text and len(text.splitlines()) == 20
