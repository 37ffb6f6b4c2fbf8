"""Files of safetensors, and directories of them as Hugging Face has them."""

from deeppart.interop.safetensors.loading import load

__all__ = ["load"]
