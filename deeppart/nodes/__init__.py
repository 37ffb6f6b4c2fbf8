"""Exchange between nodes: copies and parity."""
