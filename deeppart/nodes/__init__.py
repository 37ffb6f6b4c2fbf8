"""What nodes do for each other: copies, parity, and their exchange."""
