"""A file that is copied while it is written."""

from __future__ import annotations

import threading
from pathlib import Path

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
