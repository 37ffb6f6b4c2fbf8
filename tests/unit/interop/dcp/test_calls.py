"""What dcp.async_save and dcp.save were called with, as stager and writer see it; on whatever torch this is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter

from deeppart.interop.dcp.storage_writer import AsyncSave, Save, calling_async_save, calling_save


class Looking(FileSystemWriter):
    """Keeps what its stage() sees."""

    _synchronize_after_execute = False
    should_synchronize_after_execute = False
    seen: AsyncSave | None = None
    saved: Save | None = None

    def stage(self, state_dict: Any) -> Any:
        self.seen = calling_async_save()
        return state_dict

    def storage_meta(self) -> Any:
        self.saved = calling_save()
        return super().storage_meta()

    def synchronize_staging(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_arguments_are_those_of_the_call(tmp_path: Path) -> None:
    writer, planner = Looking(tmp_path), DefaultSavePlanner()
    saving: Any = dcp.async_save(
        {"w": torch.ones(1)}, checkpoint_id=tmp_path / "step_5", storage_writer=writer, planner=planner
    )
    saving.result(60)
    assert writer.seen is not None and writer.seen == AsyncSave(tmp_path / "step_5", planner)
    assert writer.saved == Save(("w",))  # in another thread
    assert calling_async_save() is None and calling_save() is None


def test_a_function_of_the_same_name_is_none() -> None:
    def async_save(checkpoint_id: int) -> AsyncSave | None:
        return calling_async_save()

    def save(state_dict: dict[str, int]) -> Any:
        return calling_save()

    assert async_save(3) is None and save({"w": 1}) is None
