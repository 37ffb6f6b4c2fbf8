"""The option for the way to come back after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from ..machine.record import WAYS, Machine
from .parameters import OneOf

F = TypeVar("F", bound=Callable[..., Any])


def restart_mode_option(function: F) -> F:
    """The way to come back, as the argument ``restart_mode``; None for the machine's own."""
    return click.option(
        "--restart-mode",
        type=OneOf(tuple(WAYS)),
        help="How the job comes back, as `deeppart-sim restart` compares it; the machine's own if left out.",
    )(function)


def coming_back(machine: Machine, mode: str | None) -> Machine:
    """The machine, with the way that is asked for."""
    return machine if mode is None else replace(machine, restart=replace(machine.restart, mode=mode))
