"""Text from files, made so that it cannot steer the terminal that it is printed on."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text from a file with control characters spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> str:
    """Several lines, each made printable."""
    return "\n".join(printable(line) for line in text.split("\n"))
