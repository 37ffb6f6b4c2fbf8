"""What makes a life the same every time: names that the library draws, and what it measures, come from a key.

The library draws the names of sessions and lineages (``uuid.uuid4``), and ``compression="auto"`` goes by how fast
things are. Both are drawn from a key here, in the processes of a campaign alone. What threads do meanwhile, and when,
stays as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from deeppart.codec import AutoCompression

_chooser = AutoCompression.chooser


@contextlib.contextmanager
def names_from(key: str) -> Iterator[None]:
    """Inside, the n-th name that this process draws depends on the key and on n alone."""
    real, lock, drawn = uuid.uuid4, threading.Lock(), 0

    def name() -> uuid.UUID:
        nonlocal drawn
        with lock:
            drawn += 1
            digest = hashlib.blake2b(f"{key} name {drawn}".encode(), digest_size=16).digest()
        return uuid.UUID(bytes=digest, version=4)

    uuid.uuid4 = name
    try:
        yield
    finally:
        uuid.uuid4 = real


@contextlib.contextmanager
def encodings_from(key: str) -> Iterator[None]:
    """Inside, what "auto" encodes is drawn for every level and part anew: states this small tell it nothing."""
    turns: Counter[str] = Counter()
    drawing = threading.local()
    judge = AutoCompression._judge

    def chooser(self: AutoCompression, level: str, dtypes: Iterable[str]) -> Any:
        turns[level] += 1
        drawing.rng = random.Random(f"{key} encoding {level} {turns[level]}")
        return _chooser(self, level, dtypes)

    AutoCompression.chooser = chooser  # type: ignore[method-assign]
    AutoCompression._judge = lambda *_: (drawing.rng.random() < 0.5, "drawn")  # type: ignore[method-assign]
    try:
        yield
    finally:
        AutoCompression.chooser = _chooser  # type: ignore[method-assign]
        AutoCompression._judge = judge  # type: ignore[method-assign]


def place_of(key: object, name: str) -> bytes:
    """Where a name comes in an order that depends on the key and on the name, and on nothing else there is."""
    return hashlib.blake2b(f"{key}:{name}".encode(), digest_size=16).digest()
