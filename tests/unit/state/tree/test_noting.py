"""Tensors and arrays are noted with their types and addresses, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.flat import NUMPY, FlatState, ValueLeaf
from deeppart.state.tree.flatten import note_array, note_tensor
from deeppart.state.tree.leaves import is_plain


def test_what_is_read_is_what_the_elements_read_as() -> None:
    tensor = torch.tensor([1 + 2j]).conj()
    flat = FlatState(root=ValueLeaf((), None, 0))
    assert note_tensor(flat, tensor, ("a",), live=True) is tensor
    copied = note_tensor(flat, tensor, ("a",), live=False)
    assert not copied.is_conj() and torch.equal(copied, tensor) and flat.unresolved == {1: tensor}
    note_array(flat, np.zeros((2, 3)).T, ("b",))
    assert flat.types[8:] == [np.dtype("f8"), (3, 2), NUMPY, (8, 24)] and len(flat.pointers) == 3


def test_what_is_not_plain_is_refused_by_name() -> None:
    flat = FlatState(root=ValueLeaf((), None, 0))
    for tensor in (torch.empty(1, device="meta"), torch.ones(2).to_sparse()):
        assert not is_plain(tensor)
        with pytest.raises(UnsupportedLeafError, match="path a/b"):
            note_tensor(flat, tensor, ("a", "b"), live=False)
    with pytest.raises(UnsupportedLeafError, match="path c"):
        note_array(flat, np.array([object()]), ("c",))
