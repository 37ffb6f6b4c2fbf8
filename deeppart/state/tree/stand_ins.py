"""Stand-ins: what ``load`` gives where only a class of the script could make the thing itself.

They hold the same data, under the class's name. A state that has them is saved as one that has the things themselves,
and a restore into a live state that has the class gives the things.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class SavedMember:
    """A member of an enum, as ``load`` gives it.

    Attributes:
        module, enum: of its class: the module in which it is, and its qualified name.
        name: of the member; None for flags that have none together.
        value: of the member, if that is a small value or a tuple of them; else None.
        has_value: true if ``value`` is known.

    Example:
        >>> import enum
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"phase": enum.Enum("Phase", "WARMUP TRAIN").TRAIN}, step=1)
        >>> deeppart.load("ckpt")["phase"].name
        'TRAIN'
    """

    module: str
    enum: str
    name: str | None
    value: Any = None
    has_value: bool = True

    def __repr__(self) -> str:
        value = f": {self.value!r}" if self.has_value else ""
        return f"<{self.enum}.{self.name}{value}>"

    def __str__(self) -> str:
        return f"{self.enum.rpartition('.')[2]}.{self.value if self.name is None else self.name}"


class SavedRecord(SimpleNamespace):
    """An object of a dataclass, as ``load`` gives it: its attributes. Its class is called as the saved one was.

    Attributes:
        saved_class: module and qualified name of the class, and the names of its fields.

    Example:
        >>> import dataclasses
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     settings = dataclasses.make_dataclass("Settings", ["rate"])(rate=0.5)
        ...     pending = checkpointer.checkpoint({"settings": settings}, step=1)
        >>> deeppart.load("ckpt")["settings"]
        Settings(rate=0.5)
    """

    saved_class: ClassVar[tuple[str, str, tuple[str, ...]]] = ("", "", ())

    def __reduce__(self) -> tuple[Any, ...]:
        return make_record, (*type(self).saved_class, vars(self))


def make_record(module: str, name: str, fields: tuple[str, ...], attributes: dict[str, Any]) -> SavedRecord:
    """A record of a class by this name, with these attributes."""
    made = _record_class(module, name, fields)()
    vars(made).update(attributes)
    return made


@functools.lru_cache(maxsize=256)
def _record_class(module: str, name: str, fields: tuple[str, ...]) -> type[SavedRecord]:
    """One class for all records of a dataclass."""
    return type(
        name.rpartition(".")[2], (SavedRecord,), {"saved_class": (module, name, fields), "__module__": __name__}
    )
