"""Random allocation: brackets against exact formulas, quadrature, a peer's figures and simulation."""

import numpy as np
import pytest
from scipy.special import ndtr

from gdpjax import Bounds, accounting
from gdpjax.accounting import delta_bounds, epsilon_bounds
from gdpjax.accounting._allocation import _average, _law
from gdpjax.ledger import AllocationEvent

# noise multiplier, steps, epochs, delta, and the two ends of the package PLD_accounting 2.0
PEER = np.array([
    (0.6, 2, 20, 1e-5, 47.282605895433896, 47.43329771329769),
    (0.6, 2, 5, 1e-8, 23.80203791268275, 23.90934578672706),
    (2.0, 1000, 1, 1e-5, 0.04785138146696594, 0.049866803025534735),
    (1.0, 1000, 1, 1e-5, 0.13637424910075951, 0.1421825720585536),
    (1.0, 10, 5, 1e-5, 4.243452674708505, 4.322845766911284),
    (0.6, 10, 20, 1e-5, 26.042685050346034, 26.153827987639982),
    (1.0, 2, 5, 1e-5, 8.787473279419947, 8.88603456901483),
    (2.0, 1000, 1, 1e-8, 0.07551896981148461, 0.07837347391991213),
    (1.0, 100, 5, 1e-5, 1.1792932506701461, 1.2339034724275642),
    (0.6, 1000, 5, 1e-8, 4.019813830984783, 4.0863798707598376),
    (2.0, 10, 1, 1e-8, 0.9163823639708503, 0.9615888549729189),
    (0.6, 100, 20, 1e-8, 13.096596663466585, 13.188194051285317),
    (2.0, 2, 1, 1e-8, 2.040846599330418, 2.120150353102954),
])  # fmt: skip


def each(question, noise_multiplier, steps_per_epoch, num_epochs, at, **scheme):
    """Return the brackets that a question has for each run of the arrays, at each number of ``at``."""
    rows = np.broadcast(noise_multiplier, steps_per_epoch, num_epochs, at)
    brackets = [question(AllocationEvent(*run, **scheme), number) for *run, number in rows]
    lower, upper = np.transpose(brackets).reshape(2, *rows.shape)
    return Bounds(lower, upper)


def epsilon_of_epochs(*run, **scheme):
    """Return the brackets on epsilon of a noise multiplier, steps an epoch and epochs, at a delta, or of arrays."""
    return each(lambda event, delta: epsilon_bounds(event, delta=delta), *run, **scheme)


def delta_of_epochs(*run, **scheme):
    """Return the brackets on delta, at an epsilon."""
    return each(lambda event, epsilon: delta_bounds(event, epsilon=epsilon), *run, **scheme)


def log_normal(noise_multiplier, points):
    """Return values and weights of Y = e^{g / s - 1 / (2 s^2)}, g standard normal.

    The rule is the trapezoid one, exact to rounding.
    """
    g = np.linspace(-9.5, 9.5 + 1 / noise_multiplier, points)
    density = np.exp(-0.5 * g**2) / np.sqrt(2 * np.pi)
    weights = density * (g[1] - g[0])
    values = np.exp(g / noise_multiplier - 0.5 / noise_multiplier**2)
    return values, weights


def standardized_log(positive, noise_multiplier):
    """Return the g at which Y has the given values."""
    return np.log(positive) * noise_multiplier + 0.5 / noise_multiplier


def expected_excess(strike, noise_multiplier):
    """Return E (Y - strike)_+ in closed form; 1 - strike for strike <= 0."""
    positive = np.maximum(strike, 1e-300)
    a = standardized_log(positive, noise_multiplier)
    excess = ndtr(1 / noise_multiplier - a) - positive * ndtr(-a)
    return np.where(strike > 0, excess, 1 - strike)


def expected_shortfall(strike, noise_multiplier):
    """Return E (strike - Y)_+ in closed form; 0 for strike <= 0."""
    positive = np.maximum(strike, 1e-300)
    a = standardized_log(positive, noise_multiplier)
    shortfall = positive * ndtr(a) - ndtr(a - 1 / noise_multiplier)
    return np.where(strike > 0, shortfall, 0.0)


def over_all_but_one_step(of_last_step, strike, noise_multiplier, num_steps, points=600):
    """Return E of (R - strike)_+ or (strike - R)_+, for R the mean of two or three independent Y.

    The last of them is integrated in closed form, by ``of_last_step``.
    """
    y, weights = log_normal(noise_multiplier, points)
    if num_steps == 2:
        rest = 2 * strike - y
        return np.sum(weights * of_last_step(rest, noise_multiplier)) / 2
    rest = 3 * strike - y - y[:, None]
    joint_weights = weights * weights[:, None]
    return np.sum(joint_weights * of_last_step(rest, noise_multiplier)) / 3


def delta_by_quadrature(noise_multiplier, num_steps, epsilon):
    """Return delta of one epoch: the larger of E (R - e^epsilon)_+ and E (1 - e^epsilon R)_+."""
    strike = np.exp(epsilon)
    remove = over_all_but_one_step(expected_excess, strike, noise_multiplier, num_steps)
    add = strike * over_all_but_one_step(expected_shortfall, 1 / strike, noise_multiplier, num_steps)
    return max(remove, add)


@pytest.mark.parametrize("steps", [2, 3])
def test_one_epoch_agrees_with_quadrature(steps):
    """The brackets contain the integral, and are within 2 % of it."""
    for noise_multiplier in (0.6, 1.0, 3.0):
        for epsilon in np.array([0.05, 0.5, 1.5, 3.0]) / noise_multiplier:
            delta = delta_by_quadrature(noise_multiplier, steps, epsilon)
            bounds = delta_of_epochs(noise_multiplier, steps, 1, epsilon)
            assert bounds.lower <= delta * (1 + 1e-9)
            assert delta * (1 - 1e-9) <= bounds.upper
            assert bounds.upper <= 1.02 * bounds.lower + 1e-14
            bounds = epsilon_of_epochs(noise_multiplier, steps, 1, delta)
            assert bounds.lower <= epsilon * (1 + 1e-9)
            assert epsilon * (1 - 1e-9) <= bounds.upper


def test_one_step_is_the_gaussian_mechanism():
    """With one step an epoch, or all of them selected, epsilon is that of composed Gaussian noise."""
    noise_multiplier = np.array([0.3, 1.0, 7.0, 50.0])
    num_epochs = np.array([1, 3, 100, 1000])
    delta = 10.0 ** -np.array([2, 5, 8, 12])
    exact = accounting.gdp_epsilon(delta, np.sqrt(num_epochs) / noise_multiplier)
    bounds = epsilon_of_epochs(noise_multiplier, 1, num_epochs, delta)
    np.testing.assert_allclose(bounds, [exact, exact], rtol=3e-9, atol=2e-12)
    assert (bounds.lower <= exact).all()
    assert (exact <= bounds.upper).all()

    # All of four steps selected.
    all_selected = epsilon_of_epochs(noise_multiplier, 4, num_epochs, delta, num_selected=4)
    exact = accounting.gdp_epsilon(delta, 2 * np.sqrt(num_epochs) / noise_multiplier)
    np.testing.assert_allclose(all_selected, [exact, exact], rtol=3e-9)


def test_the_bracket_is_narrow_and_meets_that_of_a_peer():
    """The bracket has a relative width of 1e-3 and overlaps that of the package PLD_accounting."""
    noise_multiplier, steps_per_epoch, num_epochs, delta, peer_lower, peer_upper = PEER.T
    bounds = epsilon_of_epochs(noise_multiplier, steps_per_epoch, num_epochs, delta)
    assert (bounds.lower <= peer_upper).all()
    assert (peer_lower <= bounds.upper).all()
    assert (bounds.upper <= 1.001 * bounds.lower).all()


def test_fixed_bins_are_one_epoch_with_less_noise():
    """Nine epochs with the same bins cost what one epoch with a third of the noise costs."""
    fixed = epsilon_of_epochs(3.0, 12, 9, 1e-6, bins="fixed")
    one_epoch = epsilon_of_epochs(1.0, 12, 1, 1e-6)
    np.testing.assert_allclose(fixed, one_epoch, rtol=1e-9)

    # Bins drawn anew are better, and both are better than all steps.
    fresh = epsilon_of_epochs(3.0, 12, 9, 1e-6)
    assert fresh.upper < fixed.lower
    assert fixed.upper < accounting.gdp_epsilon(1e-6, 1.0)


def test_blocks_are_composed():
    """Several selected steps are one selected step in each of several blocks."""
    # 6 of 12 in blocks of two is six epochs of two steps.
    blocks = epsilon_of_epochs(1.0, 12, 2, 1e-6, num_selected=6)
    epochs_of_two = epsilon_of_epochs(1.0, 2, 12, 1e-6)
    np.testing.assert_allclose(blocks, epochs_of_two, rtol=1e-9)

    # 2 of 5 is a block of two and one of three, so between blocks of three only and of two only.
    mixed = epsilon_of_epochs(1.0, 5, 3, 1e-6, num_selected=2)
    assert epsilon_of_epochs(1.0, 3, 6, 1e-6).upper < mixed.lower
    assert mixed.upper < epsilon_of_epochs(1.0, 2, 6, 1e-6).lower
    assert mixed.upper < 1.001 * mixed.lower


def test_hard_corners_give_true_brackets():
    """Tiny noise, many steps and tiny deltas still give brackets below the Gaussian epsilon."""
    noise_multiplier = np.array([0.01, 0.3, 50.0, 1.0, 1.0])
    steps_per_epoch = np.array([10, 1e5, 1e5, 2.0**50, 2])
    num_epochs = np.array([1, 1000, 1, 10, 1])
    delta = np.array([1e-5, 1e-12, 1e-2, 1e-5, 1e-200])
    bounds = epsilon_of_epochs(noise_multiplier, steps_per_epoch, num_epochs, delta)
    gaussian = accounting.gdp_epsilon(delta, np.sqrt(num_epochs) / noise_multiplier)
    assert (bounds.lower >= 0).all()
    assert (bounds.lower <= bounds.upper).all()
    assert (bounds.upper <= gaussian * (1 + 2e-9) + 1e-12).all()
    assert bounds.upper[2] == 0  # delta(0) is below delta

    # Many rounds of averages, which end on a grid much finer than the first, and a delta that few outcomes decide.
    bounds = epsilon_of_epochs(1.0, np.array([1e6, 10]), 1, np.array([1e-6, 1e-60]))
    assert (bounds.upper < 1.002 * bounds.lower).all()


def test_a_law_and_its_averages_keep_mass_and_mean():
    """Both laws have the mass and the mean of R, but for a stated loss; the upper one has the larger spread."""
    step, grid = _law.one_step(1.0, 400, -60.0)
    for num_steps in (1, 2, 3, 5, 12, 100):
        laws, finest = _average.average_of_steps(step, grid, num_steps, True, -60.0)
        values = np.exp(finest.log_values())
        for number, law in zip((num_steps, num_steps + 1), laws, strict=True):
            means = values * (1 + law.mean_excess())
            lower_mass = law.lower.sum()
            lower_mean = law.lower @ means
            np.testing.assert_allclose([lower_mass, lower_mean], 1, atol=1e-12)

            # For its rounding errors mass is added to the upper law.
            upper_mass = law.upper.sum()
            upper_mean = law.upper @ values
            assert 1 - 1e-12 < upper_mass < 1 + 1e-10 * number
            assert 1 - 1e-12 < upper_mean < 1 + 1e-10 * number

            variance = (np.e - 1) / number
            lower_variance = law.lower @ (means - 1) ** 2
            upper_variance = law.upper @ (values - 1) ** 2
            assert lower_variance < variance < upper_variance
            assert upper_variance < 1.1 * lower_variance


@pytest.mark.parametrize(("share", "factor"), [(0.5, 1), (0.4, 1), (2 / 3, 2), (1 / 3, 4)])
def test_an_average_is_that_of_all_pairs(share, factor):
    """An average is a sum over all pairs of values, for two laws with any masses."""
    rng = np.random.default_rng(7)
    size = 61
    spacing = 0.11
    grid = _law.RatioGrid(-2.5, spacing, size)

    def random_law(scale):
        envelope = np.exp(-scale * np.linspace(-1, 1, size) ** 2)
        upper, lower = rng.exponential(size=(2, size)) * envelope
        excess = lower * rng.uniform(-0.5, 0.5, size) * spacing
        return _law.RatioLaw(upper, 1e-3, 2e-3, lower, excess, 1e-15, 1e-15, 1e-15)

    first = random_law(3.0)
    second = random_law(5.0)
    averaged, finer = _average.average(first, second, grid, share, factor)

    # The cell of the finer grid into which the average of each pair of values falls.
    ends = np.exp(finer.log_values())
    values = np.exp(grid.log_values())
    averages = share * values[:, None] + (1 - share) * values
    cells = np.searchsorted(ends * (1 - 1e-13), averages, side="right") - 1
    cells = np.clip(cells, 0, finer.size - 1)

    def total_in_cells(amounts):
        return np.bincount(cells.ravel(), amounts.ravel(), finer.size)

    # Lower: the mass and the mean of what is in a cell, under the label whose value is nearest on the whole.
    mass = first.lower[:, None] * second.lower
    first_means = values * (1 + first.excess / first.lower)
    second_means = values * (1 + second.excess / second.lower)
    mean = mass * (share * first_means[:, None] + (1 - share) * second_means)
    exact_mass = total_in_cells(mass)
    exact_mean = total_in_cells(mean)
    drift = np.log(np.sum(exact_mean / ends) / np.sum(exact_mass)) / finer.spacing
    exact_mass = np.roll(exact_mass, round(drift))
    exact_mean = np.roll(exact_mean, round(drift))
    np.testing.assert_allclose(averaged.lower, exact_mass, rtol=1e-13)
    np.testing.assert_allclose(averaged.lower + averaged.excess, exact_mean / ends, rtol=1e-12)

    # Upper: each value is split between the ends of its cell, and never less than that.
    mass = first.upper[:, None] * second.upper
    right_share = np.clip((averages / ends[cells] - 1) / np.expm1(finer.spacing), 0, 1)
    exact = total_in_cells(mass * (1 - right_share))
    exact[1:] += total_in_cells(mass * right_share)[:-1]
    exact[::factor] += first.at_zero * (1 - share) * second.upper
    exact[::factor] += second.at_zero * share * first.upper
    assert (averaged.upper >= exact * (1 - 1e-14)).all()
    np.testing.assert_allclose(averaged.upper, exact, rtol=1e-9)

    # The sums and the values left at 0 and infinity are those of all pairs.
    first_total = first.upper.sum() + first.at_zero
    second_total = second.upper.sum() + second.at_zero
    np.testing.assert_allclose(averaged.upper.sum() + averaged.at_zero, first_total * second_total, rtol=1e-9)
