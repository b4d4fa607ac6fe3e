"""``gradients-figure``: the picture of docs/gradients.md, from the loss of an example to the clipped sum of a batch."""

from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from experiments.config import GradientsFigureConfig

BLUE, ORANGE, RED = "#0072B2", "#E69F00", "#D55E00"  # Okabe and Ito
STYLE: Any = {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "gdpjax"}
WIDTH, HEIGHT = 7.2, 4.7  # inches, which are also the coordinates
FORWARD, FACTORS, NORMS, COEFFICIENTS, SUMS, CARRY = 3.78, 2.75, 2.08, 1.46, 0.84, 0.23


class Column(NamedTuple):
    """A parameter: where it meets data, and what becomes of its gradient."""

    x: float
    parameter: str
    equation: str
    is_site: bool
    factor: str
    norm: str
    total: str


COLUMNS = (
    Column(
        1.97, "$E$", "gather", True, "table rows\nindex, values $v$", r"$\Sigma_r\,\Vert v_r \Vert^2$",
        r"scatter $c_i\,v$",
    ),
    Column(
        3.34, r"$\gamma$", "mul", False, "formed\n$g$", r"$\Vert g \Vert^2$", r"$\Sigma_i\,c_i\,g_i$"
    ),
    Column(
        4.71, "$W$", "dot_general", True, "outer product\n$a \\otimes s$", r"$\Vert a \Vert^2\,\Vert s \Vert^2$",
        r"$A^\top \mathrm{diag}(c)\,S$",
    ),
    Column(
        6.22, "$U$", "dot_general", True, "formed\n" r"$\Sigma_t\,a_t \otimes s_t$", r"$\Vert g \Vert^2$",
        r"$\Sigma_i\,c_i\,g_i$",
    ),
)  # fmt: skip


def run(config: GradientsFigureConfig) -> None:
    """Draw the figure into the output folder."""
    config.output.mkdir(parents=True, exist_ok=True)
    path = config.output / "gradients.svg"
    with plt.rc_context(STYLE):
        figure = draw()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    print(f"Figure: {path}")


def draw() -> Figure:
    """The figure: one column for each parameter, one row for each stage."""
    figure = plt.figure(figsize=(WIDTH, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    _stages(axes)
    _loss(axes)
    for column in COLUMNS:
        _gradient(axes, column)
    _shared(axes)
    return figure


def _box(axes: Axes, x: float, y: float, text: str, *, width: float = 1.22, height: float = 0.4, **style: Any) -> None:
    look = {"facecolor": "white", "edgecolor": "0.35", "linewidth": 0.8, **style}
    corner, shape = (x - width / 2, y - height / 2), "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=shape, **look))
    axes.text(x, y, text, ha="center", va="center", linespacing=1.25)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 7, "linewidth": 0.8, "color": "0.35", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**look, **style})


def _stages(axes: Axes) -> None:
    stages = (
        (FORWARD + 0.02, "the loss of\none example,\nas a jaxpr"), (FACTORS, "factors of\neach gradient"),
        (NORMS, "squared norms"), (COEFFICIENTS, "coefficients"), (SUMS, "weighted sums"), (CARRY, "running sum"),
    )  # fmt: skip
    for y, name in stages:
        axes.text(0.1, y, name, va="center", color="0.25", fontstyle="italic", linespacing=1.25)


def _loss(axes: Axes) -> None:
    """The forward pass with its sites, and the cotangents that come back."""
    axes.text(1.17, FORWARD, "tokens", ha="center", va="center")
    axes.text(7.02, FORWARD, "loss", ha="center", va="center")
    ends = [1.4, *(x for column in COLUMNS for x in (column.x - 0.44, column.x + 0.44)), 6.86]
    for start, end in zip(ends[::2], ends[1::2], strict=True):
        _arrow(axes, (start, FORWARD + 0.07), (end, FORWARD + 0.07))
        _arrow(axes, (end, FORWARD - 0.07), (start, FORWARD - 0.07), color=RED, linestyle=(0, (2, 1.5)))
    loop = COLUMNS[-1]
    _box(axes, loop.x, FORWARD + 0.02, "", width=1.06, height=0.62, facecolor="0.95", edgecolor="0.7")
    axes.text(loop.x + 0.07, FORWARD + 0.37, r"scan, $T$ steps", va="bottom", fontsize=6.5, color="0.35")
    for column in COLUMNS:
        color = ORANGE if column.is_site else "0.35"
        fill = "#fdf3dc" if column.is_site else "white"
        _box(axes, column.x, FORWARD, column.equation, width=0.88, height=0.36, edgecolor=color, facecolor=fill)
        axes.text(column.x, FORWARD + 0.68, column.parameter, ha="center", va="center", fontsize=10, color=BLUE)
        _arrow(axes, (column.x, FORWARD + 0.57), (column.x, FORWARD + 0.18), color=BLUE)
    axes.text(4.02, FORWARD - 0.17, "cotangents", ha="center", va="top", fontsize=6.5, color=RED)


def _gradient(axes: Axes, column: Column) -> None:
    """From what a site saw to the part of the sum."""
    top = FORWARD - (0.29 if column is COLUMNS[-1] else 0.18)
    if column.is_site:
        _arrow(axes, (column.x, top), (column.x, FACTORS + 0.22), color=ORANGE, linewidth=1.2)
        axes.text(column.x + 0.06, FACTORS + 0.42, "probe: $(x, s)$", va="center", fontsize=7, color="#8a5c00")
    else:
        _arrow(axes, (column.x, top), (column.x, FACTORS + 0.22))
        axes.text(column.x + 0.06, FACTORS + 0.42, "JAX differentiates", va="center", fontsize=7, color="0.35")
    _box(axes, column.x, FACTORS, column.factor, height=0.44)
    _box(axes, column.x, NORMS, column.norm, height=0.32)
    _arrow(axes, (column.x, FACTORS - 0.22), (column.x, NORMS + 0.16))
    _arrow(axes, (column.x, NORMS - 0.16), (column.x, COEFFICIENTS + 0.18))
    _box(axes, column.x, SUMS, column.total, height=0.32)
    _arrow(axes, (column.x, COEFFICIENTS - 0.18), (column.x, SUMS + 0.16))
    _arrow(axes, (column.x, SUMS - 0.16), (column.x, CARRY + 0.15))


def _shared(axes: Axes) -> None:
    """What joins the parameters: one coefficient for each example, and the running sum."""
    middle, width = (COLUMNS[0].x + COLUMNS[-1].x) / 2, COLUMNS[-1].x - COLUMNS[0].x + 1.22
    rule = r"$\Vert g_i \Vert^2$ = the sum over parameters,   $c_i = \min(1,\ \tilde C\,/\,\Vert g_i \Vert)$"
    _box(axes, middle, COEFFICIENTS, rule + ",   0 if padding or not finite", width=width, height=0.36,
         facecolor="#e3eff7", edgecolor=BLUE)  # fmt: skip
    carried = "hi + lo, with the error of every addition kept, over all chunks of rows"
    _box(axes, middle, CARRY, carried, width=width, height=0.3, facecolor="#e3eff7", edgecolor=BLUE)
