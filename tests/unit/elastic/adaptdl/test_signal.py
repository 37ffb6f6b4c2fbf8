"""A signal is noted, and nothing else happens."""

from __future__ import annotations

import os
import signal

from deeppart.elastic.adaptdl._signal import get_exit_flag, listen
from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing


@elastic_multiprocessing
def test_sigterm_is_noted() -> None:
    listen()
    assert not get_exit_flag()
    os.kill(os.getpid(), signal.SIGTERM)
    assert get_exit_flag()
