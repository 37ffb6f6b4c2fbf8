"""Signatures: tags that only holders of a key can make, over everything that determines a checkpoint's bytes.

A tag covers the first line and the document of a manifest, or the header and the index of a part. The index of a signed
part has a *strong digest* of each chunk's encoded bytes: SHA-256 (FIPS 180-4), for which it is infeasible to find other
bytes. So one tag covers the identity of the part and each of its chunks, also those stored in bases. Layout:
docs/format.md; limits of signatures: docs/failure-model.md.

Keys are never written, logged or shown: the repr of an object contains only their number.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Final

from deeppart.config import LEAST_SECRET_BYTES, MOST_SECRET_BYTES, read_secret
from deeppart.errors import SignatureError

TAG_BYTES: Final = 32
STRONG_DIGEST_BYTES: Final = 32

#: Purposes of tags (BLAKE2's personalization, 16 bytes at most): a tag for one is not valid for another.
MANIFEST: Final = b"dpp manifest"
PART: Final = b"dpp part"
_KEY, _SAME = b"dpp key", b"dpp same key"

#: The ``sign_key_file`` setting: one or several files. The first key signs, all of them verify; None for no keys.
KeyFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None

_OTHER_KEY = (
    "if the key was changed, name the earlier one in `sign_key_file`, too, after the new one; otherwise somebody has "
    "forged the file, or damaged it: use another copy or an earlier step"
)
_UNSIGNED = (
    "use another copy or an earlier step; files written before there was a key can be read without one, if all who "
    "can write to the directory are trusted"
)


class Signing:
    """Signs with the first of its keys, and accepts signatures by any of them."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(LEAST_SECRET_BYTES <= len(each) <= MOST_SECRET_BYTES for each in secrets):
            raise ValueError(
                f"keys are {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes long, and there is at least one"
            )
        self._keys = tuple(blake2b(secret, person=_KEY).digest() for secret in secrets)

    def __repr__(self) -> str:
        return f"<Signing with {len(self._keys)} key{'s' if len(self._keys) > 1 else ''}>"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled")

    def tag(self, purpose: bytes, *pieces: bytes | memoryview) -> bytes:
        """Return the tag of the concatenated ``pieces``: BLAKE2b-256 with the first key, :data:`TAG_BYTES` long."""
        return _tag(self._keys[0], purpose, pieces)

    def accepts(self, tag: bytes, purpose: bytes, *pieces: bytes | memoryview) -> bool:
        """True if the tag was made with one of the keys."""
        return any(hmac.compare_digest(tag, _tag(key, purpose, pieces)) for key in self._keys)

    def check(self, tag: bytes | None, purpose: bytes, *pieces: bytes | memoryview, what: str, where: str) -> None:
        """Raise SignatureError unless the tag was made with one of the keys."""
        expected = "a signature by a key of `sign_key_file`"
        if tag is None:
            raise SignatureError(f"{what} is not signed", expected=expected, where=where, todo=_UNSIGNED)
        if not self.accepts(tag, purpose, *pieces):
            found = "it was signed with another key, or changed since"
            summary = f"the signature of {what} does not hold"
            raise SignatureError(summary, expected=expected, found=found, where=where, todo=_OTHER_KEY)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """For each key a keyed digest of a constant, in hexadecimal, to find out whether ranks have the same keys."""
        return tuple(_tag(key, _SAME, ()).hex() for key in self._keys)


def _tag(key: bytes, purpose: bytes, pieces: Sequence[bytes | memoryview]) -> bytes:
    state = blake2b(digest_size=TAG_BYTES, key=key, person=purpose)
    for piece in pieces:
        state.update(piece)
    return state.digest()


def read_key_files(files: KeyFiles) -> Signing | None:
    """Read the keys of ``sign_key_file``; None if there are none."""
    if files is None:
        return None
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    return Signing([read_secret(Path(each).absolute()) for each in paths]) if paths else None


def strong_digest(encoded: bytes | memoryview) -> bytes:
    """Return the SHA-256 of a chunk's encoded bytes. Releases the GIL; 1.6 GB/s if the CPU has SHA instructions."""
    return sha256(encoded).digest()


def check_strong_digest(encoded: bytes | memoryview, expected: bytes, *, where: str) -> None:
    """Raise SignatureError unless a chunk's encoded bytes have the digest in a signed index."""
    if strong_digest(encoded) != expected:
        raise SignatureError(
            "the strong digest of a chunk does not hold: someone has changed the chunk and corrected its other digest",
            where=where,
            todo="use another copy or an earlier step, and find out who can write to the directory",
        )
