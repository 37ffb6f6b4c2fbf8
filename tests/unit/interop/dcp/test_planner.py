"""The planner for DCP: states that are hard to divide, saved as several ranks would, loaded by DCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from deeppart.interop import load
from deeppart.interop.dcp import BalancedSavePlanner
from tests.unit.interop.dcp.stepping import save_as_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


class Anything:
    """Of no kind that ``weights_only`` knows; equal to others of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything)

    __hash__ = None  # type: ignore[assignment]


def hard() -> dict[Any, Any]:
    torch.manual_seed(2)
    base = torch.randn(200, 60)
    tied = torch.randn(40, 50)
    return {
        "transposed": torch.randn(70, 90).T,
        "every other row": base[::2],
        "columns": base[:, 10:50],
        "at an offset": torch.randn(9000).as_strided((80, 50), (50, 1), 1000),
        "expanded rows": torch.randn(1, 50).expand(60, 50),
        "expanded columns": torch.randn(300, 1).expand(300, 20),
        "channels last": torch.randn(4, 6, 10, 10).to(memory_format=torch.channels_last),
        "tied": [tied, {"other": tied, "view": tied[10:]}],
        "trained": torch.nn.Parameter(torch.randn(100, 30)),
        "empty": torch.zeros(0, 7),
        "hollow": torch.zeros(5, 0, 3),
        "number": torch.tensor(2.5),
        "bool": torch.rand(3000, 5) > 0.5,
        "complex": torch.randn(500, 4, dtype=torch.complex64),
        "conjugate": torch.randn(40, 30, dtype=torch.complex64).conj(),
        "negative": torch.randn(40, 30, dtype=torch.complex64).conj().imag,
        "bf16": torch.randn(3, 3000).bfloat16(),
        "float8": torch.randn(100, 100).to(torch.float8_e4m3fn),
        "uint16": torch.arange(9000, dtype=torch.int32).to(torch.uint16).view(90, 100),
        "int": torch.randint(-(2**62), 2**62, (50, 20)),
        "one row": torch.randn(1, 5000),
        "huge rows": torch.randn(2, 30000),
        "deep": torch.randn(3, 1, 5, 7, 11),
        "nan": torch.full((2000,), float("nan")),
        "values": {"big": 2**200, "text": "ä" * 500, "bytes": b"\0" * 300, "none": None, "pair": (1, 2.5)},
        "object": Anything(),
        7: {1: torch.randn(2000), (2, 3): 5},
    }


def target_of(state: Any) -> Any:
    """The same with other contents; dense."""
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.shape, dtype=state.dtype)
    if isinstance(state, dict):
        return {str(key): target_of(item) for key, item in state.items()}
    return [target_of(item) for item in state] if isinstance(state, list) else None


def check(found: Any, state: Any, path: str = "") -> None:
    if isinstance(state, dict):
        for key, item in state.items():
            check(found[str(key)], item, f"{path}/{key}")
    elif isinstance(state, list):
        for place, item in enumerate(state):
            check(found[place], item, f"{path}/{place}")
    elif isinstance(state, torch.Tensor):
        dense = state.detach().resolve_conj().resolve_neg().contiguous()
        assert found.shape == dense.shape and found.dtype == dense.dtype, path
        assert torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (found, dense))), path
    else:
        assert found == state, path


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_hard_states_come_back_by_dcp_alone(tmp_path: Path, ranks: int) -> None:
    state = hard()
    sizes = save_as_ranks([state] * ranks, tmp_path, lambda rank: BalancedSavePlanner())
    assert max(sizes) < 1.02 * sum(sizes) / len(sizes) + 4096
    found = target_of(state)
    dcp.load(found, storage_reader=FileSystemReader(tmp_path))
    check(found, state)
    del state["object"]
    check(load(tmp_path, [str(key) for key in state]), state)
