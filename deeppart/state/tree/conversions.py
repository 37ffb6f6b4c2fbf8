"""Conversions for values that cannot be stored, for the types that people put into a state most often.

Types are known by their names: nothing is imported for the sake of an error.
"""

from __future__ import annotations

_A_COPY = "it is a copy: restore does not change x"

#: Names of types -> what to do with an ``x`` of one of them, or of one that derives from it. The first row that fits
#: counts.
CONVERSIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    # Configurations of other libraries.
    (
        ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
        f"save OmegaConf.to_container(x); {_A_COPY}",
    ),
    (
        ("transformers.configuration_utils.PretrainedConfig", "transformers.configuration_utils.PreTrainedConfig"),
        f"save x.to_dict(); {_A_COPY}",
    ),
    # Types of people's own that derive from what can be stored.
    (("pathlib.PurePath", "pathlib._local.PurePath"), "save str(x)"),
    (("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "numpy.dtype"), "save str(x)"),
    (("argparse.Namespace", "types.SimpleNamespace"), f"save dict(vars(x)); {_A_COPY}"),
    (("builtins.set",), f"save set(x); {_A_COPY}"),
    (("builtins.frozenset",), "save frozenset(x)"),
    (("collections.deque",), f"save list(x); {_A_COPY}"),
    (("builtins.generator",), "save list(x)"),
    (("builtins.dict_keys", "builtins.dict_values", "builtins.dict_items"), "save list(x)"),
    (("collections.ChainMap", "collections.UserDict", "builtins.mappingproxy"), f"save dict(x); {_A_COPY}"),
    (("builtins.bytearray", "builtins.memoryview"), f"save bytes(x); {_A_COPY}"),
    (("_io.BytesIO",), f"save x.getvalue(); {_A_COPY}"),
    (
        ("zoneinfo.ZoneInfo",),
        "save x.key; or of the time x.astimezone(datetime.timezone.utc): a file that names a zone would decide what is "
        "read",
    ),
    (("datetime.datetime",), "save x.isoformat(), or x.timestamp()"),
    (("datetime.date", "datetime.time"), "save x.isoformat()"),
    (("datetime.timedelta",), "save x.total_seconds()"),
    (("numpy.random._generator.Generator",), "save x.bit_generator"),
    (("numpy.random.mtrand.RandomState",), "save x.get_state(), and give it to x.set_state() after restore"),
    (
        ("numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"),
        "save x.data and np.ma.getmaskarray(x), and set x.mask to the latter after restore",
    ),
    (("torch.masked.maskedtensor.core.MaskedTensor",), "save x.get_data() and x.get_mask()"),
    (("random.SystemRandom",), "leave it out: it has no state"),
    (("random.Random",), "save x.getstate(), and give it to x.setstate() after restore"),
    (
        ("builtins.function", "builtins.method", "builtins.builtin_function_or_method", "functools.partial"),
        "leave it out: a function is code, and the script has it",
    ),
    (("builtins.type",), "leave it out: a class is code, and the script has it; or save an object of it"),
    *(((f"builtins.{name}",), f"save {name}(x); {_A_COPY}") for name in ("dict", "list")),
    *(((f"builtins.{name}",), f"save {name}(x)") for name in ("tuple", "str", "bytes", "int", "float", "complex")),
)


def class_names(value: object) -> set[str]:
    """Names of its class and of all that this derives from."""
    return {f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__}


def known_conversion(value: object) -> str | None:
    """A conversion for a value that cannot be stored, from the table; the value is called ``x`` there."""
    names = class_names(value)
    return next((todo for known, todo in CONVERSIONS if not names.isdisjoint(known)), None)


def conversion(value: object) -> str:
    """The same, or what may do for values of any class."""
    if (known := known_conversion(value)) is not None:
        return known
    kind = type(value)
    if callable(getattr(kind, "state_dict", None)):
        return "save x.state_dict(), or give the object load_state_dict() too"
    return "convert the value; or tell deeppart.register() how, or give the object state_dict() and load_state_dict()"
