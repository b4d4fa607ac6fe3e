"""``gradients-figure``: the picture of docs/theory/gradients.md, from the loss of an example to the sum of a batch.

A column for each parameter, a row for each stage. Coordinates are inches.
"""

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from experiments.config import GradientsFigureConfig
from experiments.figures.pages import save_svg
from gdpjax.plotting.style import BLUE, RED

DARK = "0.35"
ORANGE, DARK_ORANGE, PALE_ORANGE, PALE_BLUE = "#E69F00", "#8a5c00", "#fdf3dc", "#e3eff7"

WIDTH, HEIGHT = 7.2, 4.7
# The height at which each stage stands, from the top.
FORWARD = 3.78
FACTORS = 2.75
NORMS = 2.08
COEFFICIENTS = 1.46
SUMS = 0.84
CARRY = 0.23

STAGES = (
    (FORWARD + 0.02, "the loss of\none example,\nas a jaxpr"),
    (FACTORS, "factors of\neach gradient"),
    (NORMS, "squared norms"),
    (COEFFICIENTS, "coefficients"),
    (SUMS, "weighted sums"),
    (CARRY, "running sum"),
)

Point = tuple[float, float]


class Column(NamedTuple):
    """A parameter: where it meets data, and what becomes of its gradient."""

    x: float
    parameter: str
    equation: str
    has_factors: bool
    factors: str
    norm: str
    total: str


EMBEDDING = Column(
    x=1.97,
    parameter="$E$",
    equation="gather",
    has_factors=True,
    factors="table rows\nindex, values $v$",
    norm=r"$\Sigma_r\,\Vert v_r \Vert^2$",
    total=r"scatter $c_i\,v$",
)
SCALE = Column(
    x=3.34,
    parameter=r"$\gamma$",
    equation="mul",
    has_factors=False,
    factors="formed\n$g$",
    norm=r"$\Vert g \Vert^2$",
    total=r"$\Sigma_i\,c_i\,g_i$",
)
WEIGHT = Column(
    x=4.71,
    parameter="$W$",
    equation="dot_general",
    has_factors=True,
    factors="outer product\n$a \\otimes s$",
    norm=r"$\Vert a \Vert^2\,\Vert s \Vert^2$",
    total=r"$A^\top \mathrm{diag}(c)\,S$",
)
RECURRENT = Column(
    x=6.22,
    parameter="$U$",
    equation="dot_general",
    has_factors=True,
    factors="formed\n$\\Sigma_t\\,a_t \\otimes s_t$",
    norm=r"$\Vert g \Vert^2$",
    total=r"$\Sigma_i\,c_i\,g_i$",
)
COLUMNS = (EMBEDDING, SCALE, WEIGHT, RECURRENT)


def run(config: GradientsFigureConfig) -> None:
    """Draw the figure into the output folder."""
    config.output.mkdir(parents=True, exist_ok=True)
    save_svg(draw, config.output / "gradients.svg")


def draw() -> Figure:
    """Draw one column for each parameter, one row for each stage."""
    figure = Figure((WIDTH, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    for height, name in STAGES:
        axes.text(0.1, height, name, va="center", color="0.25", fontstyle="italic", linespacing=1.25)
    _draw_loss(axes)
    for column in COLUMNS:
        _draw_gradient(axes, column)
    _draw_shared_stages(axes)
    return figure


def _box(axes: Axes, x: float, y: float, text: str, *, width: float = 1.22, height: float = 0.4, **style: Any) -> None:
    """Draw a box with rounded corners around a text, both centred at (x, y)."""
    options = {"facecolor": "white", "edgecolor": DARK, "linewidth": 0.8, **style}
    corner = (x - width / 2, y - height / 2)
    box = FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.06", **options)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", linespacing=1.25)


def _arrow(axes: Axes, start: Point, end: Point, **style: Any) -> None:
    options = {"arrowstyle": "-|>", "mutation_scale": 7, "linewidth": 0.8, "color": DARK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**options, **style})


def _draw_loss(axes: Axes) -> None:
    """Draw the forward pass, where each parameter meets it, and the cotangents that come back."""
    axes.text(1.17, FORWARD, "tokens", ha="center", va="center")
    axes.text(7.02, FORWARD, "loss", ha="center", va="center")

    # Forward and back, from the tokens through each equation to the loss.
    left_edges = [column.x - 0.44 for column in COLUMNS]
    right_edges = [column.x + 0.44 for column in COLUMNS]
    for start, end in zip([1.4, *right_edges], [*left_edges, 6.86], strict=True):
        _arrow(axes, (start, FORWARD + 0.07), (end, FORWARD + 0.07))
        _arrow(axes, (end, FORWARD - 0.07), (start, FORWARD - 0.07), color=RED, linestyle=(0, (2, 1.5)))

    # The last parameter is used in a loop.
    loop = RECURRENT.x
    _box(axes, loop, FORWARD + 0.02, "", width=1.06, height=0.62, facecolor="0.95", edgecolor="0.7")
    axes.text(loop + 0.07, FORWARD + 0.37, r"scan, $T$ steps", va="bottom", fontsize=6.5, color=DARK)

    for column in COLUMNS:
        color, fill = (ORANGE, PALE_ORANGE) if column.has_factors else (DARK, "white")
        _box(axes, column.x, FORWARD, column.equation, width=0.88, height=0.36, edgecolor=color, facecolor=fill)
        axes.text(column.x, FORWARD + 0.68, column.parameter, ha="center", va="center", fontsize=10, color=BLUE)
        _arrow(axes, (column.x, FORWARD + 0.57), (column.x, FORWARD + 0.18), color=BLUE)
    axes.text(4.02, FORWARD - 0.17, "cotangents", ha="center", va="top", fontsize=6.5, color=RED)


def _draw_gradient(axes: Axes, column: Column) -> None:
    """Draw a column: from what an equation saw of a parameter to the parameter's part of the sum."""
    x = column.x
    bottom_of_equation = FORWARD - (0.29 if column is RECURRENT else 0.18)
    if column.has_factors:
        _arrow(axes, (x, bottom_of_equation), (x, FACTORS + 0.22), color=ORANGE, linewidth=1.2)
        axes.text(x + 0.06, FACTORS + 0.42, "probe: $(x, s)$", va="center", fontsize=7, color=DARK_ORANGE)
    else:
        _arrow(axes, (x, bottom_of_equation), (x, FACTORS + 0.22))
        axes.text(x + 0.06, FACTORS + 0.42, "JAX differentiates", va="center", fontsize=7, color=DARK)

    _box(axes, x, FACTORS, column.factors, height=0.44)
    _box(axes, x, NORMS, column.norm, height=0.32)
    _arrow(axes, (x, FACTORS - 0.22), (x, NORMS + 0.16))
    _arrow(axes, (x, NORMS - 0.16), (x, COEFFICIENTS + 0.18))
    _box(axes, x, SUMS, column.total, height=0.32)
    _arrow(axes, (x, COEFFICIENTS - 0.18), (x, SUMS + 0.16))
    _arrow(axes, (x, SUMS - 0.16), (x, CARRY + 0.15))


def _draw_shared_stages(axes: Axes) -> None:
    """Draw what joins the parameters: one coefficient for each example, and the running sum."""
    first, last = COLUMNS[0].x, COLUMNS[-1].x
    middle = (first + last) / 2
    options: dict[str, Any] = {"width": last - first + 1.22, "facecolor": PALE_BLUE, "edgecolor": BLUE}
    rule = (
        r"$\Vert g_i \Vert^2$ = the sum over parameters,   $c_i = \min(1,\ \tilde C\,/\,\Vert g_i \Vert)$"
        ",   0 if padding or not finite"
    )
    _box(axes, middle, COEFFICIENTS, rule, height=0.36, **options)
    carried = "hi + lo, with the error of every addition kept, over all chunks of rows"
    _box(axes, middle, CARRY, carried, height=0.3, **options)
