"""How Sphinx renders the documents and the docstrings (``make docs``, docs/decisions/0014-api-reference.md).

Sources are the repository's own Markdown files, from its root on, so that links between them are the same on the forge
and here. What only Sphinx needs, the tables of contents, is added when a page is read.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import deeppart  # noqa: E402
from deeppart.config import Config  # noqa: E402
from deeppart.interop import saving  # noqa: E402

project = "deeppart"
author = "the deeppart authors"
copyright = "the deeppart authors, Apache-2.0"  # noqa: A001 - Sphinx reads it under this name
version = release = deeppart.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_click"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**"]
exclude_patterns = ["docs/_*"]
templates_path = ["_templates"]
# A name that nothing documents, or a link that leads nowhere, is a warning, and warnings are errors.
nitpicky = True
# Documented elsewhere; nothing is fetched to link to it.
nitpick_ignore_regex = [
    (r"py:class", r"torch\.(Tensor|dtype|(distributed|utils|nn|optim)\..*)"),
    # In signatures of the extension face, where what they are is of no interest.
    (r"py:class", r"deeppart\.(extension\.(importing|export)|offline\.reading|state\.restore|codec\.base)\..*"),
    (r"py:exc", r"CheckpointException"),  # of torch.distributed.checkpoint
    ("py:.*", r"(os|signal|collections\.abc|contextlib|pathlib|numpy|hypothesis|click)\..*"),
    (
        "py:.*",
        r"NDArray|IntArray|int64|float64|uint8|deeppart\.storage\.(rate\.RateLimit|spares\.Recycled|store\.Stat)",
    ),
    ("py:class", r"deeppart\.part\.source\.(ByteSource|StoredBytes)"),
    ("py:.*", r"deeppart\.state\.objects\.T|deeppart\.elastic\.shards\.S"),
]

myst_heading_anchors = 4
highlight_language = "text"
smartquotes_action = "D"  # dashes, but quotes as they are written

autodoc_member_order = "bysource"
# Trainers, which may be missing, and take seconds to import.
autodoc_mock_imports = ["transformers", "accelerate", "lightning", "torchdata", "torchtitan", "deepspeed", "megatron"]
# They are not asked for their version either.
saving.require = lambda *_: None
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
# A list, like that of parameters, instead of an entry for each.
napoleon_custom_sections = [("Attributes", "params_style")]

html_theme = "furo"
html_title = f"deeppart {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_additional_pages = {"index": "to-front-page.html"}
html_copy_source = False
html_show_sphinx = False

ARRAY = re.compile(r"~?numpy\.ndarray\[tuple\[[^\]]*\], ~?numpy\.dtype\[~?numpy\.(\w+)\]\]")
#: Page -> what is below it: (caption, pages).
CONTENTS: dict[str, list[tuple[str, list[str]]]] = {
    "README": [
        (
            "Guide",
            [
                "docs/quickstart",
                "docs/from-torchrun",
                "docs/trainers",
                "docs/coming-back",
                "docs/elastic",
                "docs/elastic-torchrun",
                "docs/elastic-slurm",
                "docs/elastic-ray",
                "docs/elastic-adaptdl",
                "docs/configuration",
                "docs/commands",
                "docs/failure-model",
                "docs/simulator",
                "docs/glossary",
            ],
        ),
        ("Reference", ["docs/api/README", "docs/format"]),
        ("Inside", ["docs/design", "docs/architecture", "docs/benchmarks", "Decisions </docs/README>"]),
        ("Project", ["CHANGELOG", "CONTRIBUTING", "SECURITY"]),
    ],
    "docs/README": [("", sorted(f"docs/decisions/{path.stem}" for path in ROOT.glob("docs/decisions/*.md")))],
    "docs/api/README": [
        (
            "",
            [
                f"docs/api/{page}"
                for page in (
                    "checkpointer",
                    "reports",
                    "config",
                    "errors",
                    "partition",
                    "interop",
                    "elastic",
                    "extension",
                    "goodput",
                    "command-line",
                )
            ],
        )
    ],
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("sphinx-click-process-description", take_literally)
    app.connect("sphinx-click-process-options", take_literally)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the table of contents of a page at its end, where no reader sees it but the menu has it."""
    for caption, pages in CONTENTS.get(page, ()):
        listed = "\n".join(each if "<" in each else f"/{each}" for each in pages)
        heading = f":caption: {caption}\n" if caption else ""
        source[0] += f"\n```{{toctree}}\n:hidden:\n{heading}\n{listed}\n```\n"


def shorten_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Settings with their defaults, which are found only when a record is made; arrays by the name of their type."""
    if thing is Config:
        settings = dataclasses.fields(Config)
        defaults = ("{}" if each.default is dataclasses.MISSING else repr(each.default) for each in settings)
        signature = ", ".join(
            f"{each.name}: {each.type} = {text}" for each, text in zip(settings, defaults, strict=True)
        )
        return f"({signature})", returns
    if signature:
        signature = ARRAY.sub(r"NDArray[\1]", signature).replace("<factory>", "{}")
    return signature, returns and ARRAY.sub(r"NDArray[\1]", returns)


def take_literally(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Help of commands is plain text: stars are stars, what is in backquotes is code, and so are options."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((".. ", ":")):
            code = re.sub("(?<!`)`(?!`)", "``", line.replace("*", r"\*"))
            lines[number] = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?!`)", r"``\1``", code)
