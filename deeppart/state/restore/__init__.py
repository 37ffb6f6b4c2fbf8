"""From saved leaves into the live state."""
