"""The stores at which ranks meet: env://, process groups, and what is neither."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch.distributed as dist

from deeppart.comm.sockets import stores
from deeppart.config import Launch
from deeppart.errors import CommError, LaunchError
from tests.ports import free_port


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=20))
    yield dist.group.WORLD
    dist.destroy_process_group()


def works(store: Any) -> None:
    """Everything that a meeting uses."""
    store.set("a", "b")
    assert store.get("a") == b"b" and store.check(["a"]) and not store.check(["none"])
    counter = uuid4().hex
    assert [store.add(counter, amount) for amount in (0, 2, 0)] == [0, 2, 2]
    assert store.delete_key("a") and not store.check(["a"])


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the training may initialize torch.distributed there before or after."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    place = stores.at_environment(Launch("env://", 0, 1, False, ("127.0.0.1", port)))
    assert (place.rank, place.size, place.interface()) == (0, 1, "127.0.0.1")
    works(place.open_store(20.0))
    dist.init_process_group("gloo", rank=0, world_size=1, timeout=datetime.timedelta(seconds=20))
    try:
        works(place.open_store(20.0))
    finally:
        dist.destroy_process_group()
    works(place.open_store(20.0))


def test_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    place = stores.at_environment(Launch("env://", 1, 2, False, ("no-such-host.invalid", 1)))
    with pytest.raises(CommError, match="MASTER_ADDR cannot be reached") as caught:
        place.interface()
    assert "no-such-host.invalid:1" in str(caught.value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0,ib1")
    assert place.interface() == "ib0"


def test_a_process_group(group: Any) -> None:
    for comm in (None, group, dist.new_group([0])):
        place = stores.at_group(comm)
        assert (place.rank, place.size) == (0, 1) and place.interface()
        works(place.open_store(20.0))
    assert stores.at_group(group) is stores.at_group(None) is not stores.at_group(dist.new_group([0]))
    assert stores.is_group(group) and not stores.initialized(), "one process is no job of several"


def test_groups_that_this_process_is_not_in(group: Any) -> None:
    outside = dist.GroupMember.NON_GROUP_MEMBER
    assert stores.is_group(outside)
    with pytest.raises(LaunchError, match="not in the process group"):
        stores.at_group(outside)
