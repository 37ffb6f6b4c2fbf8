"""The stripes into which the parts of a parity set are cut, and the member for each block of parity.

A set has G members, of which m may be lost; k = G - m. Each part is cut into rows of k blocks. In every row there are
G stripes; stripe s takes block i of its row from member (s + m + i) mod G, for i = 0 .. k-1, and the m blocks of
parity computed from these k blocks are stored by members s, s+1, ..., s+m-1 (mod G). So

* a stripe never has two blocks on one member: the loss of a member costs every stripe at most one block;
* every block of every part is in exactly one stripe;
* every member encodes one stripe per row (number s is encoded by member s) and stores m blocks of parity per row:
  the overhead is m / k of the longest part, and the work is equal.

Parts shorter than the longest count as filled up with zeros, which are neither sent nor stored. The blocks of the
last row are only as long as needed, so that rounding costs less than :data:`ALIGNMENT` times m bytes per member.
This is the rotated layout of RAID-5 and RAID-6 (Patterson, Gibson and Katz, 1988), with nodes for disks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: Blocks are multiples of this many bytes, for the vector units.
ALIGNMENT = 64
#: Longest block. Shorter ones make messages too small to be fast in shared memory, longer ones leave the links of a
#: network idle between them (docs/benchmarks.md).
MOST_BLOCK_BYTES = 2 << 20
#: Memory for blocks that encoding may take, in bytes.
MEMORY_BYTES = 64 << 20
#: Rows of blocks that are on their way, or being encoded, at a time.
ROWS_AT_ONCE = 4
_BLOCK_STEP_BYTES = 64 << 10
#: The code works over bytes, in the field of 256 elements, which is enough for so many members.
MOST_MEMBERS = 255


def block_bytes_for(members: int) -> int:
    """Length of a full block, such that :data:`ROWS_AT_ONCE`, sent and received, fit into :data:`MEMORY_BYTES`."""
    fitting = MEMORY_BYTES // (2 * members * ROWS_AT_ONCE) // _BLOCK_STEP_BYTES * _BLOCK_STEP_BYTES
    return max(_BLOCK_STEP_BYTES, min(MOST_BLOCK_BYTES, fitting))


@dataclass(frozen=True, slots=True)
class Stripes:
    """The stripes of one parity set.

    Attributes:
        members: G.
        tolerate: m.
        block_bytes: length of the blocks of every row but the last, a multiple of ALIGNMENT.
        longest_bytes: length of the longest part.
    """

    members: int
    tolerate: int
    block_bytes: int
    longest_bytes: int

    @property
    def data_blocks(self) -> int:
        """k: blocks of data in a stripe, and blocks of a part in a row."""
        return self.members - self.tolerate

    @property
    def rows(self) -> int:
        """Number of rows."""
        return -(-self.longest_bytes // (self.data_blocks * self.block_bytes))

    def length(self, row: int) -> int:
        """Length of the blocks of a row, in bytes."""
        rest = self.longest_bytes - row * self.data_blocks * self.block_bytes
        each = -(-rest // self.data_blocks)
        return min(self.block_bytes, -(-each // ALIGNMENT) * ALIGNMENT)

    def start(self, row: int, block: int) -> int:
        """The first byte of a block in its part."""
        return row * self.data_blocks * self.block_bytes + block * self.length(row)

    def parity_start(self, row: int, index: int) -> int:
        """The first byte of parity block ``index`` of a row in a member's parity."""
        return row * self.tolerate * self.block_bytes + index * self.length(row)

    @property
    def parity_bytes(self) -> int:
        """Parity that each member stores, in bytes."""
        return 0 if not self.rows else self.parity_start(self.rows - 1, self.tolerate)

    def source(self, stripe: int, block: int) -> int:
        """The member whose block ``block`` is in a stripe."""
        return (stripe + self.tolerate + block) % self.members

    def stripe_of(self, member: int, block: int) -> int:
        """The stripe that block ``block`` of a member is in."""
        return (member - self.tolerate - block) % self.members

    def keeper(self, stripe: int, index: int) -> int:
        """The member that stores parity block ``index`` of a stripe."""
        return (stripe + index) % self.members

    def kept_stripe(self, member: int, index: int) -> int:
        """The stripe whose parity block ``index`` a member stores."""
        return (member - index) % self.members

    def filled(self, row: int, block: int, part_bytes: int) -> int:
        """The number of bytes of a block that its part has; the rest counts as zeros."""
        return max(0, min(self.length(row), part_bytes - self.start(row, block)))

    def can_rebuild(self, lost: int, data: Collection[int], parity: Collection[int]) -> bool:
        """True if a member's part can be computed."""
        k = self.data_blocks
        for block in range(k):
            stripe = self.stripe_of(lost, block)
            found = sum(self.source(stripe, i) in data for i in range(k) if i != block)
            found += sum(self.keeper(stripe, j) in parity for j in range(self.tolerate))
            if found < k:
                return False
        return True
