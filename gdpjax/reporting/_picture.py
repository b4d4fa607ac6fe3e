"""The trade-off curves of the runs of a report, as one SVG picture that needs nothing else."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdpjax.plotting.style import COLORS

_DASHES = ("", "7 3", "9 3 2 3", "2 3", "12 4")
# The frame, its ticks and labels; curves stand in the unit square, from the lower left corner.
_FRAME = """\
<svg viewBox="0 0 460 420" width="460" height="420" role="img" \
aria-label="Trade-off curves: type II error against type I error">
<style>.unit * {vector-effect: non-scaling-stroke}</style>
<g text-anchor="middle"><text x="250" y="408">type I error</text>
<text x="15" y="192" transform="rotate(-90 15 192)">type II error</text>
<text x="58" y="385">0</text><text x="154" y="385">0.25</text><text x="250" y="385">0.5</text>
<text x="346" y="385">0.75</text><text x="442" y="385">1</text></g>
<g text-anchor="end"><text x="50" y="372">0</text><text x="50" y="284">0.25</text><text x="50" y="196">0.5</text>
<text x="50" y="108">0.75</text><text x="50" y="20">1</text></g>
<g class="unit" transform="translate(58 368) scale(384 -352)"><rect width="1" height="1" fill="none" stroke="#999"/>
<polyline points="0,1 1,0" fill="none" stroke="#bbb"/>"""


def picture(names: Sequence[str], curves: Sequence[Any]) -> str:
    """The SVG element: for each run the band between its certified bounds, and its name in the legend."""
    drawn, legend = [_FRAME], []
    for i, (name, (alpha, lower, upper)) in enumerate(zip(names, curves, strict=True)):
        line = f'fill="none" stroke="{COLORS[i % 5]}" stroke-width="1.6" stroke-dasharray="{_DASHES[i % 5]}"'
        low = _points(alpha, lower)
        band = np.concatenate([low, _points(alpha, upper)[::-1]])
        drawn.append(f'<polygon points="{_path(band)}" fill="{COLORS[i % 5]}" fill-opacity="0.2"/>')
        drawn.append(f'<polyline points="{_path(low)}" {line}/>')
        y = 32 + 18 * i
        legend.append(f'<path d="M250 {y}h31" {line}/><text x="288" y="{y + 4}">{html.escape(_short(name))}</text>')
    return "\n".join([*drawn, "</g>", *legend, "</svg>"])


def _points(alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The points of a symmetric curve up to its fixed point, and their mirror images: float64[n, 2]."""
    left = np.stack([alpha, beta], axis=1)[alpha <= beta]
    return np.concatenate([left, left[::-1, ::-1], [[1.0, 0.0]]])


def _path(points: np.ndarray) -> str:
    return " ".join(f"{alpha:.5f},{beta:.5f}" for alpha, beta in points)


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "\u2026"
