"""Files of ``torch.save``."""

from deeppart.interop.torch_file.loading import load

__all__ = ["load"]
