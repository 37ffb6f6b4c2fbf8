"""From what a job has measured to what may be expected of it. Needs scipy: ``pip install 'deeppart[elastic]'``."""

from __future__ import annotations

from deeppart.errors import ConfigError
from deeppart.plan.goodput import Bounds, Goodput, GradientNoise, Throughput, fit

from .profile import Profile


def fit_throughput(profile: Profile, near: Throughput | None = None) -> Throughput:
    """The throughput model that is nearest to the times of a profile.

    Args:
        near: an earlier fit: the search begins there, and is quicker.

    Raises:
        ConfigError: nothing was measured, or scipy is missing.

    Example:
        >>> from deeppart.elastic.fitting import fit_throughput
        >>> from deeppart.elastic.profile import Profile
        >>> profile = Profile()
        >>> for ranks, local, seconds in [(1, 32, 0.042), (1, 64, 0.074), (2, 32, 0.062), (4, 64, 0.094)]:
        ...     step = {"nodes": 1, "ranks": ranks, "local_batch": local, "batch": local * ranks}
        ...     profile = profile.with_step(**step, seconds=seconds)
        >>> round(float(fit_throughput(profile).step_s(1, 8, 32)), 2)
        0.06
    """
    return fit(profile.measured(), near)


def goodput_of(profile: Profile, near: Throughput | None = None) -> tuple[Goodput, Bounds]:
    """Goodput, and what the batch may be.

    A job whose noise was not measured, or that has bounds of no kind, keeps its batch: all its samples are worth the
    same.

    Args:
        near: as of :func:`fit_throughput`.

    Raises:
        ConfigError: nothing was measured, or scipy is missing.
    """
    throughput = fit_throughput(profile, near)
    if not profile.largest_batch:
        raise ConfigError("the profile of this job has no batch", todo="train for some steps first")
    if profile.noise is None or profile.bounds is None:
        batch = profile.largest_batch if profile.bounds is None else profile.bounds.batch
        most_local = batch if profile.bounds is None else profile.bounds.most_local
        return Goodput(throughput, GradientNoise(1.0, 0.0, batch)), Bounds(batch, batch, most_local)
    return Goodput(throughput, profile.noise), profile.bounds
