"""One look for every figure of the project: its size, letters, colours and lines are set here and nowhere else.

    with figure(size=(COLUMN, 2.5)) as (drawing, axes):
        axes.plot(x, y, label="certified")
    save_figure(drawing, "curve.pdf")

Lines take a colour and a line style together, in the order in which they are drawn: they are told apart in grey. The
colours are the darker ones of Okabe and Ito: they survive colour blindness, and their contrast is at least 3 on
white and on black alike. Letters and the ground are those of matplotlib's settings: within
``matplotlib.style.context("dark_background")`` a figure is dark. matplotlib is imported when something is drawn, and
neither pyplot nor a display is needed.
"""

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpjax._core.arguments import check_target
from gdpjax._core.figures import rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGARITHMIC = 5.0
"""An axis whose ends are this factor apart is logarithmic."""
MOST_TICKS = 8
"""Where a figure has no more values than these, its ticks are at the values."""
BELOW = "outside lower left"
"""Where the legend of a figure stands: below the axes, where it can hide nothing."""
COLUMN = 3.3
"""The width of a column of a paper, in inches."""
BLUE, RED, GREEN, PURPLE, GREY = COLORS = ("#0072B2", "#D55E00", "#009E73", "#B5529B", "#777777")
LINES: Any = {"color": COLORS, "linestyle": ["-", "--", "-.", ":", (0, (9, 2, 1, 2, 1, 2))]}
"""The first line, then the second one, and so on."""
MARKERS = "os^DvPX"
"""Seven marks beside five lines: a sixth line is another one than the first."""
SHEET = Path(__file__).with_name("gdpjax.mplstyle")
"""Sizes and letters, as matplotlib reads them: ``matplotlib.style.use(SHEET)`` draws other figures like these."""
# Without dates and versions the same picture is the same bytes.
_METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def look(**settings: Any) -> Any:
    """Return a context in which figures are drawn in this style, and with other settings of matplotlib besides."""
    matplotlib = _matplotlib()
    sheet = matplotlib.rc_params_from_file(SHEET, use_default_template=False)
    return matplotlib.rc_context({**sheet, "axes.prop_cycle": matplotlib.cycler(**LINES), **settings})


@contextlib.contextmanager
def figure(
    *shape: int, size: tuple[float, float] = (COLUMN, 2.5), path: Any = None, **options: Any
) -> Iterator[tuple["Figure", Any]]:
    """Make a figure with axes, one or a grid, to be drawn on within the context; with a ``path`` it is then saved.

    ``size`` is in inches; ``options`` are those of matplotlib's ``subplots``.
    """
    with look():
        from matplotlib.figure import Figure

        drawing = Figure(size, layout="constrained")
        yield drawing, drawing.subplots(*shape, **options)
        # The first layout may change which ticks there are, and the next one makes room for them.
        drawing.draw_without_rendering()
        if path is not None:
            save_figure(drawing, path)


def save_figure(figure: "Figure", path: "str | os.PathLike[str]") -> None:
    """Write a figure to .png (300 dots an inch), .pdf or .svg (vectors, fonts included).

    Args:
        figure: from one of the functions of `gdpjax.plotting`, or any other.
        path: ends in .png, .pdf or .svg; an existing file is replaced.

    Raises:
        ValueError: another suffix, a folder that there is not.
    """
    suffix = check_picture(path)
    # It warns of the date in matplotlib's own font.
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    with look():
        figure.savefig(path, dpi=300, metadata=_METADATA[suffix])


def check_picture(path: "str | os.PathLike[str]") -> str:
    """Return the suffix of a picture's path; ValueError unless it can be written."""
    checked = pathlib.Path(path)
    suffix = checked.suffix.lower()
    if suffix not in _METADATA:
        raise ValueError(f"{path} must end in one of {', '.join(_METADATA)}")
    check_target(checked)
    _matplotlib()
    return suffix


def draw_band(axes: Any, x: Any, lower: Any, upper: Any, label: str) -> None:
    """Draw a line at both ends of a bracket, and fill the band between them."""
    (edge,) = axes.plot(x, upper, label=label)
    color = edge.get_color()
    axes.plot(x, lower, color=color, linestyle=edge.get_linestyle())
    axes.fill_between(x, lower, upper, color=color, alpha=0.3, linewidth=0)


def scale_x(axes: Any, values: Any, at_values: bool = False) -> None:
    """Make an axis logarithmic where the values on it call for that, with a number at every tick.

    The ticks are ``at_values``, in three digits and rounded up, where these are few and apart.
    """
    if not max(values) > LOGARITHMIC * min(values) > 0:
        return
    axes.set_xscale("log")
    number_ticks(axes)
    places = {rounded(value, 3, "up"): value for value in sorted(values)}
    gaps = np.diff(np.log(list(places.values())))
    if at_values and len(places) <= MOST_TICKS and gaps.min() > gaps.sum() / 10:
        axes.set_xticks(list(places.values()), list(places))


def number_ticks(axes: Any) -> None:
    """Give every tick of logarithmic axes its number: 0.5, 1, 2 where there is room for these, else powers of ten."""
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        least, most = axis.get_view_interval()
        if axis.get_scale() == "log" and most < 300 * least:
            axis.get_major_locator().set_params(subs=(1, 2, 5))
            axis.set_major_formatter("{x:g}")


def scientific(value: float) -> str:
    """Return a number as mathtext.

    >>> scientific(1e-5), scientific(2e-5)
    ('10^{-5}', '2 \\\\times 10^{-5}')
    """
    mantissa, exponent = f"{value:e}".split("e")
    factor = f"{float(mantissa):g}"
    return ("" if factor == "1" else rf"{factor} \times ") + f"10^{{{int(exponent)}}}"


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("pictures need matplotlib, the extra plot: in a clone, pip install '.[plot]'") from error
    return matplotlib
