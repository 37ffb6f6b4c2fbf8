"""The planner for DCP: states that are hard to divide, saved as several ranks would, loaded by DCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex

from deeppart.errors import ConfigError, ReplicaDivergenceWarning
from deeppart.interop.dcp import BalancedSavePlanner, load
from tests.unit.interop.dcp.stepping import save_as_ranks
from tests.unit.sharded_states import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


class Own(torch.Tensor):
    """A subclass that says nothing of how it is saved."""


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
        "values": {"big": 2**200, "text": "ä" * 5000, "bytes": b"\0" * 3000, "none": None, "pair": (1, 2.5)},
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


def evenness(sizes: list[int]) -> float:
    return max(sizes) * len(sizes) / sum(sizes)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("files", ["rank", "node"])
def test_hard_states_come_back_by_dcp_alone(tmp_path: Path, ranks: int, files: Any) -> None:
    state = hard()
    sizes = save_as_ranks([state] * ranks, tmp_path, lambda rank: BalancedSavePlanner(files=files, node=str(rank // 2)))
    writers = [size for size in sizes if size]
    assert len(writers) == (ranks if files == "rank" else (ranks + 1) // 2)
    assert max(writers) < 1.02 * sum(writers) / len(writers) + 4096
    found = target_of(state)
    dcp.load(found, storage_reader=FileSystemReader(tmp_path))
    check(found, state)
    del state["object"]
    check(load(tmp_path, [str(key) for key in state]), state)


@pytest.mark.parametrize(
    ("shape", "ranks"), [((3, 100_000), 2), ((2, 100_000), 5), ((1, 1, 90_000), 4), ((7, 3, 9000), 4), ((100_003,), 6)]
)
def test_one_tensor_alone_is_even_whatever_its_rows_are(tmp_path: Path, shape: tuple[int, ...], ranks: int) -> None:
    state = {"w": torch.randn(shape)}
    assert evenness(save_as_ranks([state] * ranks, tmp_path, lambda rank: BalancedSavePlanner())) < 1.03
    check(load(tmp_path), state)


def test_without_flattening(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.randn(1000, 10), "inner": {"x": 5, "t": torch.ones(3)}}
    sizes = save_as_ranks([state] * 2, tmp_path, lambda rank: BalancedSavePlanner(flatten_state_dict=False))
    assert evenness(sizes) < 1.1
    found: dict[str, Any] = {"w": torch.zeros(1000, 10), "inner": None}
    load_planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(found, checkpoint_id=tmp_path, planner=load_planner)
    assert torch.equal(found["w"], state["w"]) and same(found["inner"], state["inner"])


def test_ranks_with_different_keys_or_none_at_all(tmp_path: Path) -> None:
    shared = {"both": torch.randn(3000, 9)}
    states: list[dict[str, Any]] = [
        {**shared, "first": torch.randn(10_000)},
        {},
        {**shared, "value": "x" * 100},
        {"last": torch.randn(5000), "value": "x" * 100},
    ]
    sizes = save_as_ranks(states, tmp_path, lambda rank: BalancedSavePlanner())
    assert sizes[1] == 0 and sizes[2] > sizes[0] - 40_000  # the first has less of what both could write
    found = load(tmp_path)
    assert same(found, {**states[0], "last": states[3]["last"], "value": "x" * 100})


@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_to_save(tmp_path: Path, ranks: int) -> None:
    save_as_ranks([{}] * ranks, tmp_path, lambda rank: BalancedSavePlanner())
    assert load(tmp_path) == {}


def test_values_alone_are_shared_out_by_their_bytes(tmp_path: Path) -> None:
    state = {"long": "x" * 300_000, **{f"short {n}": "y" * 30_000 for n in range(10)}}
    sizes = save_as_ranks([state] * 2, tmp_path, lambda rank: BalancedSavePlanner())
    assert evenness(sizes) < 1.1
    assert load(tmp_path) == state


def test_saved_whole_by_the_lowest_rank_if_asked_for(tmp_path: Path) -> None:
    sizes = save_as_ranks([hard()] * 3, tmp_path, lambda rank: BalancedSavePlanner(dedup_save_to_lowest_rank=True))
    assert sizes[0] > 0 and sizes[1:] == [0, 0]


def test_tensors_that_differ_are_not_mixed(tmp_path: Path) -> None:
    states = [
        {"same": torch.ones(5000), "rng": torch.full((5056,), rank, dtype=torch.uint8), "z": torch.ones(2000 + rank)}
        for rank in range(3)
    ]
    with pytest.warns(ReplicaDivergenceWarning, match=r"rng \(of rank 1\), z \(of rank 1\)"):
        save_as_ranks(states, tmp_path, lambda rank: BalancedSavePlanner())
    found = load(tmp_path)
    assert same(found, states[0])


def test_subclasses_are_not_cut(tmp_path: Path) -> None:
    state = {"own": torch.randn(15_000).as_subclass(Own), "w": torch.randn(4000)}
    save_as_ranks([state] * 2, tmp_path, lambda rank: BalancedSavePlanner())
    metadata = FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    chunks = {name: len(found.chunks) for name, found in metadata.items()}  # type: ignore[union-attr]
    assert chunks == {"own": 1, "w": 1}


def test_pieces_are_written_from_where_they_lie(tmp_path: Path) -> None:
    """DCP's writer copies what is a view of something larger."""
    state = {"w": torch.randn(4000, 50), "t": torch.randn(50, 4000).T}
    found: dict[str, list[torch.Tensor]] = {"w": [], "t": []}

    class Watched(BalancedSavePlanner):
        def lookup_object(self, index: MetadataIndex) -> Any:
            found[index.fqn].append(super().lookup_object(index))
            return found[index.fqn][-1]

    save_as_ranks([state] * 3, tmp_path, lambda rank: Watched())
    check(load(tmp_path), state)
    pieces = [piece for piece in found["w"] if piece.shape != (4000, 50)]
    assert pieces and all(piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces)
    begin = state["w"].data_ptr()
    assert all(begin <= piece.data_ptr() < begin + state["w"].nbytes for piece in pieces)


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="files"):
        BalancedSavePlanner(files="host")  # type: ignore[arg-type]


@pytest.mark.parametrize("no_dist", [False, True])
def test_in_one_process(tmp_path: Path, no_dist: bool) -> None:
    state = hard()
    dcp.save(state, checkpoint_id=tmp_path, planner=BalancedSavePlanner(), no_dist=no_dist)
    found = target_of(state)
    dcp.load(found, checkpoint_id=tmp_path)
    check(found, state)
