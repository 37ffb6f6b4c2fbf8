"""The arithmetic of a bandwidth limit; :class:`deeppart.storage.RateLimit` enforces it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Unused allowance is kept for this many seconds' worth of bytes.
BURST_S = 0.1


def limited_s(nbytes: npt.NDArray[np.float64], bytes_per_s: float) -> npt.NDArray[np.float64]:
    """Seconds until so many bytes, in small pieces, have passed a limit that was idle before; at least 0.

    Example:
        >>> limited_s(np.array([300e6, 5e6]), 100e6).tolist()
        [2.9, 0.0]
    """
    seconds: npt.NDArray[np.float64] = np.maximum(0.0, nbytes / bytes_per_s - BURST_S)
    return seconds
