"""Objects in a state: those that give their own state, and those of which the library knows the data."""

from __future__ import annotations

from typing import Any

from deeppart.state.tree.forms import Form, data_of, form_of
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.registry import registered
from deeppart.state.tree.state_dicts import has_state, state_dict_of


def is_object(item: Any) -> bool:
    """True for something that is stored, and is neither a value nor a container nor a tensor or array."""
    return has_state(item) or form_of(item) is not None


def object_form(item: Any) -> Form | None:
    """The form of an object; None if it gives its own state."""
    return form_of(item) if registered(type(item)) is not None or not has_state(item) else None


def object_state(item: Any, form: Form | None, path: Path) -> Any:
    """What stands in the tree for an object."""
    if form is None:
        return state_dict_of(item, lambda: readable(path))
    return data_of(item, form, lambda: f"path {readable(path)}")
