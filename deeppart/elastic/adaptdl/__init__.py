"""AdaptDL's names over this library, for scripts that were written for AdaptDL (https://github.com/petuum/adaptdl).

    import deeppart.elastic.adaptdl as adaptdl
    import deeppart.elastic.adaptdl.torch as adl

Names, arguments and behaviour are AdaptDL's; new scripts are better off with :mod:`deeppart.elastic`. Where the
environment has none of AdaptDL's variables, the launcher's are used, so such scripts run under torchrun, srun and
``deeppart elastic-run``. Differences: docs/elastic-adaptdl.md.

Source: A. Qiao et al., Pollux, OSDI 2021; AdaptDL, Apache License 2.0.
"""

from __future__ import annotations

from . import checkpoint, collective, env, goodput, reducer, torch

__all__ = ["checkpoint", "collective", "env", "goodput", "reducer", "torch"]
