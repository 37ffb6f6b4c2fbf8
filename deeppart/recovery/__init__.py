"""From the cheapest surviving source back into the live state."""
