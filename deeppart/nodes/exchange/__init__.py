"""Background exchange between nodes: copies of parts, parity, and rebuilding parts from them.

Everything here is an operation (:mod:`deeppart.comm.base`). Ranks that take part in several exchanges do them in the
same order everywhere, so that the first one not finished can always go on.
"""
