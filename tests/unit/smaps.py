"""What the kernel says of a mapping of this process."""

from __future__ import annotations

from pathlib import Path


def smaps_bytes(address: int, field: str) -> int:
    """A field of the mapping that an address lies in, such as "Rss", in bytes."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            start, end = (int(part, 16) for part in head.split("-"))
            inside = start <= address < end
        elif inside and line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"no such mapping, or no {field} of it")
