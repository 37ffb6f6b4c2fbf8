"""AdaptDL's API over :mod:`deeppart.elastic`, for scripts written for AdaptDL.

    import deeppart.elastic.adaptdl as adaptdl
    import deeppart.elastic.adaptdl.torch as adl

Without AdaptDL's environment variables the launcher's are used, so scripts also run under torchrun, srun and
``deeppart run``. Differences from AdaptDL: docs/elastic-adaptdl.md.

Source: A. Qiao et al., Pollux, OSDI 2021; AdaptDL, Apache License 2.0, https://github.com/petuum/adaptdl.
"""

from __future__ import annotations

from . import checkpoint, collective, env, torch

__all__ = ["checkpoint", "collective", "env", "torch"]
