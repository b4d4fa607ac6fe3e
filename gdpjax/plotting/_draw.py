"""The curves on paper: matplotlib figures one column wide, drawn without touching any global state."""

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpjax._core.arguments import check_array, check_flag, check_instance, check_target
from gdpjax._core.figures import rounded
from gdpjax._core.shown import shown as shown_value
from gdpjax._core.types import FAILURE, Bounds
from gdpjax.plotting._curves import EpsilonCurves, TradeoffCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMN_WIDTH = 3.4  # inches
_BLUE, _SKY, _GREY = "#0072B2", "#56B4E9", "#777777"
_DASHED: dict[str, Any] = {"color": "#882255", "linestyle": (0, (4, 1.5)), "linewidth": 0.9}
_DASH_DOTTED: dict[str, Any] = {"color": "#009E73", "linestyle": (0, (7, 2.5, 1, 2.5)), "linewidth": 1.1}
_DOTTED: dict[str, Any] = {"color": "#D55E00", "linestyle": (0, (1, 1.8)), "linewidth": 1.4}
_STYLE = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 6.8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.labelspacing": 0.35,
    "mathtext.fontset": "cm",
    "pdf.fonttype": 42,  # TrueType outlines, which journals ask for
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "gdpjax",
}

_METADATA: dict[str, dict[str, Any]] = {  # without dates: the same picture is the same bytes
    ".png": {},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


def plot_tradeoff(curves: TradeoffCurves, *, log: bool = False) -> "Figure":
    """Draw a trade-off curve with its certified band, f_{epsilon, delta} and G_mu.

    Args:
        curves: from `tradeoff_curves`.
        log: draw the power 1 - f(alpha) of the best test on logarithmic axes, which shows the tails.

    Returns:
        a matplotlib figure, one column wide; save it with `save_figure`.

    Raises:
        ValueError: matplotlib is not installed.

    >>> from gdpjax import Bounds
    >>> x = np.array([0.0, 0.5, 1.0])
    >>> private = TradeoffCurves(x, Bounds(1 - x, 1 - x), 1 - x, 1 - x, 1 - x, Bounds(0.0, 0.0), 1e-5, 0.0, 0.0)
    >>> len(plot_tradeoff(private).axes[0].lines)
    6
    """
    check_instance("curves", curves, TradeoffCurves, "made by tradeoff_curves")
    _check_fields(curves, one_number=("epsilon", "delta", "mu_upper", "mu_clt"), may_lack=("gaussian_clt", "mu_clt"))
    log = check_flag("log", log)
    with _figure(3.75) as (figure, axes):
        shown = (curves.alpha > 0) & (curves.alpha < 1) if log else slice(None)
        alpha = curves.alpha[shown]

        def height(beta: np.ndarray) -> np.ndarray:
            return 1.0 - beta[shown] if log else beta[shown]

        band = _draw_band(axes, alpha, *map(height, curves.curve))
        (steep,) = axes.plot(alpha, height(curves.approximate_dp), **_DASHED)
        (safe,) = axes.plot(alpha, height(curves.gaussian_certified), **_DASH_DOTTED)
        limit = None if curves.gaussian_clt is None else axes.plot(alpha, height(curves.gaussian_clt), **_DOTTED)[0]
        (blind,) = axes.plot(alpha, height(1.0 - curves.alpha), color=_GREY, linewidth=0.6)
        # A bound in print is rounded up.
        epsilon = rounded(float(curves.epsilon.upper), 4, "up")
        mu = rounded(float(curves.mu_upper), 3, "up")
        labels = {
            band: r"$f$ of this run: certified band" if limit else r"$f$: certified band",
            steep: rf"$f_{{\varepsilon,\delta}}$, $\varepsilon = {epsilon}$, "
            rf"$\delta = {_scientific(curves.delta)}$: certified bound",
            safe: rf"$G_\mu$, $\mu = {mu}$: certified bound, failure ${_scientific(FAILURE)}$",
        }
        if limit:
            labels[limit] = rf"$G_\mu$, CLT $\mu = {curves.mu_clt:.3g}$: asymptotic, may understate"
        labels[blind] = r"$1 - \alpha$: perfect privacy"
        axes.set(xlabel=r"type I error $\alpha$", ylabel=r"type II error $\beta$")
        if log:
            least = min(1e-3, curves.delta / 100)
            axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.4))
            axes.set(ylabel=r"power $1 - \beta$")
        else:
            axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set_box_aspect(1)
        figure.legend(list(labels), list(labels.values()), loc="outside upper left", borderaxespad=0.2)
    return figure


def plot_epsilon(curves: EpsilonCurves, *, log: bool = False) -> "Figure":
    """Draw epsilon against the number of steps for every accountant.

    Args:
        curves: from `epsilon_curves`.
        log: logarithmic axes.

    Returns:
        a matplotlib figure, one column wide; save it with `save_figure`.

    Raises:
        ValueError: matplotlib is not installed.

    >>> from gdpjax import Bounds
    >>> x = np.array([1.0, 2.0])
    >>> plot_epsilon(EpsilonCurves(x, 1e-5, Bounds(x, x), x, x, x)).axes[0].get_xlabel()
    'number of steps'
    """
    check_instance("curves", curves, EpsilonCurves, "made by epsilon_curves")
    _check_fields(curves, one_number=("delta",))
    log = check_flag("log", log)
    with _figure(3.0) as (figure, axes):
        steps = curves.num_steps
        (classic,) = axes.plot(steps, _finite(curves.moments_accountant_classic), **_DASH_DOTTED)
        (moments,) = axes.plot(steps, _finite(curves.moments_accountant), **_DASHED)
        band = _draw_band(axes, steps, *map(_finite, curves.certified))
        (limit,) = axes.plot(steps, _finite(curves.clt), **_DOTTED)
        labels = {
            classic: "moments accountant, classic: upper bound",
            moments: "moments accountant, tight: upper bound",
            band: "certified: lower and upper bound",
            limit: "CLT: asymptotic, may understate",
        }
        if log:
            axes.set(xscale="log", yscale="log", xlim=(1, steps[-1]))
        else:
            axes.set(xlim=(0, steps[-1]), ylim=(0, None))
            axes.locator_params(axis="x", nbins=6)
        axes.set(xlabel="number of steps", ylabel=rf"$\varepsilon$ at $\delta = {_scientific(curves.delta)}$")
        axes.grid(alpha=0.25, linewidth=0.4)
        figure.legend(list(labels), list(labels.values()), loc="outside upper left", borderaxespad=0.2)
    return figure


def _check_fields(curves: Any, one_number: tuple[str, ...], may_lack: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless the fields of curves are numbers, arrays with one axis where they are not one each."""
    for name, field in curves._asdict().items():
        if field is None and name in may_lack:
            continue
        for part in field if isinstance(field, Bounds) else (field,):
            check_array(f"curves.{name}", part, ndim=0 if name in one_number else 1)


def save_figure(figure: "Figure", path: "str | os.PathLike[str]") -> None:
    """Write a figure to .png (300 dots an inch), .pdf or .svg (vectors, fonts included).

    Args:
        figure: from `plot_tradeoff` or `plot_epsilon`, or any other.
        path: ends in .png, .pdf or .svg; an existing file is replaced.

    Raises:
        ValueError: another suffix, a folder that there is not.
    """
    check_instance("path", path, (str, os.PathLike))
    if not callable(getattr(figure, "savefig", None)):
        raise ValueError(f"figure must be a matplotlib figure, got {shown_value(figure)}")
    suffix = check_path(path)
    fonts = logging.getLogger("fontTools")  # which warns of the date in matplotlib's own font
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        with _matplotlib().rc_context(_STYLE):
            figure.savefig(path, dpi=300, metadata=_METADATA[suffix])
    finally:
        fonts.setLevel(level)


def check_path(path: "str | os.PathLike[str]") -> str:
    """The suffix of a picture's path; ValueError unless it can be written."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _METADATA:
        raise ValueError(f"{path} must end in one of {', '.join(_METADATA)}")
    check_target(pathlib.Path(path))
    _matplotlib()
    return suffix


@contextlib.contextmanager
def _figure(height: float) -> "Iterator[tuple[Figure, Axes]]":
    """A figure one column wide with its axes, to be drawn on in the style of this module."""
    with _matplotlib().rc_context(_STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_COLUMN_WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def _draw_band(axes: "Axes", x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[Any, ...]:
    """A filled band between thin lines, which show it where it is too narrow to be seen."""
    filled = axes.fill_between(x, lower, upper, color=_SKY, alpha=0.55, linewidth=0)
    (edge, _) = (axes.plot(x, end, color=_BLUE, linewidth=0.9)[0] for end in (lower, upper))
    return filled, edge


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("pictures need matplotlib, the extra plot: in a clone, pip install '.[plot]'") from error
    return matplotlib


def _finite(values: Any) -> np.ndarray:
    """Without infinities, which cannot be drawn."""
    return np.where(np.isfinite(values), values, np.nan)


def _scientific(value: float) -> str:
    """A number as mathtext: 1e-05 is 10^{-5}."""
    mantissa, exponent = f"{value:e}".split("e")
    factor = f"{float(mantissa):g}"
    return ("" if factor == "1" else rf"{factor} \times ") + f"10^{{{int(exponent)}}}"
