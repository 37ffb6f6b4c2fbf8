"""Checkpoints of others, trainers, and their interfaces: the only package that knows them.

Each module imports the library that it is for; nothing in deeppart imports these modules.
"""
