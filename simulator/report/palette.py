"""The colours of all charts, on light and on dark paper.

Any two of the seven can be told apart with normal sight and with each of the three kinds of colour blindness, and all
have contrast enough on their paper: tests/simulator/report/test_palette.py computes it, after G. M. Machado et al., "A
Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), CIEDE2000 and WCAG 2.2.
"""

from __future__ import annotations

import re
from types import MappingProxyType

#: Name in the page's style -> (colour on light paper, on dark paper).
COLOURS = MappingProxyType(
    {
        "violet": ("#8066e6", "#8066e6"),
        "pink": ("#e63380", "#ff6699"),
        "teal": ("#339999", "#4cffe6"),
        "olive": ("#808000", "#999900"),
        "brown": ("#801a00", "#ffe680"),
        "green": ("#1a664c", "#338066"),
        "purple": ("#661a99", "#b2b2ff"),
    }
)
#: Text and lines beside it: name -> (on light paper, on dark paper).
INKS = MappingProxyType(
    {
        "ink": ("#1d2127", "#e6e8eb"),
        "soft": ("#5a626d", "#9ba4af"),
        "line": ("#d9dde3", "#343a42"),
        "paper": ("#fafbfc", "#15181c"),
        "card": ("#ffffff", "#1c2025"),
    }
)
#: In the order in which series get them.
SERIES = ("violet", "pink", "teal", "brown", "olive", "green", "purple")
_ALL = MappingProxyType({**COLOURS, **INKS})
_LIGHT = MappingProxyType({light: name for name, (light, _) in _ALL.items()})


def light(name: str) -> str:
    """A colour as it is on light paper, and in pictures in files."""
    return _ALL[name][0]


def variable(name: str) -> str:
    """A colour in the page, which follows the reader's scheme."""
    return f"var(--{name})"


def variables_css() -> str:
    """The rules of the page that say what each colour is: on paper always the light ones."""
    lights, darks = (";".join(f"--{name}:{pair[which]}" for name, pair in _ALL.items()) for which in (0, 1))
    return (
        f":root{{color-scheme:light dark;{lights}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{darks}}}}}\n"
    )


def as_variables(drawing: str) -> str:
    """A drawing in the colours of light paper with the page's variables in their place."""
    return re.sub(
        r"#[0-9a-f]{6}\b", lambda found: variable(_LIGHT[found[0]]) if found[0] in _LIGHT else found[0], drawing
    )
