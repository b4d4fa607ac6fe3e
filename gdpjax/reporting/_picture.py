"""The trade-off curves of the runs of a report, as the lines of an SVG picture."""

import html
from collections.abc import Sequence

import numpy as np

from gdpjax.plotting.style import COLORS
from gdpjax.reporting._runs import Described
from gdpjax.tradeoff import CertifiedCurve

_DASHES = ("", "7 3", "9 3 2 3", "2 3", "12 4")


def picture(runs: Sequence[Described]) -> str:
    """Return for each run the band between its certified bounds, a line and the name beside it, in the unit square."""
    drawn = []
    for i, run in enumerate(runs):
        color, dashes = COLORS[i % 5], _DASHES[i % 5]
        line = f'fill="none" stroke="{color}" stroke-width="1.6" stroke-dasharray="{dashes}"'
        lower, band = _paths(run.curve)
        y = 32 + 18 * i
        drawn += [
            f'<g class="unit"><polygon points="{band}" fill="{color}" fill-opacity="0.2"/>',
            f'<polyline points="{lower}" {line}/></g>',
            f'<path d="M250 {y}h31" {line}/><text x="288" y="{y + 4}">{html.escape(run.name[:24])}</text>',
        ]
    return "\n".join(drawn)


def _paths(curve: CertifiedCurve) -> tuple[str, str]:
    """Return the lower bound on a curve, and the outline of its band, as points of SVG."""
    # alpha up to 1/2: the curve is symmetric, and the mirror image of its left part is the rest.
    alpha = np.unique([*np.linspace(0.0, 0.5, 9), *np.geomspace(1e-4, 0.5, 9)])
    edges = []
    for beta in curve.tradeoff(alpha):
        left = np.stack([alpha, beta], axis=1)[alpha <= beta]
        edges.append(np.concatenate([left, left[::-1, ::-1], [[1.0, 0.0]]]))
    lower, upper = edges
    texts = (" ".join(f"{x:.5f},{y:.5f}" for x, y in path) for path in (lower, [*lower, *upper[::-1]]))
    return next(texts), next(texts)
