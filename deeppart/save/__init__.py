"""A checkpoint's way out: capture, encode, write, protect, drain, commit, retire."""
