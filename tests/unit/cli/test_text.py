"""Text from files, on a terminal."""

from __future__ import annotations

from deeppart.cli.commands import printable, printable_lines


def test_control_characters_are_spelled_out() -> None:
    assert printable("a\x1b[2Jb\r\n\u202e\x9b") == "a\\x1b[2Jb\\r\\n\\u202e\\x9b"
    assert printable("Größe 1/2 ✓") == "Größe 1/2 ✓"
    assert printable_lines("a\x07\nb\x1b") == "a\\x07\nb\\x1b"
