"""The only layer that knows containers and tensors: taken apart, compared, captured, and put back together."""
