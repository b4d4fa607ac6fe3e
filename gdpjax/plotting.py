r"""Pictures of privacy: the trade-off curve of a run, and epsilon against the number of steps.

A picture is made in two steps: a function of the hyperparameters computes the curves as arrays, with the standing of
each, and a ``plot_...`` function draws them on a new matplotlib figure, touching no global state. matplotlib is
imported when something is drawn. Curves are told apart by line style as well as by colour, so that a picture survives
colour blindness and grey printing, and figures have the width of a column.

Two pictures of the same trade-off curve f. In the plane of errors, G_mu and f_{epsilon, delta} are the familiar curves
under 1 - alpha. What a delta of 1e-5 is about happens near the corner (0, 1), though, where that picture shows nothing:
the logarithmic one shows the power 1 - f(alpha) of the best test against its type I error alpha.

The supporting curve f_{epsilon, delta}(alpha) = max(0, 1 - delta - e^epsilon alpha, e^{-epsilon} (1 - delta - alpha))
at the certified upper epsilon lies below f, and at the true epsilon it touches. A certified mu is a statement with a
failure probability d: f >= G_mu (x) f_{0,d}, which is (1 - d) G_mu(alpha / (1 - d)), and 0 beyond 1 - d.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from gdpjax._core.checks import COUNT, EXTENDED_NONNEGATIVE, POSITIVE, UNIT, Domain, check, check_scalar
from gdpjax._core.types import Bounds
from gdpjax.accounting import (
    clt_epsilon,
    clt_mu_poisson,
    epsilon_bounds,
    gdp_tradeoff,
    moments_accountant_epsilon,
    mu_bounds,
    tradeoff_bounds,
)
from gdpjax.accounting._gdp import DELTA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MU_FAILURE = 1e-10
"""Failure probability of the certified mu."""
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


class TradeoffCurves(NamedTuple):
    """The trade-off curve of one run and the curves it is compared with, at the points ``alpha``.

    Fields:
        alpha: type I errors, increasing from 0 to 1, float64 [n].
        curve: certified bracket on the trade-off curve f, the least type II error.
        approximate_dp: f_{epsilon, delta} at the upper end of ``epsilon``; certified to lie below f.
        gaussian_certified: G_mu at ``mu_upper``, lowered by the failure probability; certified to lie below f.
        gaussian_clt: G_mu at ``mu_clt``; asymptotic, may lie on either side of f.
        epsilon: certified bracket at ``delta``.
        delta: as given.
        mu_upper: certified mu with failure probability `MU_FAILURE`.
        mu_clt: asymptotic mu.
    """

    alpha: np.ndarray
    curve: Bounds
    approximate_dp: np.ndarray
    gaussian_certified: np.ndarray
    gaussian_clt: np.ndarray
    epsilon: Bounds
    delta: float
    mu_upper: float
    mu_clt: float


class EpsilonCurves(NamedTuple):
    """Epsilon against the number of steps by every accountant.

    Fields:
        num_steps: increasing whole numbers, float64 [n].
        delta: as given.
        certified: bracket on the true epsilon.
        moments_accountant: upper bound.
        moments_accountant_classic: upper bound, with the conversion of the papers that introduced it.
        clt: asymptotic, may understate.
    """

    num_steps: np.ndarray
    delta: float
    certified: Bounds
    moments_accountant: np.ndarray
    moments_accountant_classic: np.ndarray
    clt: np.ndarray


def tradeoff_curves(
    noise_multiplier: float, sampling_prob: float, num_steps: float, delta: float, *, num_points: int = 96
) -> TradeoffCurves:
    """The trade-off curve of DP-SGD with Poisson sampling, and what it is compared with.

    Formula: see the module docstring.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        delta: probability strictly between 0 and 1.
        num_points: about the number of alphas, >= 8; the smallest is delta / 100 or less.

    Returns:
        `TradeoffCurves`, with the standing of each curve.

    Raises:
        ValueError: an argument outside its range.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Sections 2 and 3.

    >>> curves = tradeoff_curves(1.0, 0.01, 100, 1e-5, num_points=8)
    >>> bool((curves.approximate_dp <= curves.curve.upper).all())
    True
    """
    _check_run(noise_multiplier, sampling_prob, num_steps, delta, num_points)
    run = noise_multiplier, sampling_prob, num_steps
    epsilon = Bounds(*(float(end) for end in epsilon_bounds(*run, delta)))
    alpha = _alphas(num_points, epsilon.upper, delta)
    mu_upper, mu_clt = float(mu_bounds(*run, MU_FAILURE).upper), float(clt_mu_poisson(*run))
    inside = np.minimum(alpha / (1 - MU_FAILURE), 1.0)
    return TradeoffCurves(
        alpha=alpha,
        curve=tradeoff_bounds(*run, alpha),
        approximate_dp=approximate_dp_tradeoff(alpha, epsilon.upper, delta),
        gaussian_certified=(1 - MU_FAILURE) * gdp_tradeoff(inside, mu_upper),
        gaussian_clt=gdp_tradeoff(alpha, mu_clt),
        epsilon=epsilon,
        delta=float(delta),
        mu_upper=mu_upper,
        mu_clt=mu_clt,
    )


def epsilon_curves(
    noise_multiplier: float,
    sampling_prob: float,
    num_steps: float,
    delta: float,
    *,
    num_points: int = 48,
    log: bool = False,
) -> EpsilonCurves:
    """Epsilon of the first T steps of a DP-SGD run with Poisson sampling, T = 1 to num_steps, by every accountant.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1, the largest number of steps.
        delta: probability strictly between 0 and 1.
        num_points: at most this many numbers of steps, >= 8.
        log: spaced evenly in the logarithm.

    Returns:
        `EpsilonCurves`, with the standing of each curve.

    Raises:
        ValueError: an argument outside its range.

    Reference: `gdpjax.accounting`, function by function.

    >>> curves = epsilon_curves(1.0, 0.01, 100, 1e-5, num_points=8)
    >>> bool((curves.certified.upper <= curves.moments_accountant).all())
    True
    """
    _check_run(noise_multiplier, sampling_prob, num_steps, delta, num_points)
    # epsilon grows like a square root, so that without logarithms squares are spaced evenly to the eye
    spaced = np.geomspace(1, num_steps, num_points) if log else num_steps * np.linspace(0, 1, num_points) ** 2
    steps = np.unique(np.maximum(np.round(spaced), 1.0))
    run = noise_multiplier, sampling_prob, steps, delta
    return EpsilonCurves(
        num_steps=steps,
        delta=float(delta),
        certified=epsilon_bounds(*run),
        moments_accountant=moments_accountant_epsilon(*run),
        moments_accountant_classic=moments_accountant_epsilon(*run, conversion="classic"),
        clt=clt_epsilon(*run),
    )


def approximate_dp_tradeoff(alpha: Any, epsilon: float, delta: float) -> np.ndarray:
    """The trade-off curve that (epsilon, delta)-DP is.

    Formula: f(alpha) = max(0, 1 - delta - e^epsilon alpha, e^{-epsilon} (1 - delta - alpha)).

    Args:
        alpha: type I errors in [0, 1], any shape.
        epsilon: >= 0 in nats, inf allowed.
        delta: in [0, 1].

    Returns:
        f(alpha), of the shape of alpha; exact.

    Raises:
        ValueError: an argument outside its range.

    Reference: Wasserman and Zhou, arXiv:0811.2501; Dong, Roth and Su, arXiv:1905.02383, Proposition 2.5.

    >>> print(approximate_dp_tradeoff([0.0, 0.25, 1.0], 0.0, 0.5))
    [0.5  0.25 0.  ]
    """
    check("alpha", alpha, UNIT)
    check("epsilon", epsilon, EXTENDED_NONNEGATIVE)
    check("delta", delta, UNIT)
    alpha = np.asarray(alpha, np.float64)
    steep = 1.0 - delta - np.exp(min(epsilon, 700.0)) * alpha
    return np.maximum(np.maximum(steep, np.exp(-epsilon) * (1.0 - delta - alpha)), 0.0)


def plot_tradeoff(curves: TradeoffCurves, *, log: bool = False) -> "Figure":
    """Draw a trade-off curve with its certified band, f_{epsilon, delta} and G_mu.

    Args:
        curves: from `tradeoff_curves`.
        log: draw the power 1 - f(alpha) of the best test on logarithmic axes, which shows the tails.

    Returns:
        a matplotlib figure, one column wide; save it with `save_figure`.

    Raises:
        ValueError: matplotlib is not installed.

    >>> x = np.array([0.0, 0.5, 1.0])
    >>> private = TradeoffCurves(x, Bounds(1 - x, 1 - x), 1 - x, 1 - x, 1 - x, Bounds(0.0, 0.0), 1e-5, 0.0, 0.0)
    >>> len(plot_tradeoff(private).axes[0].lines)
    6
    """
    with _figure(3.75) as (figure, axes):
        shown = (curves.alpha > 0) & (curves.alpha < 1) if log else slice(None)
        alpha = curves.alpha[shown]

        def height(beta: np.ndarray) -> np.ndarray:
            return 1.0 - beta[shown] if log else beta[shown]

        band = _draw_band(axes, alpha, *map(height, curves.curve))
        (steep,) = axes.plot(alpha, height(curves.approximate_dp), **_DASHED)
        (safe,) = axes.plot(alpha, height(curves.gaussian_certified), **_DASH_DOTTED)
        (limit,) = axes.plot(alpha, height(curves.gaussian_clt), **_DOTTED)
        (blind,) = axes.plot(alpha, height(1.0 - curves.alpha), color=_GREY, linewidth=0.6)
        labels = {
            band: r"$f$ of this run: certified band",
            steep: rf"$f_{{\varepsilon,\delta}}$, $\varepsilon = {curves.epsilon.upper:.4g}$, "
            rf"$\delta = {_scientific(curves.delta)}$: certified bound",
            safe: rf"$G_\mu$, $\mu = {curves.mu_upper:.3g}$: certified bound, failure ${_scientific(MU_FAILURE)}$",
            limit: rf"$G_\mu$, CLT $\mu = {curves.mu_clt:.3g}$: asymptotic, may understate",
            blind: r"$1 - \alpha$: perfect privacy",
        }
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

    >>> x = np.array([1.0, 2.0])
    >>> plot_epsilon(EpsilonCurves(x, 1e-5, Bounds(x, x), x, x, x)).axes[0].get_xlabel()
    'number of steps'
    """
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


def save_figure(figure: "Figure", path: "str | os.PathLike[str]") -> None:
    """Write a figure to .png (300 dots an inch), .pdf or .svg (vectors, fonts included).

    Args:
        figure: from `plot_tradeoff` or `plot_epsilon`, or any other.
        path: ends in .png, .pdf or .svg; an existing file is replaced.

    Raises:
        ValueError: another suffix.
    """
    suffix = check_path(path)
    with _matplotlib().rc_context(_STYLE):
        figure.savefig(path, dpi=300, metadata=_METADATA[suffix])


def check_path(path: "str | os.PathLike[str]") -> str:
    """The suffix of a picture's path; ValueError unless it can be written."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _METADATA:
        raise ValueError(f"{path} must end in one of {', '.join(_METADATA)}")
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
        raise ValueError("pictures need matplotlib: pip install 'gdpjax[plot]'") from error
    return matplotlib


def _check_run(noise_multiplier: Any, sampling_prob: Any, num_steps: Any, delta: Any, num_points: Any) -> None:
    check_scalar("noise_multiplier", noise_multiplier, POSITIVE)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    check_scalar("num_steps", num_steps, COUNT)
    check_scalar("delta", delta, DELTA)
    check_scalar("num_points", num_points, Domain("a whole number >= 8", lambda x: (x >= 8) & (x == x // 1)))


def _alphas(num_points: int, epsilon: float, delta: float) -> np.ndarray:
    """0, 1, the kinks of f_{epsilon, delta}, and in between evenly spaced quantiles of the normal distribution.

    Gaussian trade-off curves are straight lines in these, so that every part of them is resolved alike.
    """
    lowest = min(1e-6, delta / 100)
    spaced = ndtr(np.linspace(ndtri(lowest), -ndtri(lowest), num_points))
    kink = (1.0 - delta) * np.exp(-np.logaddexp(0.0, epsilon))
    return np.unique(np.concatenate([[0.0, kink, 1.0 - delta, 1.0], spaced]))


def _finite(values: Any) -> np.ndarray:
    """Without infinities, which cannot be drawn."""
    return np.where(np.isfinite(values), values, np.nan)


def _scientific(value: float) -> str:
    """A number as mathtext: 1e-05 is 10^{-5}."""
    mantissa, exponent = f"{value:e}".split("e")
    factor = f"{float(mantissa):g}"
    return ("" if factor == "1" else rf"{factor} \times ") + f"10^{{{int(exponent)}}}"
