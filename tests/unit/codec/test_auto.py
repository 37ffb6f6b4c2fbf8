"""``compression="auto"``: what is measured, what follows from it, and what is told; with times given, not taken."""

from __future__ import annotations

import pytest

from deeppart.codec import AutoCompression
from deeppart.codec.choose import LEAST_BYTES, LEAST_MEASUREMENTS, REGRET_CHECKPOINTS

GB = 1e9


def known(bandwidth: float, *, speed: float = 2 * GB, fraction: float = 0.83, threads: int = 1) -> AutoCompression:
    """Knows float32 and the level "persistent"."""
    auto = AutoCompression(threads)
    auto.note_encoded("float32", 10**9, int(fraction * 10**9), 10**9 / speed)
    for _ in range(LEAST_MEASUREMENTS):
        auto.note_stored("persistent", 10**9, 10**9 / bandwidth)
    return auto


def encodes(auto: AutoCompression, level: str = "persistent", dtype: str = "float32") -> bool:
    chooser, lines = auto.chooser(level, [dtype])
    assert len(lines) == 1 and lines[0].startswith(f"{dtype}: ")
    assert lines[0].startswith(f"{dtype}: raw") != (chooser.codec_for(dtype) is not None)
    return chooser.codec_for(dtype) is not None


@pytest.mark.parametrize(
    ("bandwidth", "speed", "fraction", "threads", "wanted"),
    [
        (0.7 * GB, 2.0 * GB, 0.83, 1, True),  # the storage is what takes long: 17 % less of it
        (3.0 * GB, 2.0 * GB, 0.83, 1, False),  # the codec would be
        (3.0 * GB, 2.0 * GB, 0.83, 2, True),  # two of them would not
        (1.95 * GB, 2.0 * GB, 0.83, 1, False),  # a gain too small to count on
        (1.8 * GB, 2.0 * GB, 0.83, 1, True),
        (0.1 * GB, 2.0 * GB, 0.97, 1, False),  # hardly shrinks
        (0.1 * GB, 0.09 * GB, 0.3, 1, False),  # shrinks a lot, too slowly
    ],
)
def test_what_ends_soonest(bandwidth: float, speed: float, fraction: float, threads: int, wanted: bool) -> None:
    assert encodes(known(bandwidth, speed=speed, fraction=fraction, threads=threads)) is wanted


def test_without_an_idle_processor_encoding_and_writing_take_turns() -> None:
    """2 GB/s and 0.83: worth it overlapped at 1.5 GB/s, in turns only where writing takes several times as long."""
    for bandwidth, overlapped, in_turn in ((1.5, True, False), (0.4, True, False), (0.1, True, True)):
        for spare, wanted in ((True, overlapped), (False, in_turn)):
            auto = AutoCompression(1, spare=spare)
            auto.note_encoded("float32", 10**9, 830_000_000, 0.5)
            for _ in range(LEAST_MEASUREMENTS):
                auto.note_stored("persistent", 10**9, 1 / bandwidth)
            assert encodes(auto) is wanted
            assert ("no idle processor" in auto.chooser("persistent", ["float32"])[1][0]) is not spare


def test_nothing_is_encoded_at_a_level_or_of_a_dtype_that_is_not_known() -> None:
    auto = known(0.1 * GB)
    assert not encodes(auto, "local")
    assert not encodes(auto, dtype="bfloat16")
    assert auto.unknown(["float32", "bfloat16", "int64", "bfloat16"]) == ["bfloat16", "int64"]
    assert "not known yet" in auto.chooser("local", ["float32"])[1][0]
    for _ in range(4):
        auto.note_stored("local", LEAST_BYTES - 1, 1.0)  # too little to tell
    auto.note_stored("local", LEAST_BYTES, 1.0)  # once is not enough
    assert not encodes(auto, "local")
    auto.note_stored("local", LEAST_BYTES, 1.0)
    assert encodes(auto, "local")


def test_levels_and_dtypes_are_judged_one_by_one() -> None:
    auto = known(0.5 * GB)
    for _ in range(LEAST_MEASUREMENTS):
        auto.note_stored("local", 10**9, 1 / 3)
    auto.note_encoded("uint8", 10**9, 10**9, 0.5)
    chooser, lines = auto.chooser("persistent", ["uint8", "float32", "float32"])
    assert chooser.codec_for("float32") is not None and chooser.codec_for("uint8") is None
    assert [line.split(":")[0] for line in lines] == ["float32", "uint8"]
    assert "2.00 GB/s to 0.83 of the size, the level takes 0.50 GB/s: encoded, 17 % sooner" in lines[0]
    assert not encodes(auto, "local")


def test_the_best_that_a_level_has_taken_lately_counts() -> None:
    auto = known(3 * GB)
    for _ in range(3):
        auto.note_stored("persistent", 10**9, 2.0)
        assert not encodes(auto)
    auto.note_stored("persistent", 10**9, 2.0)
    assert encodes(auto)


def test_a_speed_that_is_not_proven_is_believed_in_part() -> None:
    auto = AutoCompression(1)
    for _ in range(LEAST_MEASUREMENTS):
        auto.note_stored("persistent", 10**9, 1 / 1.7)
    auto.note_tried("float32", 10**9, 830_000_000, 0.5)  # 2 GB/s, nothing beside
    assert not encodes(auto)
    auto.note_encoded("float32", 10**9, 830_000_000, 0.5)
    assert encodes(auto)
    for _ in range(2):
        auto.note_encoded("float32", 10**9, 830_000_000, 0.9)
    assert not encodes(auto)


def test_newer_measurements_win() -> None:
    auto = known(0.5 * GB)
    assert encodes(auto)
    for _ in range(6):
        auto.note_encoded("float32", 10**9, 830_000_000, 10.0)
    assert not encodes(auto)


def test_a_level_that_became_slower_is_left_raw_for_a_while() -> None:
    auto = known(0.5 * GB)
    for seconds in (3.0, 2.0):  # the first one took longer
        auto.note_completed("persistent", 10**9, seconds, encoded=False)
    auto.note_completed("persistent", 10**9, 2.05, encoded=True)  # within 5 %
    assert encodes(auto)
    auto.note_completed("persistent", 10**9, 2.3, encoded=True)
    for left in range(REGRET_CHECKPOINTS, 0, -1):
        assert not encodes(auto)
        assert f"for {left} checkpoints" in auto.chooser("persistent", ["float32"])[1][0]
        auto.note_completed("persistent", 10**9, 2.0, encoded=False)
    assert encodes(auto)
