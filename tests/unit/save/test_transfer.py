"""A part is written anew for another level: what is raw is encoded, what changed is not passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.codec import Chooser
from deeppart.errors import CorruptFileError
from deeppart.part import FileSource, PartReader
from deeppart.save.encoding import Encoders
from deeppart.save.relay import Relay, SourceLostError
from deeppart.save.transfer import Encoding, Staged, write_part
from deeppart.storage.files import DurableFile
from tests.unit.save.parts import ATTEMPT, recoded, staged

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# --- for another level ------------------------------------------------------------------------------------------------


def written(share: Staged, path: Path, compression: str, only: set[str] | None = None) -> Relay:
    """A complete local part, as the flush sees it."""
    file = DurableFile(path)
    relay = Relay(file)
    relay.complete(write_part(share, relay, Encoding(Chooser(compression, only), Encoders(1)), ATTEMPT, 0))
    file.commit()
    return relay


def test_what_is_raw_is_encoded_and_the_rest_passed_on(tmp_path: Path) -> None:
    share = staged(("float32", 3_000_000), ("bfloat16", 700_000), ("float64", 100_000))
    relay = written(share, tmp_path / "local", "tensor", {"bfloat16"})
    local = PartReader(FileSource(tmp_path / "local"), where="local")
    reader = recoded(relay, share, Chooser("tensor", {"float32"}))
    codecs = {
        dtype.decode(): int(codec) for dtype, codec in zip(reader.chunks["dtype"], reader.chunks["codec"], strict=True)
    }
    assert codecs == {"float64": 0, "float32": 2, "bfloat16": 2}
    raw = b"".join(bytes(reader.read_chunk(i)) for i in range(len(reader.chunks)))
    assert raw == share.data.tobytes()
    assert (reader.chunks["raw_digest"] == local.chunks["raw_digest"]).all()
    relay.close()


def test_a_byte_that_changed_on_the_node_is_not_passed_on(tmp_path: Path) -> None:
    share = staged(("float32", 3_000_000))
    relay = written(share, tmp_path / "local", "none")
    with (tmp_path / "local").open("r+b") as file:
        file.seek(6 << 20)
        file.write(b"\x55\xaa\x55")
    with pytest.raises(CorruptFileError, match="chunk 1 of 3"):
        recoded(relay, share, Chooser("tensor"))
    with (tmp_path / "local").open("r+b") as file:
        file.truncate(5 << 20)
    with pytest.raises(SourceLostError, match="shorter"):
        recoded(relay, share, Chooser("tensor"))
    relay.close()
