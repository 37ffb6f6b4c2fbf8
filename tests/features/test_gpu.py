"""State on a GPU: captured through pinned memory on a side stream, restored into device memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict

import deeppart
from deeppart.interop.dcp import (
    BalancedSavePlanner,
    StorageReader,
    StorageWriter,
    TensorCodecExtension,
    extension_registry,
)

pytestmark = pytest.mark.gpu


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.BatchNorm1d(4096), torch.nn.Linear(4096, 9)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()
    return model, optimizer


def test_round_trip_of_device_tensors(tmp_path: Path) -> None:
    model, optimizer = trained()
    big = torch.randn(40_000_000, device="cuda")  # several device pieces
    state = {
        "model": model,
        "optimizer": optimizer,
        "big": big,
        "strided": torch.randn(300, 500, device="cuda").t(),
        "half": torch.randn(70_000, device="cuda").bfloat16(),
        "host": torch.randn(1000),
        "tied": big[100:200],
    }
    expected = [leaf.clone() for leaf in (big, state["strided"], state["half"], *model.state_dict().values())]
    moments = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck:
        ck.checkpoint(state, step=1).wait(timeout=200)
        with torch.no_grad():
            for leaf in (big, state["strided"], state["half"], *model.state_dict().values()):
                leaf.zero_()
        assert ck.restore(state) == 1
        fresh_model, fresh_optimizer = trained()
        fresh_state: dict[str, Any] = {**state, "model": fresh_model}
        fresh_state["optimizer"] = torch.optim.AdamW(fresh_model.parameters())
        del fresh_optimizer
        assert ck.restore(fresh_state) == 1
    found = (big, state["strided"], state["half"], *model.state_dict().values())
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    restored = fresh_state["optimizer"].state_dict()["state"][0]["exp_avg"]
    assert restored.is_cuda and torch.equal(restored, moments)
    loaded = deeppart.load(tmp_path)
    assert loaded["big"].device.type == "cpu" and torch.equal(loaded["big"].cuda(), expected[0])
    assert loaded["tied"].data_ptr() == loaded["big"][100:].data_ptr()


def test_what_is_queued_before_is_saved_and_what_comes_after_is_not(tmp_path: Path) -> None:
    state = {"w": torch.zeros(50_000_000, device="cuda")}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 0})) as ck:
        for step in range(1, 6):
            for _ in range(20):
                state["w"] += 1  # still running on the device when checkpoint() is called
            ck.checkpoint(state, step=step)
            state["w"] += 1000
        ck.close()
    for step in range(1, 6):
        loaded = deeppart.load(tmp_path, step=step)["w"]
        assert torch.all(loaded == 20 * step + 1000 * (step - 1)), step


def test_staging_is_pinned_and_reused(tmp_path: Path) -> None:
    state = {"w": torch.zeros(5_000_000, device="cuda")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck:
            places = set()
            for step in range(1, 4):
                ck.checkpoint(state, step=step).wait(timeout=200)
                staged = ck._background.staging.reserve(20_000_000, pinned=True)
                assert staged.is_pinned()
                places.add(staged.data_ptr())
    assert len(places) == 1


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank, with a backend for the host, which ``dcp.async_save`` wants."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state_for_dcp(scale: float = 1.0) -> dict[str, Any]:
    torch.manual_seed(4)
    model = torch.nn.Linear(700, 900).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 700, device="cuda")).sum().backward()
    optimizer.step()
    found, moments = get_state_dict(model, optimizer)
    state = {"model": found, "optimizer": moments, "half": torch.randn(5000, device="cuda").bfloat16(), "epoch": 3}
    for tensor in tensors_of(state):
        tensor.detach().mul_(scale)
    return state


def tensors_of(item: Any) -> list[torch.Tensor]:
    if isinstance(item, dict):
        return [tensor for each in item.values() for tensor in tensors_of(each)]
    return [item] if isinstance(item, torch.Tensor) else []


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_device_tensors_by_way_of_dcp(tmp_path: Path) -> None:
    """Through our writer and reader, and through DCP's own with our planner and codec."""
    expected = state_for_dcp()
    extension = TensorCodecExtension()
    with StorageWriter(tmp_path / "ours", timeout=100.0) as writer:
        for step in (1, 2):
            changing = state_for_dcp()
            saving: Any = dcp.async_save(changing, checkpoint_id=str(step), storage_writer=writer)
            for tensor in tensors_of(changing):
                tensor.detach().add_(7)  # after the call: not saved
            saving.result(100)
        dcp.save(expected, checkpoint_id=tmp_path / "planned", planner=BalancedSavePlanner())
        coded = FileSystemWriter(tmp_path / "coded", _extensions=[extension])
        dcp.save(expected, storage_writer=coded)
        readers: list[Any] = [
            StorageReader(writer),
            StorageReader(tmp_path / "ours"),
            FileSystemReader(tmp_path / "planned"),
            FileSystemReader(tmp_path / "coded", _extension_registry=extension_registry()),
        ]
        for reader in readers:
            live = state_for_dcp(0.0)
            places = [tensor.data_ptr() for tensor in tensors_of(live)]
            dcp.load(live, storage_reader=reader)
            assert [tensor.data_ptr() for tensor in tensors_of(live)] == places
            assert all(map(torch.equal, tensors_of(live), tensors_of(expected))), reader
    found = deeppart.load(tmp_path / "ours")
    assert torch.equal(found["half"], expected["half"].cpu())
