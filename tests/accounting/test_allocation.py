"""Random allocation: brackets against exact formulas, quadrature, a peer's figures and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from gdpjax import accounting
from gdpjax.accounting import allocation_delta_bounds, allocation_epsilon_bounds
from gdpjax.accounting._allocation import _average, _law, _lognormal

# noise multiplier, steps, epochs, delta, and the two ends of the package PLD_accounting 2.0
PEER = np.array([
    (0.6, 2, 20, 1e-5, 47.282605895433896, 47.43329771329769),
    (0.6, 2, 5, 1e-8, 23.80203791268275, 23.90934578672706),
    (0.6, 2, 1, 1e-8, 9.5807192414756, 9.660868620213147),
    (0.6, 10, 1, 1e-8, 7.980051410626762, 8.01237384885874),
    (2.0, 1000, 1, 1e-5, 0.04785138146696594, 0.049866803025534735),
    (1.0, 1000, 1, 1e-5, 0.13637424910075951, 0.1421825720585536),
    (1.0, 10, 1, 1e-8, 3.482608854576467, 3.51664143702795),
    (1.0, 10, 5, 1e-5, 4.243452674708505, 4.322845766911284),
    (0.6, 10, 20, 1e-5, 26.042685050346034, 26.153827987639982),
    (1.0, 2, 5, 1e-5, 8.787473279419947, 8.88603456901483),
    (0.6, 2, 5, 1e-5, 18.836095789741613, 18.951503289341748),
    (1.0, 1000, 1, 1e-8, 0.28837789125953983, 0.3001940687679946),
    (2.0, 10, 5, 1e-8, 1.9857052247052678, 2.0679238149699914),
    (0.6, 2, 20, 1e-8, 56.72630471494428, 56.8611483205192),
    (2.0, 2, 1, 1e-5, 1.4166519093189802, 1.4909632331468052),
    (2.0, 1000, 1, 1e-8, 0.07551896981148461, 0.07837347391991213),
    (1.0, 100, 5, 1e-5, 1.1792932506701461, 1.2339034724275642),
    (0.6, 1000, 5, 1e-8, 4.019813830984783, 4.0863798707598376),
    (0.6, 2, 1, 1e-5, 7.278240836568467, 7.358480073848003),
    (2.0, 10, 1, 1e-8, 0.9163823639708503, 0.9615888549729189),
    (0.6, 10, 20, 1e-8, 33.25980610800166, 33.357099213252305),
    (0.6, 10, 5, 1e-5, 11.99949936391989, 12.076148047223924),
    (0.6, 100, 20, 1e-8, 13.096596663466585, 13.188194051285317),
    (1.0, 2, 1, 1e-8, 5.050327613560741, 5.132815636437012),
    (2.0, 2, 1, 1e-8, 2.040846599330418, 2.120150353102954),
    (1.0, 10, 5, 1e-8, 6.065203427638213, 6.137224281488776),
])  # fmt: skip


def log_normal(noise_multiplier, points):
    """Values and weights of Y = e^{g / s - 1 / (2 s^2)}, g standard normal: a trapezoid rule, exact to rounding."""
    g = np.linspace(-9.5, 9.5 + 1 / noise_multiplier, points)
    weights = np.exp(-0.5 * g**2) / np.sqrt(2 * np.pi) * (g[1] - g[0])
    return np.exp(g / noise_multiplier - 0.5 / noise_multiplier**2), weights


def call(strike, noise_multiplier):
    """E (Y - strike)_+ in closed form; 1 - strike for strike <= 0."""
    positive = np.maximum(strike, 1e-300)
    a = np.log(positive) * noise_multiplier + 0.5 / noise_multiplier
    return np.where(strike > 0, ndtr(1 / noise_multiplier - a) - positive * ndtr(-a), 1 - strike)


def put(strike, noise_multiplier):
    """E (strike - Y)_+ in closed form; 0 for strike <= 0."""
    positive = np.maximum(strike, 1e-300)
    a = np.log(positive) * noise_multiplier + 0.5 / noise_multiplier
    return np.where(strike > 0, positive * ndtr(a) - ndtr(a - 1 / noise_multiplier), 0.0)


def mean_call(strike, noise_multiplier, steps, points=600):
    """E (R - strike)_+ for R the mean of so many independent Y, the last of which is integrated in closed form."""
    y, weights = log_normal(noise_multiplier, points)
    if steps == 2:
        return np.sum(weights * call(2 * strike - y, noise_multiplier)) / 2
    rest = 3 * strike - y - y[:, None]
    return np.sum(weights * weights[:, None] * call(rest, noise_multiplier)) / 3


def mean_put(strike, noise_multiplier, steps, points=600):
    """E (strike - R)_+ likewise."""
    y, weights = log_normal(noise_multiplier, points)
    if steps == 2:
        return np.sum(weights * put(2 * strike - y, noise_multiplier)) / 2
    rest = 3 * strike - y - y[:, None]
    return np.sum(weights * weights[:, None] * put(rest, noise_multiplier)) / 3


def delta_by_quadrature(noise_multiplier, steps, epsilon):
    """delta of one epoch: the larger of E (R - e^e)_+ and E (1 - e^e R)_+."""
    c = np.exp(epsilon)
    return max(mean_call(c, noise_multiplier, steps), c * mean_put(1 / c, noise_multiplier, steps))


@pytest.mark.parametrize("steps", [2, 3])
def test_one_epoch_agrees_with_quadrature(steps):
    for noise_multiplier in (0.6, 1.0, 3.0):
        for epsilon in np.array([0.05, 0.5, 1.5, 3.0]) / noise_multiplier:
            truth = delta_by_quadrature(noise_multiplier, steps, epsilon)
            bounds = allocation_delta_bounds(noise_multiplier, steps, 1, epsilon)
            assert bounds.lower <= truth * (1 + 1e-9)
            assert truth * (1 - 1e-9) <= bounds.upper
            assert bounds.upper <= 1.02 * bounds.lower + 1e-14
            ends = allocation_epsilon_bounds(noise_multiplier, steps, 1, truth)
            assert ends.lower <= epsilon * (1 + 1e-9)
            assert epsilon * (1 - 1e-9) <= ends.upper


def test_two_epochs_agree_with_quadrature():
    noise_multiplier, epsilon = 1.0, 2.0
    y, weights = log_normal(noise_multiplier, 120)
    first = (0.5 * (y + y[:, None])).ravel()
    mass = (weights * weights[:, None]).ravel()
    c = np.exp(epsilon)
    y, weights = log_normal(noise_multiplier, 300)
    # E (R_1 R_2 - c)_+ = E R_1 E (R_2 - c / R_1)_+, and the expectation over R_2 is an integral over one of its steps.
    rest = 2 * (c / first)[:, None] - y
    remove = np.sum(mass * first * np.sum(weights * call(rest, noise_multiplier), axis=1) / 2)
    rest = 2 * (1 / (c * first))[:, None] - y
    add = np.sum(mass * c * first * np.sum(weights * put(rest, noise_multiplier), axis=1) / 2)
    truth = max(remove, add)
    bounds = allocation_delta_bounds(noise_multiplier, 2, 2, epsilon)
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper <= 1.02 * bounds.lower
    ends = allocation_epsilon_bounds(noise_multiplier, 2, 2, truth)
    assert ends.lower <= epsilon <= ends.upper


def test_one_step_is_the_gaussian_mechanism():
    noise, epochs, delta = (
        np.array([0.3, 1.0, 7.0, 50.0]),
        np.array([1, 3, 100, 1000]),
        10.0 ** -np.array([2, 5, 8, 12]),
    )
    exact = accounting.gdp_epsilon(delta, np.sqrt(epochs) / noise)
    bounds = allocation_epsilon_bounds(noise, 1, epochs, delta)
    np.testing.assert_allclose(bounds, [exact, exact], rtol=3e-9, atol=2e-12)
    assert (bounds.lower <= exact).all()
    assert (exact <= bounds.upper).all()
    # All steps selected is the same.
    every = allocation_epsilon_bounds(noise, 4, epochs, delta, num_selected=4)
    np.testing.assert_allclose(every, [accounting.gdp_epsilon(delta, 2 * np.sqrt(epochs) / noise)] * 2, rtol=3e-9)


def test_the_grid_without_the_closed_form_agrees_with_the_gaussian_mechanism():
    # One step as a pair of the grid, without the closed form.
    from gdpjax.accounting._allocation import _bounds, _one_run

    below, above = _bounds.events_of_scheme(_bounds.make_scheme(0.8, 1, 1, 1, 0), -40.0, 512)
    for epsilon in (0.1, 1.0, 4.0):
        lower = _one_run.lower_delta(_bounds.only_pair(below), epsilon)
        upper = _one_run.upper_delta(_bounds.only_pair(above), epsilon)
        assert lower < accounting.gdp_delta(epsilon, 1 / 0.8) < upper
        assert upper < 1.01 * lower


def test_the_bracket_is_narrow_and_meets_that_of_a_peer():
    noise, steps, epochs, delta, peer_lower, peer_upper = PEER.T
    bounds = allocation_epsilon_bounds(noise, steps, epochs, delta)
    assert (bounds.lower <= peer_upper).all()
    assert (peer_lower <= bounds.upper).all()
    assert (bounds.upper <= 1.001 * bounds.lower).all()


def test_an_array_is_its_elements():
    noise, steps, epochs, delta = PEER[[2, 6, 7, 9], :4].T
    together = allocation_epsilon_bounds(noise, steps, epochs, delta)
    alone = [allocation_epsilon_bounds(*row) for row in zip(noise, steps, epochs, delta, strict=True)]
    np.testing.assert_array_equal(together, np.array(alone).T)
    grid = allocation_epsilon_bounds(noise[:, None], 10, 1, np.array([1e-5, 1e-8]))
    assert grid.lower.shape == grid.upper.shape == (4, 2)


def test_under_vmap_and_jit_it_is_the_same_bracket_rounded_outward():
    noise = jnp.array([0.6, 1.0])
    traced = jax.jit(jax.vmap(lambda sigma: allocation_epsilon_bounds(sigma, 2, 1, 1e-5)))(noise)
    bounds = allocation_epsilon_bounds(np.asarray(noise), 2, 1, 1e-5)
    np.testing.assert_allclose(traced, bounds, rtol=1e-6)
    assert (np.asarray(traced.lower, np.float64) <= bounds.lower).all()
    assert (np.asarray(traced.upper, np.float64) >= bounds.upper).all()
    with jax.enable_x64(True):
        wide = jax.jit(jax.vmap(lambda sigma: allocation_epsilon_bounds(sigma, 2, 1, 1e-5)))(jnp.array([0.6, 1.0]))
        exact = allocation_epsilon_bounds(np.array([0.6, 1.0]), 2, 1, 1e-5)
        np.testing.assert_array_equal(wide, exact)
    refused = jax.jit(lambda k: allocation_epsilon_bounds(1.0, 2, 1, 1e-5, num_selected=k))(3)
    assert np.isnan(refused.lower)


def test_less_noise_fewer_steps_more_epochs_and_smaller_delta_cost_more():
    for arguments in (
        (np.geomspace(4, 0.4, 6), 20, 2, 1e-6),
        (1.0, np.array([500, 99, 30, 12, 5, 2]), 2, 1e-6),
        (1.0, 20, np.array([1, 2, 5, 11, 40, 200]), 1e-6),
        (1.0, 20, 2, 10.0 ** -np.arange(2, 13, 2)),
    ):
        bounds = allocation_epsilon_bounds(*arguments)
        assert (bounds.lower[1:] > bounds.upper[:-1]).all()


@settings(max_examples=25, deadline=None)
@given(
    st.floats(np.log(0.3), np.log(50)), st.floats(0, np.log(1e4)), st.floats(0, np.log(1e3)), st.floats(-12, -2),
    st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_the_bracket_is_one(log_noise, log_steps, log_epochs, log_delta, selected, fixed):
    noise, steps, epochs = np.exp(log_noise), np.floor(np.exp(log_steps)), np.floor(np.exp(log_epochs))
    selected, delta, bins = min(selected, int(steps)), 10.0**log_delta, "fixed" if fixed else "fresh"
    bounds = allocation_epsilon_bounds(noise, steps, epochs, delta, num_selected=selected, bins=bins)
    gaussian = accounting.gdp_epsilon(delta, np.sqrt(epochs * selected) / noise)
    assert 0 <= bounds.lower <= bounds.upper <= gaussian * (1 + 2e-9) + 1e-12


def test_simulation_agrees():
    rng = np.random.default_rng(3)
    for noise_multiplier, steps, epochs in ((1.0, 20, 1), (0.7, 5, 3)):
        g = rng.standard_normal((200_000, epochs, steps))
        ratio = np.exp(g / noise_multiplier - 0.5 / noise_multiplier**2).mean(axis=2).prod(axis=1)
        epsilon = allocation_epsilon_bounds(noise_multiplier, steps, epochs, 1e-2)
        # E (1 - e^e R)_+ is below 1, so that its mean has an error of 1e-3 at most; remove decides in both cases.
        losses = [np.maximum(ratio - np.exp(end), 0) for end in epsilon]
        for end, sample in zip((1, -1), losses, strict=True):
            error = 5 * sample.std() / np.sqrt(len(sample))
            assert end * (sample.mean() - 1e-2) > -error


def test_fixed_bins_are_one_epoch_with_less_noise():
    fixed = allocation_epsilon_bounds(3.0, 12, 9, 1e-6, bins="fixed")
    one = allocation_epsilon_bounds(1.0, 12, 1, 1e-6)
    np.testing.assert_allclose(fixed, one, rtol=1e-9)
    # Bins drawn anew are better, and both are better than all steps.
    assert allocation_epsilon_bounds(3.0, 12, 9, 1e-6).upper < fixed.lower
    assert fixed.upper < accounting.gdp_epsilon(1e-6, 1.0)


def test_blocks_are_composed():
    # 6 of 12 in blocks of two is six epochs of two steps; 2 of 5 is a block of two and one of three.
    blocks = allocation_epsilon_bounds(1.0, 12, 2, 1e-6, num_selected=6)
    np.testing.assert_allclose(blocks, allocation_epsilon_bounds(1.0, 2, 12, 1e-6), rtol=1e-9)
    mixed = allocation_epsilon_bounds(1.0, 5, 3, 1e-6, num_selected=2)
    assert allocation_epsilon_bounds(1.0, 3, 6, 1e-6).upper < mixed.lower
    assert mixed.upper < allocation_epsilon_bounds(1.0, 2, 6, 1e-6).lower
    assert mixed.upper < 1.001 * mixed.lower


def test_delta_is_the_inverse_of_epsilon():
    noise, steps, epochs, delta = PEER[[2, 6, 7, 15, 17], :4].T
    epsilon = allocation_epsilon_bounds(noise, steps, epochs, delta)
    at_lower, at_upper = (allocation_delta_bounds(noise, steps, epochs, end) for end in epsilon)
    assert (at_lower.upper >= delta).all()
    assert (at_upper.lower <= delta).all()
    assert (at_lower.upper <= 1.05 * at_upper.lower).all()


def test_hard_corners_give_true_brackets():
    noise = np.array([0.01, 0.3, 50.0, 1.0, 1.0])
    steps = np.array([10, 1e5, 1e5, 2.0**50, 2])
    epochs = np.array([1, 1000, 1, 10, 1])
    delta = np.array([1e-5, 1e-12, 1e-2, 1e-5, 1e-200])
    bounds = allocation_epsilon_bounds(noise, steps, epochs, delta)
    assert (bounds.lower >= 0).all()
    assert (bounds.lower <= bounds.upper).all()
    assert (bounds.upper <= accounting.gdp_epsilon(delta, np.sqrt(epochs) / noise) * (1 + 2e-9) + 1e-12).all()
    assert bounds.upper[2] == 0  # delta(0) is below delta
    # Many rounds of averages, which end on a grid much finer than the first, and a delta that few outcomes decide.
    bounds = allocation_epsilon_bounds(1.0, np.array([1e6, 10]), 1, np.array([1e-6, 1e-60]))
    assert (bounds.upper < 1.002 * bounds.lower).all()


def test_a_law_and_its_averages_keep_mass_and_mean():
    """Both laws have the mass and the mean of R, up to what they say is lost; the upper one has the larger spread."""
    step, grid = _lognormal.one_step(1.0, 400, -60.0)
    for steps in (1, 2, 3, 5, 12, 100):
        laws, finest = _average.average_of_steps(step, grid, steps, True, -60.0)
        values = np.exp(finest.log_values())
        for number, law in zip((steps, steps + 1), laws, strict=True):
            means = values * (1 + law.mean_excess())
            np.testing.assert_allclose([law.lower.sum(), law.lower @ means], 1, atol=1e-12)
            # For its rounding errors mass is added to the upper law.
            for total in (law.upper.sum(), law.upper @ values):
                assert 1 - 1e-12 < total < 1 + 1e-10 * number
            variance = (np.e - 1) / number
            assert law.lower @ (means - 1) ** 2 < variance < law.upper @ (values - 1) ** 2
            assert law.upper @ (values - 1) ** 2 < 1.1 * (law.lower @ (means - 1) ** 2)


@pytest.mark.parametrize(("share", "factor"), [(0.5, 1), (0.4, 1), (2 / 3, 2), (1 / 3, 4)])
def test_an_average_is_that_of_all_pairs(share, factor):
    """Beside a sum over all pairs, of two laws with any masses."""
    rng = np.random.default_rng(7)
    size, spacing = 61, 0.11
    grid = _law.RatioGrid(-2.5, spacing, size)

    def law(scale):
        upper, lower = rng.exponential(size=(2, size)) * np.exp(-scale * np.linspace(-1, 1, size) ** 2)
        excess = lower * rng.uniform(-0.5, 0.5, size) * spacing
        return _law.RatioLaw(upper, 1e-3, 2e-3, lower, excess, 1e-15, 1e-15, 1e-15)

    first, second = law(3.0), law(5.0)
    made, finer = _average.average(first, second, grid, share, factor)
    ends = np.exp(finer.log_values())
    values = np.exp(grid.log_values())
    averages = share * values[:, None] + (1 - share) * values
    cells = np.clip(np.searchsorted(ends * (1 - 1e-13), averages, side="right") - 1, 0, finer.size - 1)

    # Lower: the mass and the mean of what is in a cell, under the label whose value is nearest on the whole.
    mass = first.lower[:, None] * second.lower
    means = [values * (1 + one.excess / one.lower) for one in (first, second)]
    mean = mass * (share * means[0][:, None] + (1 - share) * means[1])
    exact = [np.bincount(cells.ravel(), what.ravel(), finer.size) for what in (mass, mean)]
    drift = np.log(np.sum(exact[1] / ends) / np.sum(exact[0])) / finer.spacing
    exact = [np.roll(what, round(drift)) for what in exact]
    np.testing.assert_allclose(made.lower, exact[0], rtol=1e-13)
    np.testing.assert_allclose(made.lower + made.excess, exact[1] / ends, rtol=1e-12)

    # Upper: each value is split between the ends of its cell, and never less than that.
    mass = first.upper[:, None] * second.upper
    right = np.clip((averages / ends[cells] - 1) / np.expm1(finer.spacing), 0, 1)
    exact = np.bincount(cells.ravel(), (mass * (1 - right)).ravel(), finer.size)
    exact[1:] += np.bincount(cells.ravel(), (mass * right).ravel(), finer.size)[:-1]
    exact[::factor] += first.at_zero * (1 - share) * second.upper + second.at_zero * share * first.upper
    assert (made.upper >= exact * (1 - 1e-14)).all()
    np.testing.assert_allclose(made.upper, exact, rtol=1e-9)
    # The sums and the values left at 0 and infinity are those of all pairs.
    sums = [one.upper.sum() + one.at_zero for one in (first, second)]
    np.testing.assert_allclose(made.upper.sum() + made.at_zero, np.prod(sums), rtol=1e-9)


def test_sums_over_ranges_of_neighbours():
    values = np.random.default_rng(0).uniform(size=(50, 3))
    neighbours = _average._Neighbours(values.ravel(), 3)
    for first, length in ((0, 1), (0, 2), (3, 7), (1, 49), (10, 40), (49, 1), (5, 33)):
        exact = [values[max(b - first - length + 1, 0) : b - first + 1].sum(axis=0) for b in range(first, 50)]
        np.testing.assert_allclose(neighbours.sums(first, length).reshape(-1, 3), exact, rtol=1e-14)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a finite number > 0"),
        ({"noise_multiplier": np.nan}, "noise_multiplier must be"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch must be a whole number >= 1"),
        ({"num_epochs": 0}, "num_epochs must be a whole number >= 1"),
        ({"delta": 0.0}, "delta must be a number strictly between 0 and 1"),
        ({"delta": "1e-5"}, "delta must be"),
        ({"num_selected": 0}, "num_selected must be a whole number >= 1"),
        ({"num_selected": 11}, "num_selected must be at most steps_per_epoch"),
        ({"num_selected": [1, 11]}, "num_selected must be at most steps_per_epoch"),
        ({"bins": "Fixed"}, 'bins must be "fresh" or "fixed"'),
        ({"bins": None}, 'bins must be "fresh" or "fixed"'),
        ({"noise_multiplier": np.ones(2), "delta": np.full(3, 0.1)}, "broadcast"),
    ],
)
def test_bad_arguments_are_refused(change, words):
    good = {"noise_multiplier": 1.0, "steps_per_epoch": 10, "num_epochs": 1, "delta": 1e-5}
    with pytest.raises(ValueError, match=words):
        allocation_epsilon_bounds(**{**good, **change})
    with pytest.raises(ValueError, match="epsilon must be"):
        allocation_delta_bounds(1.0, 10, 1, -0.1)
