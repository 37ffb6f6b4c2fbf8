"""Background exchanges between nodes: copies of parts, parity, and parts rebuilt from parity.

Everything here is an operation (:mod:`deeppart.comm.base`). All ranks run their exchanges in the same global order, so
that the first unfinished one can always proceed.
"""
