"""Shipped with the library for those who test levels or states of their own, and for our own tests.

``states`` compares and clones nested states bit by bit, ``levels`` is the suite that every storage level passes,
``faults`` makes the operating system refuse chosen storage operations, ``strategies`` draws states for Hypothesis (the
only module that imports it).
"""
