"""How well the throughput model and the noise of gradients predict what AdaptDL's published traces have measured.

    PYTHONPATH=. python -m benchmarks.elastic_goodput --traces adaptdl/simulator/traces

The traces are in the branch osdi21-artifact of https://github.com/petuum/adaptdl. Three questions, for each of the six
trainings: the step time beyond 8 GPUs when the model is fitted to all placements on up to 8 of them; the step time at
twice the ranks that were seen, from 1, 2, 4 and 8 on; and the statistical efficiency at four times the first batch,
from the noise that was measured with the first batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from deeppart_simulator.cluster.applications import Application, read_application

from deeppart.plan.goodput import GradientNoise, Measured, Throughput, fit
