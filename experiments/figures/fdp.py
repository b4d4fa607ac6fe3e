"""``figures``: the pictures of docs/fdp.md, and private histograms whose error bars are compared with theory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.config import FiguresConfig
from experiments.data.adult_education import EDUCATION, education_levels, find_adult, synthetic_levels
from experiments.figures.correlated import correlated_noise
from gdpjax.mechanisms import GaussianMechanism, LaplaceMechanism, RandomizedResponse
from gdpjax.plotting.style import BELOW, BLUE, COLUMN, GREY, RED, look
from gdpjax.tradeoff import (
    ApproximateDP,
    Curve,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    central_limit,
    compose,
    delta,
    subsample,
)

ALPHA = np.concatenate(
    [
        [0.0],
        np.geomspace(1e-4, 0.1, 30),
        np.linspace(0.1, 1.0, 46)[1:],
    ]
)
"""Type I errors at which a smooth curve is drawn: more where it is steep."""

TOTAL_EPSILON = 1.5
"""Of the figure of composition: n steps of epsilon TOTAL_EPSILON / sqrt(n) each."""

NOISE_OF_COUNTS = 40.0
"""Standard deviation of the noise of the histogram."""

NORMAL_QUANTILE = 1.96
"""How many standard deviations a 95 % error bar is long, to each side."""


def run(config: FiguresConfig) -> None:
    """Draw every figure into the output folder."""
    config.output.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        path = config.output / f"{name}.svg"
        # Text stays text: the files are half as large.
        with look(**{"svg.fonttype": "none", "mathtext.fontset": "dejavusans"}):
            draw().savefig(path, metadata={"Date": None})
        print(f"Figure: {path}")


def _unit_squares(columns: int = 1, *, legend: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Make axes for trade-off curves, side by side, with the line of perfect privacy, and inches for a legend below."""
    size = (COLUMN * columns, 3.1 + legend)
    figure = Figure(size, layout="constrained")
    grid = figure.subplots(1, columns, squeeze=False)
    row = list(grid[0])
    for axes in row:
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set(xlabel=r"type I error $\alpha$", ylabel=r"type II error $\beta$")
        axes.plot([0, 1], [1, 0], color=GREY, linestyle="-", linewidth=0.6)
    return figure, row


def _draw_curve(axes: Axes, curve: Curve, **options: Any) -> None:
    """Draw a trade-off curve: a polygon by its corners, any other on a grid."""
    points = ALPHA
    if isinstance(curve, PiecewiseLinear):
        points = np.asarray(curve.alpha)
    elif isinstance(curve, ApproximateDP):
        at_most = 1.0 - float(curve.delta)
        corner = at_most / (1.0 + np.exp(float(curve.epsilon)))
        points = np.array([0.0, corner, at_most, 1.0])
    axes.plot(points, curve(points), **options)


def _gaussian_family() -> Figure:
    """Draw the Gaussian curves of several mu."""
    figure, (axes,) = _unit_squares()
    for mu in (0.5, 1.0, 3.0, 6.0):
        _draw_curve(axes, Gaussian(mu), label=rf"$\mu = {mu:g}$")

    # The last curve is all but zero: the axes stand beside it.
    axes.set(xlim=(-0.03, 1), ylim=(-0.03, 1))
    axes.legend(title=r"$G_\mu$")
    return figure


def _tangents() -> Figure:
    """Draw G_1 as the upper envelope of its (epsilon, delta) bounds."""
    figure, (axes,) = _unit_squares()
    curve = Gaussian(1.0)
    _draw_curve(axes, curve, linewidth=2, label="$G_1$")
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        tangent_delta = delta(curve, epsilon)
        tangent = ApproximateDP(epsilon, tangent_delta)
        label = rf"$\varepsilon = {epsilon:g}$, $\delta = {tangent_delta:.3f}$"
        _draw_curve(axes, tangent, label=label)
    axes.legend()
    return figure


def _mechanisms() -> Figure:
    """Draw the curves of the mechanisms, with the legend beside them."""
    figure, (axes,) = _unit_squares(legend=1.0)
    _draw_curve(axes, Identity(), color=GREY, linestyle="-", linewidth=0.6, label="perfect privacy")

    # Noise that is added to a number.
    gaussian = GaussianMechanism(1.0).tradeoff()
    _draw_curve(axes, gaussian, label="Gaussian, stddev 1")
    laplace = LaplaceMechanism(1.0).tradeoff()
    _draw_curve(axes, laplace, label=r"Laplace, $\varepsilon = 1$")

    # An answer that is sometimes another one.
    for num_categories in (2, 10):
        response = RandomizedResponse(1.0, num_categories).tradeoff()
        label = rf"randomized response, $\varepsilon = 1$, $k = {num_categories}$"
        _draw_curve(axes, response, label=label)

    # What every (epsilon, delta)-DP mechanism satisfies.
    approximate = ApproximateDP(1.0, 0.1)
    label = r"$f_{\varepsilon, \delta}$, (1, 0.1)"
    _draw_curve(axes, approximate, label=label)
    figure.legend(loc=BELOW)
    return figure


def _subsampling() -> Figure:
    """Draw C_p(f), and the two curves that it is the convex envelope of."""
    figure, (axes,) = _unit_squares()
    base = Gaussian(1.8)
    prob = 0.35
    sampled = subsample(base, prob)
    removed = sampled.one_direction
    added = removed.inverse()
    _draw_curve(axes, sampled, linewidth=3, alpha=0.4, label="$C_p(f)$")
    _draw_curve(axes, removed, label="$f_p$ (remove)")
    _draw_curve(axes, added, label="$f_p^{-1}$ (add)")
    _draw_curve(axes, base, label="$f = G_{1.8}$")
    axes.legend(title="$p = 0.35$")
    return figure


def _composition() -> Figure:
    """Draw how the composition of many weak steps approaches a Gaussian curve."""
    figure, (left, right) = _unit_squares(2)
    panels = (
        (left, "randomized response", ApproximateDP),
        (right, "Laplace", Laplace),
    )
    for axes, name, step in panels:
        # Of very many steps the limit, and how far from it they may be.
        limit = central_limit(step(TOTAL_EPSILON / np.sqrt(400)), times=400)
        band = limit.bounds(ALPHA)
        label = "band, $n = 400$"
        axes.fill_between(ALPHA, band.lower, band.upper, color=BLUE, alpha=0.2, linewidth=0, label=label)
        mu = float(limit.band_mu)
        _draw_curve(axes, Gaussian(mu), label=rf"$G_\mu$, $\mu = {mu:.2f}$")

        # Certified compositions of a few steps.
        for num_steps in (1, 4, 16):
            composed = compose(step(TOTAL_EPSILON / np.sqrt(num_steps)), times=num_steps)
            _draw_curve(axes, composed.lower, label=f"$n = {num_steps}$")

        axes.set_title(rf"{name}, $\varepsilon = {TOTAL_EPSILON:g} / \sqrt{{n}}$")
        axes.legend()
    return figure


def _histogram() -> Figure:
    """Draw private histograms of one column, by central noise and by randomized response, with their error bars."""
    path = find_adult()
    if path is None:
        print("The Adult data are not in GDPJAX_DATA: the histogram uses synthetic people instead.")
        levels = synthetic_levels()
        label_of_counts = "true counts (synthetic)"
        title = "Synthetic people"
    else:
        levels = education_levels(path)
        label_of_counts = "true counts"
        title = "Education of the Adult data, with 95 % error bars"
    num_people, num_levels = len(levels), len(EDUCATION)
    counts = np.bincount(levels, minlength=num_levels).astype(np.float64)

    # A trusted curator adds noise to the counts: a person is in one of them.
    mechanism = GaussianMechanism(NOISE_OF_COUNTS)
    noisy = np.asarray(mechanism.sample(jax.random.key(0), jnp.asarray(counts), sensitivity=1.0))

    # Without a curator everybody randomizes the own answer, and the counts are estimated from the answers.
    response = RandomizedResponse(2.0, num_levels)
    answers = np.asarray(response.sample(jax.random.key(1), levels))
    estimate = response.estimate(np.bincount(answers, minlength=num_levels))
    local_counts = num_people * estimate.frequencies
    local_errors = num_people * estimate.standard_errors

    # Bars of the true counts, and beside each other the two estimates.
    figure = Figure((6.6, 3.0), layout="constrained")
    axes = figure.subplots()
    place = np.arange(num_levels)
    axes.bar(place, counts, color="0.85", label=label_of_counts)
    points: dict[str, Any] = {"fmt": ".", "capsize": 2, "linewidth": 1, "markersize": 4}
    label = r"Gaussian noise, $\mu = 1/40$"
    axes.errorbar(place - 0.15, noisy, NORMAL_QUANTILE * NOISE_OF_COUNTS, color=BLUE, label=label, **points)
    label = r"randomized response, $\varepsilon = 2$"
    axes.errorbar(place + 0.15, local_counts, NORMAL_QUANTILE * local_errors, color=RED, label=label, **points)
    axes.set_xticks(place, EDUCATION, rotation=60, ha="right", fontsize=7)
    axes.set(ylabel="people", title=title)
    axes.legend()
    return figure


FIGURES = {
    "gaussian_family": _gaussian_family,
    "tangents": _tangents,
    "mechanisms": _mechanisms,
    "subsampling": _subsampling,
    "composition": _composition,
    "histogram": _histogram,
    "correlated_noise": correlated_noise,
}
"""By the name of the file."""
