"""A file that is copied while it is written."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from deeppart.codec import Chooser
from deeppart.save.relay import Relay, SourceLostError
from deeppart.storage.files import DurableFile
from tests.unit.save.parts import recoded, staged

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_a_part_that_is_given_up_ends_the_one_that_follows_it(tmp_path: Path) -> None:
    share = staged(("float32", 1000))
    file = DurableFile(tmp_path / "local")
    relay = Relay(file)
    threading.Timer(0.1, relay.give_up).start()
    with pytest.raises(SourceLostError, match="not completed"):
        recoded(relay, share, Chooser("tensor"))
    file.abort()
    relay.close()


def test_closing_waits_for_no_reader_and_takes_no_descriptor_from_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread reads, one waits for more, when a third closes it."""
    file = DurableFile(tmp_path / "local")
    relay = Relay(file)
    relay.write(b"abcd")
    reading, go_on, found = threading.Event(), threading.Event(), dict[str, Any]()
    preadv = os.preadv

    def slow(*arguments: Any) -> int:
        reading.set()
        assert go_on.wait(30)
        return preadv(*arguments)

    def follow(name: str, offset: int) -> None:
        buffer = bytearray(4)
        try:
            relay.read_into(offset, memoryview(buffer))
            found[name] = bytes(buffer)
        except SourceLostError as error:
            found[name] = error.summary

    monkeypatch.setattr(os, "preadv", slow)
    threads = [threading.Thread(target=follow, args=each) for each in (("reads", 0), ("waits", 4))]
    for thread in threads:
        thread.start()
    assert reading.wait(30)
    descriptors = list(relay._fds.values())
    relay.close()
    threads[1].join(30)
    assert found == {"waits": "the part file to copy was not completed"}
    os.fstat(descriptors[0])  # still open
    go_on.set()
    threads[0].join(30)
    assert found["reads"] == b"abcd" and not relay._fds
    file.abort()
