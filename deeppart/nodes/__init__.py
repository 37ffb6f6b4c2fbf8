"""Exchange between nodes: copies and parity."""

from deeppart.nodes.erasure import ReedSolomon, check_available
from deeppart.nodes.exchange.memory import Arena, Bytes, NotBegunError, PartFile, begin_together
from deeppart.nodes.exchange.parity import encode_sets
from deeppart.nodes.exchange.partner import exchange_copies
from deeppart.nodes.exchange.rebuild import Rebuilt, Wanted, padded_bytes, rebuild_parts
from deeppart.nodes.pairing import Protection, protect

__all__ = [
    "Arena",
    "Bytes",
    "NotBegunError",
    "PartFile",
    "Protection",
    "Rebuilt",
    "ReedSolomon",
    "Wanted",
    "begin_together",
    "check_available",
    "encode_sets",
    "exchange_copies",
    "padded_bytes",
    "protect",
    "rebuild_parts",
]
