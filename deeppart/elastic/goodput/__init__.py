"""How fast a job learns with a number of ranks and a batch size, and the batch with which it learns fastest. Pure.

Goodput is throughput, in samples per second, times statistical efficiency: the share of a large batch's samples that
is worth as much as those of a small one. No tensors and no clock; only fitting imports scipy.

Sources: A. Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning, OSDI 2021; S.
McCandlish et al., An Empirical Model of Large-Batch Training, 2018; T. Johnson et al., AdaScale SGD, ICML 2020.
"""

from deeppart.elastic.goodput.advice import Advice, Limits, Size, advise
from deeppart.elastic.goodput.fitting import Measured, fit
from deeppart.elastic.goodput.model import Goodput, GradientNoise, Throughput, gain
from deeppart.elastic.goodput.optimum import Bounds, Step, best_step, best_steps, better_step, fixed_step

__all__ = [
    "Advice",
    "Bounds",
    "Goodput",
    "GradientNoise",
    "Limits",
    "Measured",
    "Size",
    "Step",
    "Throughput",
    "advise",
    "best_step",
    "best_steps",
    "better_step",
    "fit",
    "fixed_step",
    "gain",
]
