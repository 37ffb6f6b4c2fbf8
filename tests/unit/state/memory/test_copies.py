"""Copies out of memory that may be gone."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from deeppart.state.memory import copies as safe_copy

#: One worker runs all of these, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("memory")


# --- copies that bear freed memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [True, False])
def test_careful_copies(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    if not allowed:
        monkeypatch.setattr(safe_copy, "_writev", None)
    source, target = torch.randint(0, 255, (3_000_000,), dtype=torch.uint8), torch.zeros(3_000_000, dtype=torch.uint8)
    assert safe_copy.copy_memory(target.data_ptr(), source.data_ptr(), 3_000_000)
    assert torch.equal(source, target)
    places = np.arange(5000) * 571
    rows = safe_copy.gather_memory(places + source.data_ptr(), 16)
    assert rows is not None and (rows.reshape(-1, 16) == source.numpy()[places[:, None] + np.arange(16)]).all()
    lengths = np.arange(100) % 7
    found = safe_copy.gather_memory(places[:100] + source.data_ptr(), lengths)
    expected = [source.numpy()[at : at + length] for at, length in zip(places, lengths.tolist(), strict=False)]
    assert found is not None and np.array_equal(found, np.concatenate(expected))
    empty = safe_copy.gather_memory(np.zeros(0, dtype=np.int64), 16)
    assert empty is not None and empty.shape == (0,)


def test_careful_copies_of_what_is_not_mapped() -> None:
    target = torch.zeros(3_000_000, dtype=torch.uint8)
    gone = mmap.mmap(-1, 3_000_000)
    address = torch.frombuffer(gone, dtype=torch.uint8).data_ptr()
    gone.close()
    assert not safe_copy.copy_memory(target.data_ptr(), address, 3_000_000)
    assert safe_copy.gather_memory(np.array([target.data_ptr(), 4096, address]), 16) is None
