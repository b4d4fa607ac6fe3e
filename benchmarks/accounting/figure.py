"""One picture of the result: configurations per second against width or error, both logarithmic."""

import pathlib
from typing import Any

STANDINGS = {
    "bracket": ("o", "#0b6e4f", "bracket: relative width"),
    "upper": ("^", "#b5482f", "upper bound: relative excess"),
    "estimate": ("s", "#4a5a8a", "estimate: relative error"),
}
BATCHED = {"epsilon_bounds": "bracket", "moments_accountant_epsilon": "upper", "epsilon_estimate": "estimate"}
# Where a label goes: to the right of its point unless that is crowded. (horizontal, vertical) in points.
LEFT = ("right", -7)
RIGHT = ("left", 7)


def points(result: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """(label, standing, configurations/s, median size) of whatever has both; gdpnum and riskcal are dp_accounting's."""
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


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
    for standing, (marker, colour, label) in STANDINGS.items():
        own = [point for point in points(result) if point[1] == standing]
        axes.scatter([p[2] for p in own], [p[3] for p in own], marker=marker, color=colour, s=42, label=label, zorder=3)
    for name, standing, rate, size in points(result):
        side, shift = LEFT if rate > 300 else RIGHT
        axes.annotate(
            name, (rate, size), (shift, 0), textcoords="offset points", ha=side, va="center",
            color=STANDINGS[standing][1], weight="bold" if name.startswith("gdpjax") else "normal",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="configurations per second, one core", ylabel="median over the grid")
    axes.grid(color="0.92", zorder=0)
    axes.legend(loc="upper right", frameon=False)
    figure.savefig(path, dpi=200)
    plt.close(figure)
