"""The settings: one frozen record (:mod:`.record`), and where they come from (:mod:`.sources`)."""

from deeppart.config.arguments import LAST_STEP, check_state, check_step, refuse_in_fork, resolve_config
from deeppart.config.checks import (
    AUTO,
    DEFAULT_PARITY_GROUP,
    DEFAULT_PARITY_TOLERATE,
    LEAST_SECRET_BYTES,
    MOST_SECRET_BYTES,
    check_choice,
    check_count,
    refuse_url,
)
from deeppart.config.job import (
    Allocation,
    Launch,
    allocation,
    expand_directory,
    failure_domain,
    job_name,
    launch,
    meeting_variables,
    node_name,
    restarts_at_one_store,
    scheduled_job,
    served_by_agent,
    socket_interface,
)
from deeppart.config.record import Config
from deeppart.config.sources import read_secret, secret_of_ranks, shows_all_frames, stop_file

__all__ = [
    "AUTO",
    "DEFAULT_PARITY_GROUP",
    "DEFAULT_PARITY_TOLERATE",
    "LAST_STEP",
    "LEAST_SECRET_BYTES",
    "MOST_SECRET_BYTES",
    "Allocation",
    "Config",
    "Launch",
    "allocation",
    "check_choice",
    "check_count",
    "check_state",
    "check_step",
    "expand_directory",
    "failure_domain",
    "job_name",
    "launch",
    "meeting_variables",
    "node_name",
    "read_secret",
    "refuse_in_fork",
    "refuse_url",
    "resolve_config",
    "restarts_at_one_store",
    "scheduled_job",
    "secret_of_ranks",
    "served_by_agent",
    "shows_all_frames",
    "socket_interface",
    "stop_file",
]
