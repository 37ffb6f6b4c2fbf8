"""numpy's dtypes as torch has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeppart.errors import StateError
from deeppart.interop.outline import arrays_remark, torch_dtype_name
from deeppart.offline.export import export
from deeppart.offline.export.beside import BesideFile
from deeppart.offline.export.reading import Content, Progress, Totals
from tests.unit.interop.making import saved


class Looks:
    """A writer that looks at the content, and writes nothing."""

    form, is_directory = "none", False

    def write(self, content: Content, beside: BesideFile, told: Progress) -> Totals:
        paths = content.checkpoint.structure.array_paths()
        self.found: dict[str, Any] = {}
        for leaf in content.leaves:
            try:
                self.found[paths[leaf][0]] = getattr(torch, torch_dtype_name(content, leaf))
            except StateError as error:
                self.found[paths[leaf][0]] = error.where
        self.remark = arrays_remark(content)
        return content.totals(0, 0)


def test_dtypes(tmp_path: Path) -> None:
    kinds = ["?", "u1", "<u2", ">i4", "<i8", ">f2", "f8", "c8", ">c16", "g", "S3", "<U1", "<M8[s]"]
    state = {kind: np.zeros(2, dtype=kind) for kind in kinds} | {"torch": torch.ones(1, dtype=torch.bfloat16)}
    looks = Looks()
    export(saved(tmp_path / "ckpt", state), tmp_path / "x", looks)
    none = {kind: f"path {kind}" for kind in ("g", "S3", "<U1", "<M8[s]")}
    assert {kind: found for kind, found in looks.found.items() if isinstance(found, str)} == none
    assert looks.found[">i4"] is torch.int32 and looks.found[">c16"] is torch.complex128
    assert looks.found["torch"] is torch.bfloat16
    assert len(looks.remark) == 1 and "and 9 more" in looks.remark[0]
