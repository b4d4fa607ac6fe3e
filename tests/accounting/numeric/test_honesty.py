"""The brackets contain the truth. Tightness is tested elsewhere."""

import fractions

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from gdpjax.accounting import delta_bounds, epsilon_bounds, tradeoff_bounds
from tests.accounting.numeric import oracle, reference

RUN = ("noise_multiplier", "sampling_prob", "num_steps")


def assert_contains(bounds, truth, rtol=0.0):
    """Assert that each bracket contains its truth, up to a relative error of the truth."""
    assert np.all(bounds.lower <= truth * (1 + rtol))
    assert np.all(truth * (1 - rtol) <= bounds.upper)


def assert_overlaps(bounds, low, high):
    """Assert that each bracket has a point in common with [low, high]."""
    assert np.all(bounds.lower <= high)
    assert np.all(bounds.upper >= low)


def test_every_composed_reference_row_is_inside():
    """The brackets contain the epsilon of the reference."""
    bounds = epsilon_bounds(*reference.columns(reference.COMPOSED, *RUN, "delta"))
    truth, low, high = reference.columns(reference.COMPOSED, "epsilon", "epsilon_lower", "epsilon_upper")
    assert_overlaps(bounds, low, high)
    assert_contains(bounds, truth)


@pytest.mark.parametrize("rows", [reference.COMPOSED[::3], pytest.param(reference.COMPOSED, marks=pytest.mark.slow)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_every_direction_of_the_reference_rows_is_inside(direction, rows):
    """The brackets of each direction agree with the reference, on epsilon and on delta."""
    noise_multiplier, sampling_prob, num_steps, delta = reference.columns(rows, *RUN, "delta")
    log_delta = np.log(delta)
    low, high = reference.columns([row[direction] for row in rows], "lower", "upper")
    bounds = reference.direction_epsilon(noise_multiplier, sampling_prob, num_steps, direction, delta)
    assert_overlaps(bounds, low, high)

    # delta falls as epsilon grows: it is at least delta at the low end, and at most delta at the high end.
    at_low = reference.direction_log_delta(noise_multiplier, sampling_prob, num_steps, direction, low)
    at_high = reference.direction_log_delta(noise_multiplier, sampling_prob, num_steps, direction, high)
    assert np.all(at_low.upper >= log_delta)
    assert np.all(at_high.lower <= log_delta)


@pytest.mark.parametrize("rows", [reference.ONE_STEP[::5], pytest.param(reference.ONE_STEP, marks=pytest.mark.slow)])
def test_one_step_is_the_closed_form_in_both_directions(rows):
    """The brackets of one step contain its closed form, in each direction and of the larger one."""
    noise_multiplier, sampling_prob, epsilon = reference.columns(rows, "noise_multiplier", "sampling_prob", "epsilon")
    one_step = np.ones(epsilon.size)
    largest = np.zeros(epsilon.size)
    for direction in reference.DIRECTIONS:
        (delta,) = reference.columns(rows, f"delta_{direction}")
        bounds = reference.direction_log_delta(noise_multiplier, sampling_prob, one_step, direction, epsilon)
        with np.errstate(divide="ignore"):
            log_delta = np.log(delta)
        assert np.all(bounds.lower <= log_delta)
        assert np.all(log_delta <= bounds.upper)
        largest = np.maximum(largest, delta)
    assert_contains(delta_bounds(noise_multiplier, sampling_prob, 1, epsilon), largest)
    assert_contains(epsilon_bounds(noise_multiplier, sampling_prob, 1, largest), epsilon, rtol=1e-9)


def one_step_epsilon(noise_multiplier, sampling_prob, delta):
    """Return the epsilon of a single step by bisection on p delta_mu(e'), at 60 digits, for 0 < epsilon < 2^14."""
    with mpmath.workdps(60):
        mu = 1 / mpmath.mpf(noise_multiplier)
        p = mpmath.mpf(sampling_prob)
        goal = mpmath.mpf(delta)

        def delta_of(epsilon):
            inner = mpmath.log1p(mpmath.expm1(epsilon) / p)
            removed = mpmath.ncdf(mu / 2 - inner / mu)
            added = mpmath.exp(inner) * mpmath.ncdf(-mu / 2 - inner / mu)
            return p * (removed - added)

        low = mpmath.mpf(0)
        high = mpmath.mpf(2**14)
        for _ in range(90):
            middle = (low + high) / 2
            if delta_of(middle) > goal:
                low = middle
            else:
                high = middle
        return high


NEAR_P = [(0.06550539077477337, 0.004881538677046087, 0.004881538677045111)]
for noise_multiplier, sampling_prob, gap in (
    (0.06, 0.26, 1e-16),
    (0.1, 0.95, 1e-12),
    (0.08, 1e-5, 1e-13),
    (0.06, 1.0, 1e-14),
):
    below = np.nextafter(sampling_prob, 0)
    NEAR_P.append((noise_multiplier, sampling_prob, float(min(sampling_prob * (1 - gap), below))))


def test_one_step_at_a_delta_next_to_its_sampling_probability():
    """The brackets contain the truth and are narrow, although delta is nearly the largest there is."""
    noise_multipliers, sampling_probs, deltas = np.transpose(NEAR_P)
    bounds = epsilon_bounds(noise_multipliers, sampling_probs, 1, deltas)
    for run, lower, upper in zip(NEAR_P, bounds.lower, bounds.upper, strict=True):
        truth = one_step_epsilon(*run)
        assert mpmath.mpf(lower) <= truth <= mpmath.mpf(upper), run
        assert upper - lower <= 1e-8 * truth + 4e-12, run


def test_a_sampling_probability_too_small_to_compute_with_still_gives_true_brackets():
    """Epsilon is 0 from below, and the bracket on delta contains the truth."""
    sampling_prob = np.array([1e-40, 1e-200])
    truth = 3 * sampling_prob * 0.38292492254802624  # delta(0) is p (2 Phi(1 / 2) - 1) for each step, nearly
    epsilon = epsilon_bounds(1.0, sampling_prob, 3, 0.5 * truth)
    assert np.all(epsilon.lower == 0)
    delta = delta_bounds(1.0, sampling_prob, 3, 0.0)
    assert np.all(delta.lower <= 0.999 * truth)
    assert np.all(truth <= delta.upper)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    log_sigma=st.floats(np.log(0.3), np.log(50)),
    log_p=st.floats(np.log(1e-5), np.log(0.99)),
    log_steps=st.floats(0, np.log(1e6)),
    log_delta=st.floats(np.log(1e-50), np.log(1e-2)),
)
def test_the_oracle_agrees_over_the_whole_range(log_sigma, log_p, log_steps, log_delta):
    """The brackets and those of an independent computation agree anywhere."""
    noise_multiplier = np.exp(log_sigma)
    sampling_prob = np.exp(log_p)
    num_steps = np.round(np.exp(log_steps))
    check_against_oracle(noise_multiplier, sampling_prob, num_steps, np.exp(log_delta))


def check_against_oracle(noise_multiplier, sampling_prob, num_steps, delta):
    """Assert that the oracle's delta is at most delta at the upper epsilon, and at least delta at the lower one.

    The oracle's own lower and upper ends are given the benefit of the doubt.
    """
    run = (noise_multiplier, sampling_prob, num_steps)
    log_delta = np.log(delta)

    def oracle_log_delta(epsilon):
        return oracle.both_directions(*run, epsilon, log_tail=log_delta - 12.0, bins=2**15)

    bounds = epsilon_bounds(*run, delta)
    assert 0 <= bounds.lower <= bounds.upper < np.inf
    optimistic, _ = oracle_log_delta(bounds.upper)
    assert optimistic <= log_delta + 1e-7
    if bounds.lower > 0:
        _, pessimistic = oracle_log_delta(bounds.lower)
        assert pessimistic >= log_delta - 1e-7

    # The bracket on delta between the two ends overlaps that of the oracle.
    middle = 0.5 * (bounds.lower + bounds.upper)
    optimistic, pessimistic = oracle_log_delta(middle)
    at_middle = delta_bounds(*run, middle)
    assert at_middle.lower <= np.exp(pessimistic + 1e-7)
    assert np.exp(optimistic - 1e-7) <= at_middle.upper


@pytest.mark.parametrize("rows", [reference.COMPOSED[:32:16], pytest.param(reference.COMPOSED, marks=pytest.mark.slow)])
def test_the_oracle_itself_brackets_the_reference_rows(rows):
    """The independent computation agrees with the reference."""
    for row in rows:
        run = [row[name] for name in RUN]
        log_delta = np.log(row["delta"])
        options = {"log_tail": log_delta - 10.0, "bins": 2**15}
        for direction in reference.DIRECTIONS:
            epsilon = row[direction]
            low, _ = oracle.log_delta_bracket(*run, epsilon["upper"], direction, **options)
            _, high = oracle.log_delta_bracket(*run, epsilon["lower"], direction, **options)
            assert low <= log_delta <= high


@pytest.mark.parametrize(("mu", "num_steps"), [(1.0, 1), (0.1, 100), (20.0, 16)])
def test_no_subsampling_is_gaussian(mu, num_steps):
    """With every example in every step, the brackets contain the closed form of Gaussian noise."""
    epsilon = np.array([0.0, 0.3, 1.0, 3.0]) * mu + mu**2 / 2
    log_removed = log_ndtr(mu / 2 - epsilon / mu)
    log_added = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta = np.exp(log_removed + np.log(-np.expm1(log_added - log_removed)))
    noise_multiplier = np.sqrt(num_steps) / mu
    assert_contains(delta_bounds(noise_multiplier, 1.0, num_steps, epsilon), delta, rtol=1e-9)
    assert_contains(epsilon_bounds(noise_multiplier, 1.0, num_steps, delta), epsilon, rtol=1e-9)


def test_zero_where_delta_is_large_enough():
    """Epsilon is exactly 0 where delta is above delta(0), and positive below it."""
    at_zero = delta_bounds(2.0, 0.001, 10, 0.0)
    bounds = epsilon_bounds(2.0, 0.001, 10, at_zero.upper * np.array([1.1, 10.0]))
    assert np.all(bounds.lower == 0)
    assert np.all(bounds.upper == 0)
    assert epsilon_bounds(2.0, 0.001, 10, at_zero.lower * 0.5).upper > 0


def test_corners_are_finite_and_ordered():
    """The ends are finite and in their order in every corner of the range."""
    grid = np.meshgrid([0.3, 50.0], [1e-5, 1.0], [1, 1e6], [1e-50, 1e-2], indexing="ij")
    runs = grid[:3]
    for bounds in (epsilon_bounds(*grid), delta_bounds(*runs, np.array([0.0, 5.0]))):
        assert np.all(np.isfinite(bounds.lower))
        assert np.all(np.isfinite(bounds.upper))
        assert np.all(bounds.lower <= bounds.upper)


def test_hard_places_hold_the_truth():
    """Where the first guess of the search is far off, the ends are certified all the same, or say nothing."""
    runs = [
        (2.0, 0.005, 65052, 0.25),
        (4.642889533243997, 0.5732924902471512, 10, 0.14335113228106316),
        (0.06550539077477337, 0.004881538677046087, 1, 0.004881538677045111),
    ]
    truth = np.array([0.043342, 0.027695, 0.334240])
    bounds = epsilon_bounds(*np.transpose(runs))
    assert np.all(bounds.lower <= truth * 1.00002)
    assert np.all(truth * 0.99998 <= bounds.upper)

    # One participation alone has a loss of about 1 / (2 s^2).
    assert epsilon_bounds(0.001, 0.001, 100, 1e-5).upper > 5e5


@pytest.mark.parametrize(
    "extreme",
    [pytest.param((1e-3, 0.5, 1e6, 1e-5), marks=pytest.mark.slow), (1e3, 0.5, 10, 1e-50), (1.0, 1e-12, 1e9, 1e-300)],
)
def test_beyond_the_stated_range_nothing_is_nan(extreme):
    """The ends are in their order beyond the range, too."""
    bounds = epsilon_bounds(*extreme)
    assert 0 <= bounds.lower <= bounds.upper


def test_delta_without_noise_to_speak_of_in_closed_form():
    """The bracket contains delta where mu is so large that its last digit is felt; at 60 digits, by mpmath."""
    cases = [
        (5.153459150717255e-05, 1.0, 46, 8664849436.649944, "1.6563447902910704882e-268"),
        (0.0015752002026927924, 1.0, 246313, 49644199532.79859, "5.1228303105275766699e-198"),
        (0.00010686581380803882, 1.0, 132448, 5798807920454.874, "0.0001823925095950367"),
        (0.00012996247424301946, 1.0, 2190613, 64848762310565.664, "3.4225305607492767391e-147"),
        (1.0333747486880834e-06, 0.5, 1, 468251876395.4051, "3.2609215936827848457e-174"),
    ]
    for *run, epsilon, truth in cases:
        lower, upper = delta_bounds(*run, epsilon)
        assert lower <= float(truth) <= upper
        assert upper < 1.001 * lower


ALPHAS = [
    0.1,
    0.3,
    1.0,
    0.0,
    pytest.param(1e-20, marks=pytest.mark.slow),
    pytest.param(0.5, marks=pytest.mark.slow),
    pytest.param(0.75, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("sampling_prob", [0.0, 5e-324, 1e-20])
def test_one_less_alpha_is_between_two_floats(alpha, sampling_prob):
    """The upper end is at least 1 - alpha, and the bracket is two neighbouring floats where nobody is sampled."""
    lower, upper = tradeoff_bounds(1.0, sampling_prob, 1, alpha)
    truth = 1 - fractions.Fraction(alpha)
    assert fractions.Fraction(upper) >= truth
    if sampling_prob == 0:
        assert fractions.Fraction(lower) <= truth
        assert upper - lower <= 2.3e-16
