"""``fdp-figures``: the pictures of docs/fdp.md, and private histograms whose error bars are compared with theory."""

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.config import FdpFiguresConfig
from experiments.data.adult_education import EDUCATION, education_levels, find_adult, synthetic_levels
from gdpjax.mechanisms import GaussianMechanism, LaplaceMechanism, RandomizedResponse
from gdpjax.tradeoff import (
    ApproximateDP,
    Curve,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    berry_esseen,
    compose,
    delta,
    inverse,
    mixture,
    subsample,
)

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"  # Okabe and Ito
ALPHA = np.concatenate([[0.0], np.geomspace(1e-4, 0.1, 30), np.linspace(0.1, 1.0, 46)[1:]])
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none",
    "svg.hashsalt": "gdpjax", "path.simplify": True, "legend.frameon": False,
}  # fmt: skip


def run(config: FdpFiguresConfig) -> None:
    """Draw every figure into the output folder."""
    config.output.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw()
            figure.savefig(config.output / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
            print(f"Figure: {config.output / name}.svg")


def _axes(columns: int = 1, *, width: float = 3.4) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(1, columns, figsize=(width * columns, 3.2), layout="constrained", squeeze=False)
    for each in axes[0]:
        each.set(
            xlim=(0, 1), ylim=(0, 1), xlabel=r"type I error $\alpha$", ylabel=r"type II error $\beta$", aspect="equal"
        )
        each.plot([0, 1], [1, 0], color="0.75", linewidth=0.8)
    return figure, list(axes[0])


def _draw(axes: Axes, curve: Curve, *style: str, **options: Any) -> None:
    """A curve: polygons by their corners, others on a grid."""
    points = ALPHA
    if isinstance(curve, PiecewiseLinear):
        points = np.asarray(curve.alpha)
    elif isinstance(curve, ApproximateDP):
        rest = 1.0 - float(curve.delta)
        points = np.array([0.0, rest / (1.0 + np.exp(float(curve.epsilon))), rest, 1.0])
    axes.plot(points, curve(points), *style, **options)


def _gaussian_family() -> Figure:
    figure, (axes,) = _axes()
    for mu, color in zip((0.5, 1.0, 3.0, 6.0), (BLUE, GREEN, ORANGE, RED), strict=True):
        _draw(axes, Gaussian(mu), color=color, clip_on=False, label=rf"$\mu = {mu:g}$")
    axes.legend(title=r"$G_\mu$")
    return figure


def _tangents() -> Figure:
    figure, (axes,) = _axes()
    curve = Gaussian(1.0)
    for epsilon, color in zip((0.0, 0.5, 1.0, 2.0), (PURPLE, BLUE, GREEN, ORANGE), strict=True):
        bound = delta(curve, epsilon)
        label = rf"$\varepsilon = {epsilon:g}$, $\delta = {bound:.3f}$"
        _draw(axes, ApproximateDP(epsilon, bound), color=color, linewidth=1, label=label)
    _draw(axes, curve, color="black", linewidth=1.6, label="$G_1$")
    axes.legend(fontsize=8)
    return figure


def _mechanisms() -> Figure:
    figure, (axes,) = _axes(width=5.6)  # the legend is beside it
    _draw(axes, Identity(), color="0.75", linewidth=0.8, label="perfect privacy")
    _draw(axes, GaussianMechanism(1.0).tradeoff(), color=BLUE, label="Gaussian, stddev 1")
    _draw(axes, LaplaceMechanism(1.0).tradeoff(), "--", color=ORANGE, label=r"Laplace, $\varepsilon = 1$")
    kinds = ((2, "-.", GREEN), (10, ":", RED))
    for k, style, color in kinds:
        label = rf"randomized response, $\varepsilon = 1$, $k = {k}$"
        _draw(axes, RandomizedResponse(1.0, k).tradeoff(), style, color=color, label=label)
    _draw(axes, ApproximateDP(1.0, 0.1), color=PURPLE, linewidth=1, label=r"$f_{\varepsilon, \delta}$, (1, 0.1)")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _subsampling() -> Figure:
    figure, (axes,) = _axes()
    base, p = Gaussian(1.8), 0.35
    one = mixture(base, p)
    _draw(axes, subsample(base, p), color=BLUE, linewidth=3, alpha=0.35, label="$C_p(f)$")
    _draw(axes, base, color="black", linewidth=1, label="$f = G_{1.8}$")
    _draw(axes, one, "--", color=ORANGE, label="$f_p$ (remove)")
    _draw(axes, inverse(one), ":", color=RED, label="$f_p^{-1}$ (add)")
    axes.legend(title="$p = 0.35$")
    return figure


def _composition() -> Figure:
    figure, (left, right) = _axes(2)
    for axes, name, make in ((left, "randomized response", ApproximateDP), (right, "Laplace", Laplace)):
        for n, color in ((1, RED), (4, ORANGE), (16, GREEN)):
            result = compose(make(1.5 / np.sqrt(n)), times=n)
            _draw(axes, result.lower, color=color, linewidth=1.1, label=f"$n = {n}$")
        limit = berry_esseen(make(1.5 / np.sqrt(400)), times=400)
        band = limit.bounds(ALPHA)
        axes.fill_between(ALPHA, band.lower, band.upper, color=BLUE, alpha=0.2, linewidth=0, label="band, $n = 400$")
        mu = float(limit.curve.mu)
        _draw(axes, Gaussian(mu), color=BLUE, linewidth=1.1, label=rf"$G_\mu$, $\mu = {mu:.2f}$")
        axes.set_title(rf"{name}, $\varepsilon = 1.5 / \sqrt{{n}}$", fontsize=9)
        axes.legend(fontsize=8)
    return figure


def _histogram() -> Figure:
    """A histogram with noise, and the errors of many repetitions against the error bar that theory gives."""
    path = find_adult()
    if path is None:
        print("The Adult data are not in GDPJAX_DATA: the histogram uses synthetic people instead.")
    levels = synthetic_levels() if path is None else education_levels(path)
    counts = np.bincount(levels, minlength=len(EDUCATION)).astype(np.float64)
    mechanism, response = GaussianMechanism(40.0), RandomizedResponse(2.0, len(EDUCATION))
    noisy = np.asarray(mechanism.sample(jax.random.key(0), jnp.asarray(counts), sensitivity=1.0))
    answers = np.asarray(response.sample(jax.random.key(1), levels))
    local = response.estimate(np.bincount(answers, minlength=len(EDUCATION)))
    figure, axes = plt.subplots(figsize=(6.8, 3.0), layout="constrained")
    x, bars = np.arange(len(EDUCATION)), {"fmt": ".", "capsize": 2, "linewidth": 1, "markersize": 4}
    axes.bar(x, counts, color="0.85", label="true counts" if path else "true counts (synthetic)")
    axes.errorbar(x - 0.15, noisy, 1.96 * 40.0, color=BLUE, label=r"Gaussian noise, $\mu = 1/40$", **bars)
    axes.errorbar(
        x + 0.15, len(levels) * local.frequencies, 1.96 * len(levels) * local.standard_errors, color=RED,
        label=r"randomized response, $\varepsilon = 2$", **bars,
    )  # fmt: skip
    axes.set_xticks(x, EDUCATION, rotation=60, ha="right", fontsize=7)
    axes.set(ylabel="people", title="Education of the Adult data, with 95 % error bars" if path else "Synthetic people")
    axes.legend()
    return figure


FIGURES = {
    "gaussian_family": _gaussian_family,
    "tangents": _tangents,
    "mechanisms": _mechanisms,
    "subsampling": _subsampling,
    "composition": _composition,
    "histogram": _histogram,
}
