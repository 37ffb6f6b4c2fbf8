"""Pure plans: how often, what is sent where, which source is cheapest. No files, clock or ranks."""
