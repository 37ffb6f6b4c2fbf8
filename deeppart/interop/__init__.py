"""Checkpoints of others, and their interfaces: the only package that knows them."""
