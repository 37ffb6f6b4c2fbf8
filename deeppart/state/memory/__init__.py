"""Memory of tensors: held, addressed and copied in ways that bear its being gone."""
