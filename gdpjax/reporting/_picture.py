"""The trade-off curves of the runs of a report, as one SVG picture that needs nothing else."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

WIDTH, HEIGHT = 460, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 16, 52
_COLORS = ("#1f5fa8", "#b8521b", "#2f7d4f", "#7a3f98", "#8a6d00", "#555555")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2")


def _x(alpha: float) -> float:
    return _LEFT + alpha * (WIDTH - _LEFT - _RIGHT)


def _y(beta: float) -> float:
    return HEIGHT - _BOTTOM - beta * (HEIGHT - _TOP - _BOTTOM)


def _path(alpha: np.ndarray, beta: np.ndarray) -> str:
    return " ".join(f"{_x(float(a)):.1f},{_y(float(b)):.1f}" for a, b in zip(alpha, beta, strict=True))


def mirrored(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of a symmetric curve up to its fixed point, and their mirror images."""
    left = alpha <= beta
    corner = np.append(alpha[left], beta[left][::-1]), np.append(beta[left], alpha[left][::-1])
    return np.append(corner[0], 1.0), np.append(corner[1], 0.0)


def picture(names: Sequence[str], curves: Sequence[Any]) -> str:
    """The SVG element: for each run the band between its certified bounds, and its name in the legend."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        'aria-label="Trade-off curves: type II error against type I error">',
        f'<rect x="{_x(0):.1f}" y="{_y(1):.1f}" width="{_x(1) - _x(0):.1f}" height="{_y(0) - _y(1):.1f}" '
        'fill="none" stroke="#999"/>',
        f'<polyline points="{_path(np.array([0.0, 1.0]), np.array([1.0, 0.0]))}" fill="none" stroke="#bbb"/>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<text x="{_x(tick):.1f}" y="{_y(0) + 17:.1f}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{_x(0) - 8:.1f}" y="{_y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = 0.5 * (_y(0) + _y(1))
    parts.append(f'<text x="{_x(0.5):.1f}" y="{HEIGHT - 12}" text-anchor="middle">type I error</text>')
    parts.append(
        f'<text x="15" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 15 {middle:.1f})">'
        "type II error</text>"
    )
    for i, (name, (alpha, lower, upper)) in enumerate(zip(names, curves, strict=True)):
        color, dash = _COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)]
        low, high = mirrored(alpha, lower), mirrored(alpha, upper)
        band = f"{_path(*low)} {_path(high[0][::-1], high[1][::-1])}"
        parts.append(f'<polygon points="{band}" fill="{color}" fill-opacity="0.2" stroke="none"/>')
        line = f'fill="none" stroke="{color}" stroke-width="1.6" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{_path(*low)}" {line}/>')
        y = _y(1) + 20 + 18 * i
        parts.append(f'<line x1="{_x(0.5):.1f}" x2="{_x(0.58):.1f}" y1="{y - 4:.1f}" y2="{y - 4:.1f}" {line}/>')
        parts.append(f'<text x="{_x(0.6):.1f}" y="{y:.1f}">{html.escape(_short(name))}</text>')
    return "\n".join([*parts, "</svg>"])


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "\u2026"
