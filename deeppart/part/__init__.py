"""The bytes of part files (one rank's encoded share each), parity files, manifests and suspect records.

Written to a sink and read from a source, without tensors, communication or directories. Formats: docs/format.md.
"""

from deeppart.part.fields import is_hex32
from deeppart.part.format import (
    DEFAULT_CHUNK_BYTES,
    FLAG_PER_RANK,
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    MAX_LEAF_BYTES,
    MAX_WORLD_SIZE,
    RANK_TABLE,
    SPAN_DTYPE,
    PartHeader,
    parse_part_file_name,
    parse_step_name,
    part_file_name,
    part_key,
    step_name,
)
from deeppart.part.json_text import parse_json
from deeppart.part.manifest import decode_manifest, encode_manifest
from deeppart.part.parity import ParityReader, ParityWriter, is_parity_file_name, parity_file_name, set_id, stripes_of
from deeppart.part.reader import BadChunks, PartReader
from deeppart.part.signing import KeyFiles, Signing, check_strong_digest, read_key_files, strong_digest
from deeppart.part.source import FileSource, MemorySource, StoredBytes
from deeppart.part.suspects import decode_suspicion, encode_suspicion
from deeppart.part.writer import ChunkPlace, PartSummary, PartWriter, Sink

__all__ = [
    "DEFAULT_CHUNK_BYTES",
    "FLAG_PER_RANK",
    "HEADER_BYTES",
    "MAX_CHUNK_BYTES",
    "MAX_LEAF_BYTES",
    "MAX_WORLD_SIZE",
    "RANK_TABLE",
    "SPAN_DTYPE",
    "BadChunks",
    "ChunkPlace",
    "FileSource",
    "KeyFiles",
    "MemorySource",
    "ParityReader",
    "ParityWriter",
    "PartHeader",
    "PartReader",
    "PartSummary",
    "PartWriter",
    "Signing",
    "Sink",
    "StoredBytes",
    "check_strong_digest",
    "decode_manifest",
    "decode_suspicion",
    "encode_manifest",
    "encode_suspicion",
    "is_hex32",
    "is_parity_file_name",
    "parity_file_name",
    "parse_json",
    "parse_part_file_name",
    "parse_step_name",
    "part_file_name",
    "part_key",
    "read_key_files",
    "set_id",
    "step_name",
    "stripes_of",
    "strong_digest",
]
