"""How colours look, and how far apart: WCAG 2.2 contrast, CIEDE2000, and the sight of colour-blind readers.

The matrices are those of G. M. Machado, M. M. Oliveira and L. A. F. Fernandes, "A Physiologically-based Model for
Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009, for severity 1, which work on linear RGB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]
SIGHTS: dict[str, Matrix] = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
#: sRGB, IEC 61966-2-1, with the white of D65.
_TO_XYZ: Matrix = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.119192, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> Triple:
    """Linear RGB of ``#rrggbb``."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return _linear(red), _linear(green), _linear(blue)


def contrast(one: str, other: str) -> float:
    """Of WCAG 2.2, from 1 to 21."""
    darker, lighter = sorted(sum(map(math.prod, zip(_TO_XYZ[1], linear(each), strict=True))) for each in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def apart(one: str, other: str, sight: str) -> float:
    """CIEDE2000 between two colours as someone sees them."""
    return ciede2000(_lab(_times(SIGHTS[sight], linear(one))), _lab(_times(SIGHTS[sight], linear(other))))


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _times(matrix: Matrix, vector: Sequence[float]) -> Triple:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def _lab(rgb: Triple) -> Triple:
    x, y, z = (
        value / white for value, white in zip(_times(_TO_XYZ, [min(1, max(0, c)) for c in rgb]), _WHITE, strict=True)
    )
    x, y, z = (math.cbrt(v) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one: Triple, other: Triple) -> float:
    """G. Sharma, W. Wu and E. N. Dalal, Color Research and Application 30(1), 2005."""
    mean_c = (math.hypot(*one[1:]) + math.hypot(*other[1:])) / 2
    stretch = 1 + 0.5 * (1 - math.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    (c1, h1), (c2, h2) = (
        (math.hypot(stretch * a, b), math.degrees(math.atan2(b, stretch * a)) % 360) for _, a, b in (one, other)
    )
    turn, middle = h2 - h1, (h1 + h2) / 2
    if c1 * c2 == 0:
        turn, middle = 0.0, h1 + h2
    elif abs(turn) > 180:
        turn -= math.copysign(360, turn)
        middle += 180 if middle < 180 else -180
    big_h = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    mean_l, mean_c = (one[0] + other[0]) / 2, (c1 + c2) / 2
    t = (
        1
        - 0.17 * _cos(middle - 30)
        + 0.24 * _cos(2 * middle)
        + 0.32 * _cos(3 * middle + 6)
        - 0.2 * _cos(4 * middle - 63)
    )
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / math.sqrt(20 + (mean_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    around_blue = math.sin(math.radians(60 * math.exp(-(((middle - 275) / 25) ** 2))))
    mixed = -2 * math.sqrt(mean_c**7 / (mean_c**7 + 25**7)) * around_blue
    light, chroma, hue = (other[0] - one[0]) / s_l, (c2 - c1) / s_c, big_h / s_h
    return math.sqrt(light**2 + chroma**2 + hue**2 + mixed * chroma * hue)


def _cos(degrees: float) -> float:
    return math.cos(math.radians(degrees))
