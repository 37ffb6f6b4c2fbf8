"""Damage to a file: bytes overwritten, put in, left out, or moved to another place."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def damaged(draw: st.DrawFn, sound: bytes, *, near_the_end: int = 0) -> bytes:
    """``sound`` with something wrong, unless chance has put in what was there.

    Args:
        near_the_end: so many of the last bytes are hit as often as all the others together: 0 for none.
    """
    places = st.integers(0, len(sound) - 1)
    if near_the_end:
        places |= st.integers(max(0, len(sound) - near_the_end), len(sound) - 1)
    start = draw(places)
    what = draw(st.sampled_from(["overwrite", "insert", "remove", "move"]))
    patch = draw(st.binary(min_size=1, max_size=40))
    result = bytearray(sound)
    if what == "overwrite":
        result[start : start + len(patch)] = patch
    elif what == "insert":
        result[start:start] = patch
    elif what == "remove":
        del result[start : start + len(patch)]
    else:
        result[start : start + len(patch)] = result[: len(patch)]
    return bytes(result)
