"""One picture of the result: configurations per second against width or error, both logarithmic."""

import pathlib
from typing import Any

from benchmarks.writing import picture

STANDINGS = {
    "bracket": ("o", "#0b6e4f", "bracket: relative width"),
    "upper": ("^", "#b5482f", "upper bound: relative excess"),
    "estimate": ("s", "#4a5a8a", "estimate: relative error"),
}
BATCHED = {"epsilon_bounds": "bracket", "moments_accountant_epsilon": "upper", "epsilon_estimate": "estimate"}
RIGHT, LEFT = (7, 0, "left", "center"), (-7, 0, "right", "center")
ABOVE, BELOW = (0, 8, "center", "bottom"), (0, -8, "center", "top")
OWN_LABELS = {"bracket": BELOW, "upper": (0, 8, "right", "bottom"), "estimate": ABOVE}
CLOSE = 1.6


def points(result: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """(label, standing, configurations/s, median size) of whatever has both."""
    found = []
    for name, standing in BATCHED.items():
        at = result["accuracy"][name]
        size = at.get("relative_width") or at["relative_error"]
        rate = result["batched"]["per_second"][name]["median"]
        found.append((f"gdpjax {name}", standing, rate, size["median_size"]))
    for name, at in result["comparison"]["libraries"].items():
        size = at["relative_width"] if at["standing"] == "bracket" else at["relative_error"]
        if size is None or at["standing"] not in STANDINGS or name.startswith("gdpjax"):
            continue
        found.append((name, at["standing"], at["per_second"], size["median_size"]))
    return found


def bracket_curve(result: dict[str, Any]) -> list[tuple[float, float]]:
    """(configurations/s, median relative width) of our bracket in single calls, from the widest to the narrowest."""
    libraries = result["comparison"]["libraries"]
    own = [at for name, at in libraries.items() if name.startswith("gdpjax epsilon_bounds")]
    found = [(at["per_second"], at["relative_width"]["median_size"]) for at in own]
    return sorted(found, key=lambda point: -point[1])


def merged(found: list[tuple[str, str, float, float]]) -> list[tuple[str, str, float, float]]:
    """Labels, one for peers of equal standing that lie within a factor of CLOSE of each other."""
    labels: list[tuple[str, str, float, float]] = []
    for name, standing, rate, size in found:
        for i, (other, its, x, y) in enumerate(labels):
            near = 1 / CLOSE < rate / x < CLOSE and 1 / CLOSE < size / y < CLOSE
            if standing == its and near and not other.startswith("gdpjax"):
                labels[i] = (f"{other}, {name}", its, x, y)
                break
        else:
            labels.append((name, standing, rate, size))
    return labels


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    with picture(path, figsize=(7.0, 4.2)) as (figure, axes):
        for standing, (marker, colour, label) in STANDINGS.items():
            own = [point for point in points(result) if point[1] == standing]
            axes.scatter(
                [p[2] for p in own], [p[3] for p in own], marker=marker, color=colour, s=42, label=label, zorder=3
            )
        rates, widths = zip(*bracket_curve(result), strict=True)
        axes.plot(rates, widths, marker=".", color=STANDINGS["bracket"][1], lw=1.0, label="bracket, rtol 1e-2 to 1e-6")
        for name, standing, rate, size in merged(points(result)):
            own = name.startswith("gdpjax")
            right, up, across, along = OWN_LABELS[standing] if own else LEFT if 10 < rate < 100 else RIGHT
            axes.annotate(
                name, (rate, size), (right, up), textcoords="offset points", ha=across, va=along,
                color=STANDINGS[standing][1], weight="bold" if own else "normal",
            )  # fmt: skip
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="configurations per second, one core",
            ylabel="median over configurations",
        )
        axes.margins(0.08, 0.12)
        axes.grid(color="0.92", zorder=0)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
