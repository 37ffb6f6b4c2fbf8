"""What a live object cannot take is told before anything is touched."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.testing.states import difference
from tests.unit.trained import network, save_and_restore, train


def test_an_optimizer_that_has_stepped_cannot_unlearn_it(tmp_path: Path) -> None:
    model, live = network(1), network(2)
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(live.parameters())
    train(live, other, 1)
    before = copy.deepcopy((live.state_dict(), other.state_dict()))
    with pytest.raises(deeppart.StructureMismatchError, match="o/state/0"):
        save_and_restore(tmp_path, {"m": model, "o": optimizer}, {"m": live, "o": other})
    assert difference(before, (live.state_dict(), other.state_dict())) is None


@pytest.mark.parametrize(
    ("saved", "live", "todo"),
    [
        (torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, 2)), r'rename={"m/\*": "m/0.\*"}'),
        (torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.nn.Linear(3, 2), r'rename={"m/0.\*": "m/\*"}'),
        (torch.nn.Linear(3, 2), torch.nn.ParameterList([torch.zeros(2)]), "build the module as it was"),
        (torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).bfloat16(), r"converted once it is restored, module.to\(dtype\)"),
        (torch.nn.Linear(3, 2), torch.nn.Linear(3, 1), "shapes in training"),
    ],
)
def test_a_module_that_does_not_fit_is_told_how_to(tmp_path: Path, saved: Any, live: Any, todo: str) -> None:
    with pytest.raises(deeppart.DeeppartError, match=f"to do: .*{todo}"):
        save_and_restore(tmp_path, {"m": saved}, {"m": live})


@pytest.mark.parametrize(("last", "named"), [("b", True), ("c", True), ("b", False)])
def test_parameters_in_another_order(tmp_path: Path, last: str, named: bool) -> None:
    """torch numbers them; with their names, it is seen that one would get the state of another."""

    def made(names: str, wrapper: str = "") -> Any:
        parameters = [(wrapper + name, torch.nn.Parameter(torch.full((2,), float(ord(name))))) for name in names]
        optimizer = torch.optim.AdamW(parameters if named else [parameter for _, parameter in parameters])
        torch.stack([parameter for _, parameter in parameters]).square().sum().backward()
        optimizer.step()
        return optimizer

    saved, live, alike = made("ab"), made(f"{last}a"), made("ab", "module.")
    before = copy.deepcopy(live.state_dict())
    if named:
        with pytest.raises(deeppart.StructureMismatchError, match=r"'a', 'b' .*\n.*'[bc]', 'a' .*\n.*path o"):
            save_and_restore(tmp_path, {"o": saved}, {"o": live})
        assert difference(before, live.state_dict()) is None
    else:
        save_and_restore(tmp_path, {"o": saved}, {"o": live})
        assert difference(saved.state_dict(), live.state_dict()) is None
    save_and_restore(tmp_path / "alike", {"o": saved}, {"o": alike})
    assert difference(saved.state_dict()["state"], alike.state_dict()["state"]) is None


def test_texts_for_the_numbers_of_parameters_are_not_lost_without_a_word(tmp_path: Path) -> None:
    """As DCP saves a state dict: the optimizer would take it, and find none of its moments."""
    model, live = network(1), network(2)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    saved = optimizer.state_dict()
    saved["state"] = {str(number): state for number, state in saved["state"].items()}
    with pytest.raises(deeppart.StructureMismatchError, match="texts for the numbers of parameters: o"):
        save_and_restore(tmp_path, {"o": saved}, {"o": torch.optim.Adam(live.parameters())})
