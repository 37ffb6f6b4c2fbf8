"""AdaptDL's API over :mod:`deeppart.elastic`, for scripts written for AdaptDL.

    import deeppart.elastic.adaptdl as adaptdl
    import deeppart.elastic.adaptdl.torch as adl

Without AdaptDL's environment variables the launcher's are used, so scripts also run under torchrun, srun and
``deeppart run``. Differences from AdaptDL: docs/elastic-adaptdl.md.

Source: A. Qiao et al., Pollux, OSDI 2021; AdaptDL, Apache License 2.0, https://github.com/petuum/adaptdl.
"""

from __future__ import annotations

import sys

from . import checkpoint, collective, env, torch

__all__ = ["checkpoint", "collective", "env", "torch"]

#: Missing modules of AdaptDL, and what to use instead.
_REPLACEMENTS = {
    "_signal": "deeppart.elastic.should_stop",
    "conftest": "torchrun, or `deeppart run --schedule`, to run a job on several sizes",
    "goodput": "deeppart.plan.goodput",
    "reducer": "deeppart.elastic.adaptdl.collective",
    "sched_hints": "`deeppart run --size-file`: there is no scheduler",
    "torch._metrics": "AdaptiveDataParallel.gns and AdaptiveDataParallel.gain",
    "torch.accumulator": "deeppart.elastic.adaptdl.torch",
    "torch.epoch": "deeppart.elastic.adaptdl.torch",
    "torch.gradient_noise_scale": "AdaptiveDataParallel.gns",
    "torch.iterator": "an AdaptiveDataLoader over windows of the text: torchtext has had no BPTTIterator since 0.12",
}


class _MissingModules:
    """An import finder that raises for missing modules of AdaptDL."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        parent, inner = {str(__path__): "", str(torch.__path__): "torch."}.get(str(path)), name.rpartition(".")[2]
        if parent is not None and (instead := _REPLACEMENTS.get(parent + inner)) is not None:
            raise ImportError(f"AdaptDL's module {parent + inner} is not provided; use {instead}", name=name)


sys.meta_path.append(_MissingModules)
