"""Manifests with sound digests that no writer would write."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden import forge
from tests.unit.part.manifests import changed, refused

ALL_FIELDS = [
    *((name,) for name in ("attempt", "compared", "created", "library", "parts", "structure")),
    *(("attempt", name) for name in ("lineage", "session", "sequence", "step", "world_size")),
    *(
        ("parts", 1, name)
        for name in (
            *("rank", "file", "nbytes", "raw_bytes", "digest", "index_digest"),
            *("node_index_digest", "referenced_bytes", "bases"),
        )
    ),
    *(("parts", 1, "bases", 0, name) for name in ("index_digest", "nbytes", "step", "sequence")),
    ("parts", 0),
]


@pytest.mark.parametrize("path", ALL_FIELDS, ids=str)
def test_wrong_type_missing_or_unknown_field(path: tuple[Any, ...]) -> None:
    value: Any
    for value in (None, True, False, -1, 1.0, 2**70, "", "\0", "x" * 10**6, [], [[]], [1]):
        if (path[-1], value) == ("node_index_digest", ""):
            continue  # there is no other file on nodes
        if path[-1] == "bases" and value == []:
            continue  # it refers to nothing
        if path == ("compared",) and (value is None or value == []):
            continue  # not known; all at this step
        refused(changed(path, value))
    if path != ("structure",):
        refused(changed(path, {}))
        refused(changed(path, {"a": 1}))
    document: Any = forge.manifest_document()
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    del inner[path[-1]]
    refused(forge.seal(document))
    if isinstance(inner, dict):
        inner[path[-1]] = value
        inner["more"] = 1
        assert "more" in str(refused(forge.seal(document)))


NAME = "part-00001-of-00002.dpp"


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "..",
        f"../{NAME}",
        f"./{NAME}",
        f"/{NAME}",
        f"{NAME}/../../x",
        f"{NAME}/",
        f"{NAME}\0",
        f"{NAME}\n",
        f"a\\{NAME}",
        "part-00000-of-00002.dpp",
        "part-00001-of-00003.dpp",
        "part-000001-of-00002.dpp",
        "part-1-of-2.dpp",
        "part-00001-of-00002.DPP",
        "part-00001-of-0000\u0662.dpp",
    ],
)
def test_file_names_of_others(name: str) -> None:
    assert NAME in str(refused(changed(("parts", 1, "file"), name)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("attempt", "lineage"), "A" * 32),
        (("attempt", "lineage"), "a" * 31),
        (("attempt", "session"), "a" * 31 + "\n"),
        (("attempt", "session"), "a" * 32 + "\n"),
        (("attempt", "step"), 2**63),
        (("attempt", "sequence"), 2**63),
        (("attempt", "world_size"), 0),
        (("attempt", "world_size"), 1),
        (("attempt", "world_size"), 3),
        (("attempt", "world_size"), 2**24 + 1),
        (("parts", 1, "digest"), "g" * 32),
        (("parts", 1, "index_digest"), "0x" + "0" * 30),
        (("parts", 1, "node_index_digest"), "0" * 31),
        (("parts", 1, "nbytes"), 4223),
        (("parts", 1, "nbytes"), 2**62),
        (("parts", 1, "raw_bytes"), 2**62),
        (("parts", 1, "referenced_bytes"), 2**62),
        (("parts", 1, "bases", 0, "sequence"), 7),
        (("parts", 1, "bases", 0, "sequence"), 2),
        (("parts", 1, "bases", 0, "step"), 2**63),
        (("parts", 1, "bases", 0, "nbytes"), 4223),
        (("parts", 1, "bases"), [forge.base_record(number, number % 7) for number in range(65)]),
        (("parts", 1, "rank"), 0),
        (("parts", 1, "rank"), 2),
        (("parts", 0, "rank"), False),
        (("parts", 1, "rank"), True),
        (("created",), "2026-11-21T04:05:06"),
        (("created",), "2026-11-21T04:05:06+01:00"),
        (("created",), "yesterday"),
        (("library",), "deeppart\x1b[31m"),
        (("library",), "d" * 201),
        (("parts",), forge.manifest_document()["parts"][::-1]),
        (("parts",), forge.manifest_document()["parts"][:1] * 2),
        (("parts",), forge.manifest_document()["parts"][:1]),
        (("parts",), forge.manifest_document(3)["parts"]),
    ],
    ids=str,
)
def test_impossible_value(path: tuple[Any, ...], value: object) -> None:
    refused(changed(path, value))
