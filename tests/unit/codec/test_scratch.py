"""Memory that codecs use again: the same for one name and thread, another for every other."""

from __future__ import annotations

import threading

import numpy as np

from deeppart.codec.tensor import Scratch


def lies_in(array: np.ndarray) -> int:
    return array.ctypes.data


def test_a_name_has_one_memory_that_grows_and_is_not_given_back() -> None:
    scratch = Scratch()
    large = scratch.take("planes", 1000, np.uint8)
    small = scratch.take("planes", 100, np.uint32)
    assert large.dtype == np.uint8 and len(large) == 1000
    assert small.dtype == np.uint32 and len(small) == 100 and lies_in(small) == lies_in(large)
    larger = scratch.take("planes", 2000, np.uint16)
    assert len(larger) == 2000 and not np.shares_memory(larger, large), "what was given out before stays whole"
    assert lies_in(scratch.take("planes", 1000, np.uint8)) == lies_in(larger)


def test_names_and_threads_do_not_share() -> None:
    scratch = Scratch()
    mine = scratch.take("planes", 1000, np.uint8)
    assert not np.shares_memory(mine, scratch.take("words", 1000, np.uint8))
    mine[:] = 7
    seen = []

    def other() -> None:
        theirs = scratch.take("planes", 1000, np.uint8)
        theirs[:] = 9
        seen.append(np.shares_memory(mine, theirs))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [False] and (mine == 7).all()
