"""The brackets contain the truth. Tightness is tested elsewhere."""

import fractions

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from gdpjax.accounting import delta_bounds, epsilon_bounds, epsilon_estimate, tradeoff_bounds
from tests.accounting.numeric import oracle, reference

RUN = ("noise_multiplier", "sampling_prob", "num_steps")


def test_every_composed_reference_row_is_inside():
    bounds = epsilon_bounds(*reference.columns(reference.COMPOSED, *RUN, "delta"))
    truth, low, high = reference.columns(reference.COMPOSED, "epsilon", "epsilon_lower", "epsilon_upper")
    assert np.all((bounds.lower <= high) & (bounds.upper >= low))
    assert np.all((bounds.lower <= truth) & (truth <= bounds.upper))


@pytest.mark.parametrize("rows", [reference.COMPOSED[::3], pytest.param(reference.COMPOSED, marks=pytest.mark.slow)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_every_direction_of_the_reference_rows_is_inside(direction, rows):
    sigma, p, steps, delta = reference.columns(rows, *RUN, "delta")
    low, high = reference.columns([row[direction] for row in rows], "lower", "upper")
    bounds = reference.direction_epsilon(sigma, p, steps, direction, delta)
    assert np.all((bounds.lower <= high) & (bounds.upper >= low))
    above = reference.direction_log_delta(sigma, p, steps, direction, low)
    below = reference.direction_log_delta(sigma, p, steps, direction, high)
    assert np.all((above.upper >= np.log(delta)) & (below.lower <= np.log(delta)))


@pytest.mark.parametrize("rows", [reference.ONE_STEP[::5], pytest.param(reference.ONE_STEP, marks=pytest.mark.slow)])
def test_one_step_is_the_closed_form_in_both_directions(rows):
    sigma, p, epsilon = reference.columns(rows, "noise_multiplier", "sampling_prob", "epsilon")
    largest = np.zeros(sigma.size)
    for direction in reference.DIRECTIONS:
        (delta,) = reference.columns(rows, f"delta_{direction}")
        bounds = reference.direction_log_delta(sigma, p, np.ones(sigma.size), direction, epsilon)
        with np.errstate(divide="ignore"):
            assert np.all((bounds.lower <= np.log(delta)) & (np.log(delta) <= bounds.upper))
        largest = np.maximum(largest, delta)
    bounds = delta_bounds(sigma, p, 1, epsilon)
    assert np.all((bounds.lower <= largest) & (largest <= bounds.upper))
    inverse = epsilon_bounds(sigma, p, 1, largest)
    assert np.all((inverse.lower <= epsilon * (1 + 1e-9)) & (epsilon * (1 - 1e-9) <= inverse.upper))


def one_step_epsilon(noise_multiplier, sampling_prob, delta):
    """The epsilon of a single step by bisection on p delta_mu(e'), at 60 digits, for 0 < epsilon < 2^14."""
    with mpmath.workdps(60):
        mu, p, goal = 1 / mpmath.mpf(noise_multiplier), mpmath.mpf(sampling_prob), mpmath.mpf(delta)

        def delta_of(epsilon):
            inner = mpmath.log1p(mpmath.expm1(epsilon) / p)
            return p * (mpmath.ncdf(mu / 2 - inner / mu) - mpmath.exp(inner) * mpmath.ncdf(-mu / 2 - inner / mu))

        low, high = mpmath.mpf(0), mpmath.mpf(2**14)
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of(middle) > goal else (low, middle)
        return high


NEAR_P = [(0.06550539077477337, 0.004881538677046087, 0.004881538677045111)] + [
    (noise, p, float(min(p * (1 - gap), np.nextafter(p, 0))))
    for noise, p, gap in ((0.06, 0.26, 1e-16), (0.1, 0.95, 1e-12), (0.08, 1e-5, 1e-13), (0.06, 1.0, 1e-14))
]


def test_one_step_at_a_delta_next_to_its_sampling_probability():
    bounds = epsilon_bounds(*np.transpose(NEAR_P)[:2], 1, np.transpose(NEAR_P)[2])
    for row, lower, upper in zip(NEAR_P, *bounds, strict=True):
        truth = one_step_epsilon(*row)
        assert mpmath.mpf(lower) <= truth <= mpmath.mpf(upper), row
        assert upper - lower <= 1e-8 * truth + 4e-12, row


def test_a_sampling_probability_too_small_to_compute_with_still_gives_true_brackets():
    run = 1.0, [1e-40, 1e-200], 3
    truth = 3 * np.array(run[1]) * 0.38292492254802624  # delta(0) is p (2 Phi(1 / 2) - 1) for each step, nearly
    epsilon, delta = epsilon_bounds(*run, 0.5 * truth), delta_bounds(*run, 0.0)
    assert np.all((epsilon.lower == 0) & (delta.lower <= 0.999 * truth) & (truth <= delta.upper))


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    log_sigma=st.floats(np.log(0.3), np.log(50)),
    log_p=st.floats(np.log(1e-5), np.log(0.99)),
    log_steps=st.floats(0, np.log(1e6)),
    log_delta=st.floats(np.log(1e-50), np.log(1e-2)),
)
def test_the_oracle_agrees_over_the_whole_range(log_sigma, log_p, log_steps, log_delta):
    check_against_oracle(np.exp(log_sigma), np.exp(log_p), np.round(np.exp(log_steps)), np.exp(log_delta))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_oracle_agrees_on_many_points(seed):
    uniform = np.random.default_rng(seed).uniform
    for _ in range(40):
        logs = [uniform(np.log(a), np.log(b)) for a, b in ((0.3, 50), (1e-5, 0.99), (1, 1e6), (1e-50, 1e-2))]
        sigma, p, steps, delta = np.exp(logs)
        check_against_oracle(sigma, p, np.round(steps), delta)


def check_against_oracle(sigma, p, steps, delta):
    """The optimistic oracle at the upper epsilon stays below delta, the pessimistic one at the lower stays above."""
    options = {"log_tail": np.log(delta) - 12.0, "bins": 2**15}
    bounds = epsilon_bounds(sigma, p, steps, delta)
    assert 0 <= bounds.lower <= bounds.upper < np.inf
    assert oracle.both_directions(sigma, p, steps, bounds.upper, **options)[0] <= np.log(delta) + 1e-7
    if bounds.lower > 0:
        assert oracle.both_directions(sigma, p, steps, bounds.lower, **options)[1] >= np.log(delta) - 1e-7
    middle = 0.5 * (bounds.lower + bounds.upper)
    low, high = oracle.both_directions(sigma, p, steps, middle, **options)
    at_middle = delta_bounds(sigma, p, steps, middle)
    assert at_middle.lower <= np.exp(high + 1e-7)
    assert np.exp(low - 1e-7) <= at_middle.upper


@pytest.mark.parametrize("rows", [reference.COMPOSED[:32:16], pytest.param(reference.COMPOSED, marks=pytest.mark.slow)])
def test_the_oracle_itself_brackets_the_reference_rows(rows):
    for row in rows:
        for direction in reference.DIRECTIONS:
            run = (row["noise_multiplier"], row["sampling_prob"], row["num_steps"])
            options = {"log_tail": np.log(row["delta"]) - 10.0, "bins": 2**15}
            low, _ = oracle.log_delta_bracket(*run, row[direction]["upper"], direction, **options)
            _, high = oracle.log_delta_bracket(*run, row[direction]["lower"], direction, **options)
            assert low <= np.log(row["delta"]) <= high


def test_dp_accounting_is_above_the_lower_bound():
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    sigma, p, steps, delta = 1.0, 0.02, 200, 1e-5
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(p, dp_event.GaussianDpEvent(sigma)), steps)
    pessimistic = PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(delta)
    bounds = epsilon_bounds(sigma, p, steps, delta)
    assert bounds.lower <= pessimistic
    assert pessimistic <= bounds.upper * 1.01  # and it is tight at an easy point


@pytest.mark.parametrize(("mu", "num_steps"), [(1.0, 1), (0.1, 100), (20.0, 16)])
def test_no_subsampling_is_gaussian(mu, num_steps):
    epsilon = np.array([0.0, 0.3, 1.0, 3.0]) * mu + mu**2 / 2
    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta = np.exp(first + np.log(-np.expm1(second - first)))
    bounds = delta_bounds(np.sqrt(num_steps) / mu, 1.0, num_steps, epsilon)
    assert np.all((bounds.lower <= delta * (1 + 1e-9)) & (delta * (1 - 1e-9) <= bounds.upper))
    inverse = epsilon_bounds(np.sqrt(num_steps) / mu, 1.0, num_steps, delta)
    assert np.all((inverse.lower <= epsilon * (1 + 1e-9)) & (epsilon * (1 - 1e-9) <= inverse.upper))


def test_monotone_in_every_argument_up_to_the_width():
    sigma, p, steps, delta = 1.1, 0.01, 500, 1e-7
    worse = [
        epsilon_bounds(np.array([3.0, 1.5, 1.11, 1.1, 0.8, 0.4]), p, steps, delta),
        epsilon_bounds(sigma, np.array([1e-5, 1e-3, 9.99e-3, 0.01, 0.2, 1.0]), steps, delta),
        epsilon_bounds(sigma, p, np.array([1, 2, 499, 500, 501, 10**6]), delta),
        epsilon_bounds(sigma, p, steps, np.array([0.5, 1e-2, 1.01e-7, 1e-7, 1e-20, 1e-50])),
    ]
    for bounds in worse:
        assert np.all(bounds.lower[:-1] <= bounds.upper[1:])


def test_zero_where_delta_is_large_enough():
    at_zero = delta_bounds(2.0, 0.001, 10, 0.0)
    bounds = epsilon_bounds(2.0, 0.001, 10, at_zero.upper * np.array([1.1, 10.0]))
    assert np.all(bounds.lower == 0)
    assert np.all(bounds.upper == 0)
    assert epsilon_bounds(2.0, 0.001, 10, at_zero.lower * 0.5).upper > 0


def test_corners_are_finite_and_ordered():
    grid = np.meshgrid([0.3, 50.0], [1e-5, 1.0], [1, 1e6], [1e-50, 1e-2], indexing="ij")
    for bounds in (epsilon_bounds(*grid), delta_bounds(*grid[:3], np.array([0.0, 5.0]))):
        assert np.all(np.isfinite(bounds.lower) & np.isfinite(bounds.upper) & (bounds.lower <= bounds.upper))
    assert np.all(np.isfinite(epsilon_estimate(*grid)))


@pytest.mark.parametrize(
    "extreme",
    [pytest.param((1e-3, 0.5, 1e6, 1e-5), marks=pytest.mark.slow), (1e3, 0.5, 10, 1e-50), (1.0, 1e-12, 1e9, 1e-300)],
)
def test_beyond_the_stated_range_nothing_is_nan(extreme):
    bounds = epsilon_bounds(*extreme)
    assert 0 <= bounds.lower <= bounds.upper


def test_delta_without_noise_to_speak_of_in_closed_form():
    """Where mu is so large that its last digit is felt; at 60 digits, by mpmath."""
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


@pytest.mark.parametrize(
    "alpha", [0.1, 0.3, 1.0, 0.0, *(pytest.param(alpha, marks=pytest.mark.slow) for alpha in (1e-20, 0.5, 0.75))]
)
@pytest.mark.parametrize("sampling_prob", [0.0, 5e-324, 1e-20])
def test_one_less_alpha_is_between_two_floats(alpha, sampling_prob):
    lower, upper = tradeoff_bounds(1.0, sampling_prob, 1, alpha)
    truth = 1 - fractions.Fraction(alpha)
    assert fractions.Fraction(upper) >= truth
    if sampling_prob == 0:
        assert fractions.Fraction(lower) <= truth
        assert upper - lower <= 2.3e-16
