"""Stand-ins can be shown, compared, hashed and pickled."""

from __future__ import annotations

import pickle

from deeppart.state.tree.objects import SavedRecord, make_record
from deeppart.state.tree.values import SavedMember


def test_a_member_is_shown_like_one() -> None:
    red = SavedMember("m", "Outer.Color", "RED", 1)
    same = SavedMember("m", "Outer.Color", "RED", 1)
    assert (str(red), repr(red)) == ("Color.RED", "<Outer.Color.RED: 1>") and len({red, same}) == 1
    assert str(SavedMember("m", "Flags", None, 6)) == "Flags.6"
    assert repr(SavedMember("m", "C", "A", None, has_value=False)) == "<C.A>"
    assert pickle.loads(pickle.dumps(red)) == red


def test_a_record_has_the_name_of_its_class() -> None:
    one, other = (make_record("m", "Outer.Config", ("lr",), {"lr": lr, "__class__": 5}) for lr in (1, 2))
    assert type(one) is type(other) and isinstance(one, SavedRecord) and type(one).__name__ == "Config"
    assert vars(one) == {"lr": 1, "__class__": 5} and one != other
    again = pickle.loads(pickle.dumps(one))
    assert again == one and type(again).saved_class == ("m", "Outer.Config", ("lr",))
