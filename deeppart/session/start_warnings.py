"""Rank 0's notices at start-up: settings of a file, restarts that fail, less protection, files of others, copies."""

from __future__ import annotations

from pathlib import Path

from deeppart.config import Config
from deeppart.config.job import restarts_at_one_store
from deeppart.errors import DeeppartWarning, ReducedProtectionWarning, StorageError, say, warn_caller
from deeppart.nodes.pairing import Protection
from deeppart.storage.lineage import LINEAGE_NAME
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.records import note_protection


def tell_settings(config: Config) -> None:
    """On rank 0: which settings are those of a file that nobody has named."""
    if config.from_file:
        note = "; this keep removes no steps of earlier runs" if "keep" in config.from_file else ""
        say(f"settings from {next(iter(config.from_file.values()))}: {', '.join(config.from_file)}{note}")


def tell_restarts() -> None:
    """On rank 0: of torchrun's restarts, at the first start already; the next one may not come this far."""
    if restarts := restarts_at_one_store():
        warn_caller(
            f"after a restart by torchrun (--max-restarts={restarts}) torch.distributed.init_process_group() fails "
            "with gloo: it finds the addresses of dead ranks in the store, which torchrun keeps. Start with "
            "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone ...`, on several nodes with `--rdzv-backend="
            "c10d --rdzv-endpoint=HOST:PORT` instead of `--standalone`; not with --master-port "
            "(docs/elastic-torchrun.md)",
            DeeppartWarning,
        )


def tell_lineage(directory: Path, owner: DirectoryOwner | None) -> None:
    """On rank 0: the record of the lineage was damaged; or what lies on nodes belongs to another directory, of which
    this one is a copy.
    """
    if owner is not None and owner.damage:
        warn_caller(
            f"{directory / LINEAGE_NAME} could not be read ({owner.damage}) and has been written anew, with lineage "
            f"{owner.lineage}: parts on nodes are found if they lie below that name; committed steps always are",
            DeeppartWarning,
        )
    if owner is not None and owner.copy_of:
        former = f", nor are those below {owner.former}, which it had before it was copied over" if owner.former else ""
        warn_caller(
            f"{directory} is a copy of a checkpoint directory, or was restored from a backup. There is nothing to do: "
            f"its steps can be restored, and from now on it has another lineage, {owner.lineage}. Parts on nodes that "
            f"lie below {owner.copy_of} are not used{former}. If it replaces the original and you want to use these "
            "parts, end the job, put that lineage back into deeppart.json and remove .deeppart.lock",
            DeeppartWarning,
        )


def tell_protection(root: Path, session: str, protection: Protection) -> None:
    """Say what the nodes cannot give of what was asked for; and once, when they can again."""
    lines = protection.shortfalls
    problem = ""
    recovered = False
    try:
        recovered = note_protection(root, session, lines)
    except StorageError as error:
        problem = f" (`deeppart ls` will not know: {error.summary})"
    if lines:
        warn_caller(
            f"less protection than asked for: {'; '.join(lines)}{problem}. Checkpoints continue with this protection; "
            "protection='strict' refuses to start instead",
            ReducedProtectionWarning,
        )
    elif recovered:
        warn_caller("this run has all the protection that it asks for; the one before had less", DeeppartWarning)
