"""The only room that knows containers and tensors: apart, compared, captured, and back together."""
