"""Renyi divergences of random allocation: both directions against quadrature, enumeration, closed forms and draws."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from gdpjax.accounting import (
    epsilon_bounds,
    moments_accountant_epsilon,
    rdp_allocation,
    rdp_of_ledger,
    rdp_subsampled_gaussian,
)
from gdpjax.accounting._renyi_allocation import log_moments_add, log_moments_allocation, log_moments_remove
from gdpjax.ledger import AllocationEvent, TruncatedPoissonEvent

ORDERS = np.array([1.05, 1.5, 2.0, 2.7, 4.0, 6.3, 9.0, 17.0])


def by_quadrature(noise, steps, power):
    """log E R^power by the trapezoid rule in ``steps`` dimensions, far beyond where the mass is."""
    h = 1 / noise
    spacing = 0.125 if steps == 2 else 0.25
    g = np.arange(-10 + min(power, 0) * h, 10 + max(power, 0) * h, spacing)
    log_weight = norm.logpdf(g) + math.log(spacing)
    log_ratio = h * g - h * h / 2
    grid = np.ix_(*[np.arange(g.size)] * steps)
    log_mean = logsumexp(np.stack(np.broadcast_arrays(*(log_ratio[i] for i in grid))), axis=0) - math.log(steps)
    return logsumexp(sum(log_weight[i] for i in grid) + power * log_mean)


QUADRATURES = [(3.0, 2), (0.5, 2), (1.0, 3)]
MORE_QUADRATURES = [(1.0, 2), (3.0, 3), (0.5, 3)]


@pytest.mark.parametrize(
    ("noise", "steps"), QUADRATURES + [pytest.param(*pair, marks=pytest.mark.slow) for pair in MORE_QUADRATURES]
)
def test_both_directions_are_above_the_integrals_and_next_to_them(noise, steps):
    orders = ORDERS if steps == 2 else ORDERS[ORDERS < 5]
    remove = log_moments_remove(1 / noise, steps, orders)
    add = log_moments_add(1 / noise, steps, orders)
    exact = np.array([by_quadrature(noise, steps, a) for a in orders])
    np.testing.assert_array_less(exact, remove * (1 + 1e-9) + 1e-12)
    interpolated = (orders > 8) & (orders != np.floor(orders))
    np.testing.assert_allclose(remove[~interpolated], exact[~interpolated], rtol=2e-8)

    exact_add = np.array([by_quadrature(noise, steps, 1 - a) for a in orders])
    np.testing.assert_array_less(exact_add, add * (1 + 1e-9) + 1e-12)
    # At high orders the geometric mean takes over; the other direction is far above it by then.
    tight = (orders - 1) / noise < 3
    np.testing.assert_allclose(add[tight], exact_add[tight], rtol=1e-6)
    both = log_moments_allocation(noise, steps, orders)
    np.testing.assert_allclose(both, np.maximum(remove, add), rtol=1e-14)
    assert (both >= np.maximum(exact, exact_add) * (1 - 1e-10)).all()


def test_a_whole_order_is_the_mean_over_all_draws():
    """E R^a is a mean over the t^a ways in which a draws of a step may fall."""
    for noise, steps, order in itertools.product([0.4, 1.0, 5.0], [2, 3, 5], [2, 3, 5]):
        total = mp.mpf(0)
        for draws in itertools.product(range(steps), repeat=order):
            counts = [draws.count(i) for i in range(steps)]
            total += mp.exp(sum(k * (k - 1) for k in counts) / (2 * mp.mpf(noise) ** 2))
        exact = float(mp.log(total / steps**order))
        found = log_moments_remove(1 / noise, steps, np.array([float(order)]))[0]
        assert exact * (1 - 1e-14) <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("steps", [1000, 999_983, 10**9, 10**15])
@pytest.mark.parametrize("noise", [0.3, 1.0, 30.0])
def test_many_steps_keep_their_digits(noise, steps):
    """Orders 2 and 3 have closed forms, whose excess over 1 is tiny here."""
    t = mp.mpf(steps)
    e = mp.exp(1 / mp.mpf(noise) ** 2)
    second = mp.log1p((e - 1) / t)
    third = mp.log1p((3 * (t - 1) * (e - 1) + (e**3 - 1)) / t**2)
    found = log_moments_remove(1 / noise, steps, np.array([2.0, 3.0]))
    for exact, bound in zip((second, third), found, strict=True):
        assert float(exact) <= bound * (1 + 1e-15) <= float(exact) * (1 + 1e-8)
    add = log_moments_add(1 / noise, steps, np.array([2.0, 3.0]))
    assert (add > 0).all()
    assert (rdp_allocation(noise, steps, 1, [2.0, 3.0]) >= [float(second), float(third) / 2]).all()


def test_both_directions_against_draws():
    generator = np.random.default_rng(0)
    for noise, steps in [(0.7, 20), (1.5, 300)]:
        draws = generator.standard_normal((4000, steps))
        ratio = np.exp(draws / noise - 0.5 / noise**2).mean(axis=1)
        for power, bound in [(2.5, log_moments_remove), (-1.5, log_moments_add)]:
            order = max(power, 1 - power)
            sample = ratio**power
            found = math.exp(bound(1 / noise, steps, np.array([order]))[0])
            assert abs(sample.mean() - found) < 5 * sample.std() / math.sqrt(sample.size)


def test_one_step_is_the_gaussian_mechanism():
    orders = np.array([1.01, 2.0, 7.5, 2000.0])
    np.testing.assert_allclose(rdp_allocation(1.3, 1, 4, orders), 4 * orders / (2 * 1.3**2), rtol=1e-13)
    np.testing.assert_allclose(
        rdp_allocation(1.3, 6, 2, orders, num_selected=6), 12 * orders / (2 * 1.3**2), rtol=1e-13
    )
    assert rdp_allocation(1e-150, 5, 1, 2.0) == np.inf
    assert 0 < rdp_allocation(1e300, 5, 1, 2.0) < 1e-280


def test_fixed_bins_are_one_epoch_and_blocks_add_up():
    np.testing.assert_allclose(
        rdp_allocation(2.0, 30, 4, ORDERS, bins="fixed"), rdp_allocation(1.0, 30, 1, ORDERS), rtol=1e-12
    )
    blocks = 2 * rdp_allocation(1.0, 3, 1, ORDERS) + rdp_allocation(1.0, 4, 1, ORDERS)
    np.testing.assert_allclose(rdp_allocation(1.0, 10, 5, ORDERS, num_selected=3), 5 * blocks, rtol=1e-13)


def test_it_grows_with_the_order_and_falls_with_noise_and_steps():
    orders = np.concatenate([np.linspace(1.02, 12, 80), [30, 64.5, 128, 500, 1025, 5000.0]])
    for noise, steps in [(0.6, 7), (4.0, 10_000)]:
        rdp = rdp_allocation(noise, steps, 1, orders)
        assert (np.diff(rdp) > -1e-9 * rdp[1:]).all()
        assert (rdp <= orders / (2 * noise**2) * (1 + 1e-12)).all()
    low = ORDERS[ORDERS < 5]
    noisy = rdp_allocation(np.array([0.5, 1.0, 2.0, 8.0]), 50, 1, low)
    assert (np.diff(noisy, axis=0) < 0).all()
    longer = rdp_allocation(1.0, np.array([1, 2, 3, 11, 500]), 1, low)
    assert (np.diff(longer, axis=0) < 0).all()


ENDS = [(1e-3, 7), (0.05, 1000), (0.2, 7), (50.0, 2), (1e8, 1000)]
BETWEEN = [
    pair for pair in itertools.product([1e-3, 0.05, 0.1, 0.11, 50.0, 1e8], [2, 7, 1000, 2**53 - 1]) if pair not in ENDS
]


@pytest.mark.parametrize(("noise", "steps"), ENDS + [pytest.param(*pair, marks=pytest.mark.slow) for pair in BETWEEN])
def test_ends_of_the_range(noise, steps):
    orders = np.array([1 + 1e-12, 1.001, 1.999999, 2.0, 2.000001, 7.5, 30.5, 200.0, 1e6])
    rdp = rdp_allocation(noise, steps, 1, orders)
    assert (rdp > 0).all()
    assert (rdp <= orders / (2 * noise**2) * (1 + 1e-12)).all()
    # What is known of a moment to an absolute error counts as much as that divided by the order less 1.
    second = np.logaddexp(0, np.log(-np.expm1(-(noise**-2))) + noise**-2 - np.log(float(steps)))
    assert second <= rdp[3] * (1 + 1e-12) <= second * (1 + 1e-6) + 1e-12


def test_shapes():
    assert rdp_allocation(1.0, 10, 1, 2.0).shape == ()
    assert rdp_allocation([1.0, 2.0], [[10], [20], [30]], 1, [2.0, 3.0]).shape == (3, 2, 2)
    one = rdp_allocation(2.0, 30, 1, 3.0)
    assert rdp_allocation([1.0, 2.0], [[10], [20], [30]], 1, [2.0, 3.0])[2, 1, 1] == pytest.approx(one, rel=1e-12)


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
    moments = moments_accountant_epsilon(event, delta=delta)
    bounds = epsilon_bounds(event, delta=delta)
    assert bounds.lower < moments < 1.35 * bounds.upper


def test_allocation_is_as_good_as_poisson_sampling_of_the_same_rate():
    allocated = moments_accountant_epsilon(AllocationEvent(1.3, 234, 15), delta=1e-5)
    poisson = moments_accountant_epsilon(1.3, 1 / 234, 234 * 15, 1e-5)
    assert 0.9 * poisson < allocated < poisson
    low = np.array([1.5, 2.0, 3.0])
    assert (rdp_allocation(1.0, 100, 1, low) < 100 * rdp_subsampled_gaussian(1.0, 0.01, low)).all()


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((0.0, 10, 1, 2.0), {}, "noise_multiplier must be a finite number > 0"),
        ((1.0, 2.5, 1, 2.0), {}, "steps_per_epoch must be a whole number"),
        ((1.0, 10, 0, 2.0), {}, "num_epochs must be a whole number"),
        ((1.0, 10, 1, 1.0), {}, "orders must be a Renyi order > 1"),
        ((1.0, 10, 1, []), {}, "orders must be a number or have one axis, not empty"),
        ((1.0, 10, 1, 2.0), {"num_selected": 11}, "num_selected must be at most steps_per_epoch=10, got 11"),
        ((1.0, 10, 1, 2.0), {"bins": "loose"}, "bins must be one of fresh, fixed"),
        (([1.0, 2.0], [1, 2, 3], 1, 2.0), {}, "must broadcast together"),
    ],
)
def test_refusals(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        rdp_allocation(*arguments, **keywords)


@pytest.mark.parametrize("noise_multiplier", [1e-60, 1e-78, 1e-80, 1e-100, 1e-145, 1e-160])
@pytest.mark.parametrize("order", [2.0, 512.0, 1024.0])
def test_noise_that_is_next_to_nothing_gives_no_nan(noise_multiplier, order):
    for steps in (1, 2, 7):
        assert rdp_allocation(noise_multiplier, steps, 1, order) > 1e60
    event = TruncatedPoissonEvent(noise_multiplier, 1.0, 1, max_examples=2, capacity=1)
    assert rdp_of_ledger(event, order) > 1e60
