"""Tensors are told apart without being kept alive."""

from __future__ import annotations

import gc
import weakref

import torch

from deeppart.state.compare.optimizers import TensorIdentity


def test_a_tensor_is_itself_and_no_other_one() -> None:
    tensor = torch.zeros(4)
    identity = TensorIdentity(tensor)
    assert identity.is_of(tensor)
    for other in (torch.zeros(4), tensor[:], tensor.detach(), tensor.view(2, 2), 5, None):
        assert not identity.is_of(other)


def test_with_another_storage_it_is_not_the_tensor_that_it_was() -> None:
    tensor = torch.zeros(4)
    identity = TensorIdentity(tensor)
    tensor.add_(1)
    assert identity.is_of(tensor), "what was written to it is another matter"
    tensor.data = torch.zeros(4)
    assert not identity.is_of(tensor)


def test_nothing_is_kept_alive_and_the_tensor_can_be_swapped() -> None:
    tensor, other = torch.zeros(4), torch.ones(4)
    identity = TensorIdentity(tensor)
    torch.utils.swap_tensors(tensor, other)  # refuses those with weak references
    assert not identity.is_of(tensor)
    kept = TensorIdentity(other)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None and not kept.is_of(torch.zeros(4))
