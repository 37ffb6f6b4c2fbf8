"""The structure document: what a state looked like, written down and read back."""
