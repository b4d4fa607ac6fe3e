"""Renyi divergences of random allocation: both directions against quadrature, enumeration, closed forms and draws."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from gdpjax.accounting import epsilon_bounds, moments_accountant_epsilon, rdp_subsampled_gaussian
from gdpjax.accounting._rdp_schemes import rdp_of_events
from gdpjax.accounting._renyi_allocation import log_moments_add, log_moments_allocation, log_moments_remove
from gdpjax.ledger import AllocationEvent, TruncatedPoissonEvent

ORDERS = np.array([1.05, 1.5, 2.0, 2.7, 4.0, 6.3, 9.0, 17.0])


def rdp_allocation(noise_multiplier, steps_per_epoch, num_epochs, orders, **options):
    """Return the Renyi differential privacy of epochs of allocation."""
    event = AllocationEvent(noise_multiplier, steps_per_epoch, num_epochs, **options)
    return rdp_of_events([event], np.asarray(orders, np.float64))


def log_moment_by_quadrature(noise_multiplier, num_steps, power):
    """Return log E R^power by the trapezoid rule in ``num_steps`` dimensions, far beyond where the mass is."""
    h = 1 / noise_multiplier
    spacing = 0.125 if num_steps == 2 else 0.25
    start = -10 + min(power, 0) * h
    stop = 10 + max(power, 0) * h
    g = np.arange(start, stop, spacing)
    log_weight = norm.logpdf(g) + math.log(spacing)
    log_ratio = h * g - h * h / 2

    # One axis for each step: weights multiply, and the ratio is the mean over the steps.
    joint_log_weight = 0.0
    log_ratios = []
    for axis in range(num_steps):
        shape = [1] * num_steps
        shape[axis] = g.size
        joint_log_weight = joint_log_weight + log_weight.reshape(shape)
        log_ratios.append(log_ratio.reshape(shape))
    stacked = np.stack(np.broadcast_arrays(*log_ratios))
    log_mean = logsumexp(stacked, axis=0) - math.log(num_steps)
    return logsumexp(joint_log_weight + power * log_mean)


QUADRATURES = [
    (3.0, 2),
    (0.5, 2),
    (1.0, 3),
    pytest.param(1.0, 2, marks=pytest.mark.slow),
    pytest.param(3.0, 3, marks=pytest.mark.slow),
    pytest.param(0.5, 3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("noise", "steps"), QUADRATURES)
def test_both_directions_are_above_the_integrals_and_next_to_them(noise, steps):
    """The bounds on both directions are at least the integrals, and equal to them where they should be."""
    orders = ORDERS if steps == 2 else ORDERS[ORDERS < 5]
    remove = log_moments_remove(1 / noise, steps, orders)
    exact_remove = np.array([log_moment_by_quadrature(noise, steps, order) for order in orders])
    np.testing.assert_array_less(exact_remove, remove * (1 + 1e-9) + 1e-12)
    is_interpolated = (orders > 8) & (orders != np.floor(orders))
    np.testing.assert_allclose(remove[~is_interpolated], exact_remove[~is_interpolated], rtol=2e-8)

    add = log_moments_add(1 / noise, steps, orders)
    exact_add = np.array([log_moment_by_quadrature(noise, steps, 1 - order) for order in orders])
    np.testing.assert_array_less(exact_add, add * (1 + 1e-9) + 1e-12)
    # At high orders the geometric mean takes over; the other direction is far above it by then.
    is_tight = (orders - 1) / noise < 3
    np.testing.assert_allclose(add[is_tight], exact_add[is_tight], rtol=1e-6)

    larger = log_moments_allocation(noise, steps, orders)
    np.testing.assert_allclose(larger, np.maximum(remove, add), rtol=1e-14)
    assert (larger >= np.maximum(exact_remove, exact_add) * (1 - 1e-10)).all()


def test_a_whole_order_is_the_mean_over_all_draws():
    """The moment E R^a is a mean over the t^a ways in which a draws of a step may fall."""
    for noise_multiplier, num_steps, order in itertools.product([0.4, 1.0, 5.0], [2, 3, 5], [2, 3, 5]):
        total = mp.mpf(0)
        for draws in itertools.product(range(num_steps), repeat=order):
            num_coincidences = 0
            for step in range(num_steps):
                count = draws.count(step)
                num_coincidences += count * (count - 1)
            total += mp.exp(num_coincidences / (2 * mp.mpf(noise_multiplier) ** 2))
        exact = float(mp.log(total / num_steps**order))
        bound = log_moments_remove(1 / noise_multiplier, num_steps, np.array([float(order)]))[0]
        assert exact * (1 - 1e-14) <= bound <= exact * (1 + 1e-9)


@pytest.mark.parametrize("steps", [1000, 999_983, 10**9, 10**15])
@pytest.mark.parametrize("noise", [0.3, 1.0, 30.0])
def test_many_steps_keep_their_digits(noise, steps):
    """Orders 2 and 3 have closed forms, whose excess over 1 is tiny here."""
    orders = np.array([2.0, 3.0])
    t = mp.mpf(steps)
    e = mp.exp(1 / mp.mpf(noise) ** 2)
    second = mp.log1p((e - 1) / t)
    third = mp.log1p((3 * (t - 1) * (e - 1) + (e**3 - 1)) / t**2)
    remove = log_moments_remove(1 / noise, steps, orders)
    for exact, bound in zip((second, third), remove, strict=True):
        assert float(exact) <= bound * (1 + 1e-15) <= float(exact) * (1 + 1e-8)
    add = log_moments_add(1 / noise, steps, orders)
    assert (add > 0).all()
    rdp = rdp_allocation(noise, steps, 1, [2.0, 3.0])
    assert (rdp >= [float(second), float(third) / 2]).all()


def test_both_directions_against_draws():
    """The mean over draws is the moment, within five standard errors."""
    rng = np.random.default_rng(0)
    for noise_multiplier, num_steps in [(0.7, 20), (1.5, 300)]:
        g = rng.standard_normal((4000, num_steps))
        ratio = np.exp(g / noise_multiplier - 0.5 / noise_multiplier**2).mean(axis=1)
        for power, log_moments in [(2.5, log_moments_remove), (-1.5, log_moments_add)]:
            order = max(power, 1 - power)
            log_moment = log_moments(1 / noise_multiplier, num_steps, np.array([order]))[0]
            sample = ratio**power
            error = sample.std() / math.sqrt(sample.size)
            assert abs(sample.mean() - math.exp(log_moment)) < 5 * error


def test_one_step_is_the_gaussian_mechanism():
    """With one step an epoch, or all of them selected, the divergence is that of composed Gaussian noise."""
    orders = np.array([1.01, 2.0, 7.5, 2000.0])
    of_one_step = orders / (2 * 1.3**2)
    np.testing.assert_allclose(rdp_allocation(1.3, 1, 4, orders), 4 * of_one_step, rtol=1e-13)
    all_selected = rdp_allocation(1.3, 6, 2, orders, num_selected=6)
    np.testing.assert_allclose(all_selected, 12 * of_one_step, rtol=1e-13)

    # Next to no noise, and far too much of it.
    assert rdp_allocation(1e-150, 5, 1, [2.0]) == np.inf
    assert 0 < rdp_allocation(1e300, 5, 1, [2.0]) < 1e-280


def test_fixed_bins_are_one_epoch_and_blocks_add_up():
    """Fixed bins are one epoch with less noise, and several selected steps are one in each block."""
    fixed = rdp_allocation(2.0, 30, 4, ORDERS, bins="fixed")
    one_epoch = rdp_allocation(1.0, 30, 1, ORDERS)
    np.testing.assert_allclose(fixed, one_epoch, rtol=1e-12)

    # 3 of 10 is two blocks of three and one of four.
    blocks = 2 * rdp_allocation(1.0, 3, 1, ORDERS) + rdp_allocation(1.0, 4, 1, ORDERS)
    three_selected = rdp_allocation(1.0, 10, 5, ORDERS, num_selected=3)
    np.testing.assert_allclose(three_selected, 5 * blocks, rtol=1e-13)


def test_it_grows_with_the_order_and_falls_with_noise_and_steps():
    """The divergence is monotone in order, noise and steps, and at most that of every step."""
    orders = np.concatenate([np.linspace(1.02, 12, 80), [30, 64.5, 128, 500, 1025, 5000.0]])
    for noise_multiplier, num_steps in [(0.6, 7), (4.0, 10_000)]:
        rdp = rdp_allocation(noise_multiplier, num_steps, 1, orders)
        assert (np.diff(rdp) > -1e-9 * rdp[1:]).all()
        gaussian = orders / (2 * noise_multiplier**2)
        assert (rdp <= gaussian * (1 + 1e-12)).all()

    low_orders = ORDERS[ORDERS < 5]
    with_more_noise = [rdp_allocation(noise, 50, 1, low_orders) for noise in (0.5, 1.0, 2.0, 8.0)]
    assert (np.diff(with_more_noise, axis=0) < 0).all()
    with_more_steps = [rdp_allocation(1.0, steps, 1, low_orders) for steps in (1, 2, 3, 11, 500)]
    assert (np.diff(with_more_steps, axis=0) < 0).all()


ENDS = [(1e-3, 7), (0.05, 1000), (0.2, 7), (50.0, 2), (1e8, 1000)]
ENDS_AND_BETWEEN = list(ENDS)
for pair in itertools.product([1e-3, 0.05, 0.1, 0.11, 50.0, 1e8], [2, 7, 1000, 2**53 - 1]):
    if pair not in ENDS:
        ENDS_AND_BETWEEN.append(pytest.param(*pair, marks=pytest.mark.slow))


@pytest.mark.parametrize(("noise", "steps"), ENDS_AND_BETWEEN)
def test_ends_of_the_range(noise, steps):
    """The divergence is positive and at most Gaussian, and that of order 2 is its closed form."""
    orders = np.array([1 + 1e-12, 1.001, 1.999999, 2.0, 2.000001, 7.5, 30.5, 200.0, 1e6])
    rdp = rdp_allocation(noise, steps, 1, orders)
    gaussian = orders / (2 * noise**2)
    assert (rdp > 0).all()
    assert (rdp <= gaussian * (1 + 1e-12)).all()

    # What is known of a moment to an absolute error counts as much as that divided by the order less 1.
    log_excess = np.log(-np.expm1(-(noise**-2))) + noise**-2
    second = np.logaddexp(0, log_excess - np.log(float(steps)))
    assert second <= rdp[3] * (1 + 1e-12) <= second * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    "event",
    [
        AllocationEvent(1.3, 234, 15),
        pytest.param(AllocationEvent(0.6, 50, 2), marks=pytest.mark.slow),
        pytest.param(AllocationEvent(0.4, 20, 1), marks=pytest.mark.slow),
        AllocationEvent(1.0, 10, 5, missing_steps=3),
        AllocationEvent(4.0, 100, 20, bins="fixed"),
        AllocationEvent(1.0, 25, 3, num_selected=4),
        AllocationEvent(1.0, 25, 3, overflow=1e-9, announced=True),
    ],
)
@pytest.mark.parametrize("delta", [pytest.param(1e-3, marks=pytest.mark.slow), 1e-8])
def test_epsilon_is_above_the_certified_bracket_and_not_far(event, delta):
    """The epsilon of the moments is above the certified lower end, and 35 % above the upper one at most.

    An epsilon far below 1 loses more: the conversion of moments is as loose for one Gaussian release.
    """
    moments = moments_accountant_epsilon(event, delta=delta)
    bounds = epsilon_bounds(event, delta=delta)
    most = 1.35 if bounds.upper > 0.5 else 2.1
    assert bounds.lower < moments < most * bounds.upper


def test_allocation_is_as_good_as_poisson_sampling_of_the_same_rate():
    """Random allocation costs a little less than Poisson sampling."""
    allocated = moments_accountant_epsilon(AllocationEvent(1.3, 234, 15), delta=1e-5)
    poisson = moments_accountant_epsilon(1.3, 1 / 234, 234 * 15, 1e-5)
    assert 0.9 * poisson < allocated < poisson
    low_orders = np.array([1.5, 2.0, 3.0])
    rdp_of_allocation = rdp_allocation(1.0, 100, 1, low_orders)
    rdp_of_poisson = 100 * rdp_subsampled_gaussian(1.0, 0.01, low_orders)
    assert (rdp_of_allocation < rdp_of_poisson).all()


@pytest.mark.parametrize("noise_multiplier", [1e-60, 1e-78, 1e-80, 1e-100, 1e-145, 1e-160])
@pytest.mark.parametrize("order", [2.0, 512.0, 1024.0])
def test_noise_that_is_next_to_nothing_gives_no_nan(noise_multiplier, order):
    """The divergence is enormous or infinite, and never NaN."""
    for steps in (1, 2, 7):
        assert rdp_allocation(noise_multiplier, steps, 1, [order]) > 1e60
    event = TruncatedPoissonEvent(noise_multiplier, 1.0, 1, max_examples=2, capacity=1)
    assert rdp_of_events([event], np.array([order])) > 1e60
