"""One picture of the result: configurations per second against width or error, both logarithmic."""

import pathlib
from typing import Any, NamedTuple

from benchmarks.writing import picture


class Standing(NamedTuple):
    """The style in which a kind of statement is drawn, and the meaning of its size."""

    marker: str
    colour: str
    label: str


class Point(NamedTuple):
    """A function of a library: how fast it is, and the median width or error over the configurations."""

    name: str
    standing: str
    rate: float
    size: float

    @property
    def is_ours(self) -> bool:
        """Whether it is gdpjax."""
        return self.name.startswith("gdpjax")


class Offset(NamedTuple):
    """The place of a label beside its point, in typographic points, and which end of it is there."""

    right: float
    up: float
    across: str
    along: str


STANDINGS = {
    "bracket": Standing("o", "#0b6e4f", "bracket: relative width"),
    "upper": Standing("^", "#b5482f", "upper bound: relative excess"),
    "estimate": Standing("s", "#4a5a8a", "estimate: relative error"),
}
BATCHED = {"epsilon_bounds": "bracket", "moments_accountant_epsilon": "upper"}
"""Our functions on the whole grid, with what each states."""

RIGHT = Offset(7, 0, "left", "center")
LEFT = Offset(-7, 0, "right", "center")
OUR_LABELS = {"bracket": RIGHT, "upper": Offset(0, 8, "right", "bottom")}
CROWDED = (10, 100)
"""Among these rates the labels stand to the left."""
CLOSE = 1.6
"""Peers within this factor of each other share a label."""


def points(result: dict[str, Any]) -> list[Point]:
    """Return whatever has a rate and a size: ours on the whole grid, the others one configuration a call."""
    found = []
    for name, standing in BATCHED.items():
        accuracy = result["accuracy"][name]
        size = accuracy.get("relative_width") or accuracy["relative_error"]
        rate = result["batched"]["per_second"][name]["median"]
        found.append(Point(f"gdpjax {name}", standing, rate, size["median_size"]))
    for name, measured in result["comparison"]["libraries"].items():
        standing = measured["standing"]
        size = measured["relative_width"] if standing == "bracket" else measured["relative_error"]
        if size is None or standing not in STANDINGS or name.startswith("gdpjax"):
            continue
        found.append(Point(name, standing, measured["per_second"], size["median_size"]))
    return found


def bracket_curve(result: dict[str, Any]) -> list[tuple[float, float]]:
    """Return rate and median relative width of our bracket in single calls, from the widest to the narrowest."""
    curve = []
    for name, measured in result["comparison"]["libraries"].items():
        if name.startswith("gdpjax epsilon_bounds"):
            curve.append((measured["per_second"], measured["relative_width"]["median_size"]))
    return sorted(curve, key=lambda point: -point[1])


def labels(found: list[Point]) -> list[Point]:
    """Return what is written where: one label for peers of equal standing that lie close to each other."""
    shared: list[Point] = []
    for point in found:
        for number, other in enumerate(shared):
            if _is_near(point, other) and not other.is_ours:
                shared[number] = other._replace(name=f"{other.name}, {point.name}")
                break
        else:
            shared.append(point)
    return shared


def _is_near(point: Point, other: Point) -> bool:
    is_as_fast = 1 / CLOSE < point.rate / other.rate < CLOSE
    is_as_large = 1 / CLOSE < point.size / other.size < CLOSE
    return point.standing == other.standing and is_as_fast and is_as_large


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    found = points(result)
    with picture(path, size=(7.0, 4.2)) as (figure, axes):
        for standing, (marker, colour, label) in STANDINGS.items():
            rates = [point.rate for point in found if point.standing == standing]
            sizes = [point.size for point in found if point.standing == standing]
            axes.scatter(rates, sizes, marker=marker, color=colour, s=42, label=label, zorder=3)

        rates, widths = zip(*bracket_curve(result), strict=True)
        colour = STANDINGS["bracket"].colour
        axes.plot(
            rates, widths, marker=".", color=colour, lw=1.0, label="gdpjax bracket, rtol 1e-2 to 1e-6, one a call"
        )

        for point in labels(found):
            _write_label(axes, point)
        xlabel = "configurations per second, one core (gdpjax in bold: many in a call; all others: one a call)"
        axes.set(xlabel=xlabel, xscale="log")
        axes.set(ylabel="relative width, excess or error,\nmedian over configurations", yscale="log")
        axes.margins(0.08, 0.12)
        axes.grid(color="0.92", zorder=0)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)


def _write_label(axes: Any, point: Point) -> None:
    offset = LEFT if CROWDED[0] < point.rate < CROWDED[1] else RIGHT
    if point.is_ours:
        offset = OUR_LABELS[point.standing]
    axes.annotate(
        point.name,
        (point.rate, point.size),
        (offset.right, offset.up),
        textcoords="offset points",
        ha=offset.across,
        va=offset.along,
        color=STANDINGS[point.standing].colour,
        weight="bold" if point.is_ours else "normal",
    )
