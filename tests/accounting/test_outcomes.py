"""Events that are given by outcomes: sampled Laplace noise, discrete mechanisms, and any finite pair of laws."""

import functools

import numpy as np
import pytest
from dp_accounting import pld

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import (
    certified,
    delta_bounds,
    epsilon_bounds,
    moments_accountant_epsilon,
    mu_bounds,
    tradeoff_bounds,
)
from gdpjax.ledger import AllocationEvent, GaussianEvent, LaplaceEvent, OutcomesEvent, ShuffledEvent, UniformEvent
from gdpjax.mechanisms import DiscreteGaussianMechanism, DiscreteLaplaceMechanism, LaplaceMechanism, PoissonSubsampled
from gdpjax.tradeoff import Laplace, compose, subsample
from tests.refused import refusals

REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL


def overlap(first, second):
    return first.lower <= second.upper and second.lower <= first.upper


def test_ten_steps_of_sampled_laplace():
    event = PoissonSubsampled(LaplaceMechanism(1.0), 0.1).event(10)
    lower, upper = epsilon_bounds(event, delta=1e-5)
    assert round(upper, 5) == 1.17421
    assert upper < 1.001 * lower


@pytest.mark.parametrize(
    "run", [(0.1, 0.01, 10_000, 1e-6), (2.0, 1e-3, 50, 1e-4), (8.0, 0.01, 10, 1e-6), (1.0, 0.9, 100, 1e-5)], ids=str
)
def test_sampled_laplace_agrees_with_the_composition_of_curves(run):
    epsilon, prob, times, delta = run
    curve = certified(LaplaceEvent(epsilon, times, sampling_prob=prob))
    other = compose(subsample(Laplace(epsilon), prob).one_direction, times=times)
    middle = curve.epsilon(delta).upper
    assert curve.epsilon(delta).upper < 1.002 * curve.epsilon(delta).lower
    assert overlap(curve.epsilon(delta), other.epsilon(delta))
    assert overlap(curve.delta(0.7 * middle), other.delta(0.7 * middle))
    assert overlap(curve.tradeoff(0.03), other.tradeoff(0.03))
    assert overlap(curve.mu(1e-4), other.mu(1e-4))


def test_sampled_laplace_agrees_with_another_library():
    ledger = Ledger([LaplaceEvent(0.5, 200, sampling_prob=0.02), Event(2.0, 0.01, 300)])
    accountant = pld.PLDAccountant()
    accountant.compose(ledger.to_dp_event())
    bounds = epsilon_bounds(ledger, delta=1e-5)
    assert 0.998 * bounds.lower < accountant.get_epsilon(1e-5) < 1.002 * bounds.upper


def test_one_sampled_step_is_the_curve_of_the_mechanism():
    mechanism = PoissonSubsampled(LaplaceMechanism(1.5), 0.3)
    for epsilon in (0.05, 0.3, 0.6):
        bounds = delta_bounds(mechanism.event(), epsilon=epsilon)
        assert bounds.lower <= mechanism.delta(epsilon) <= bounds.upper < 1.02 * bounds.lower
    # Nothing is larger than the loss of an example that always shows its whole effect.
    assert delta_bounds(mechanism.event(), epsilon=np.log(1 + 0.3 * np.expm1(1.5)) + 1e-9).lower == 0


def exact_delta(epsilon, *releases):
    """Return the larger delta of a product of releases, each a pair (null, alternative), either way round."""
    laws = []
    for side in zip(*releases, strict=True):
        laws.append(functools.reduce(lambda law, release: np.outer(law, release).ravel(), side, np.ones(1)))
    null, alternative = laws
    return max(np.maximum(a - np.exp(epsilon) * b, 0).sum() for a, b in ((alternative, null), (null, alternative)))


@pytest.mark.parametrize(
    ("null", "alternative"), [([0.9, 0.1], [0.5, 0.5]), ([0.5, 0.3, 0.2, 0.0], [0.6, 0.0, 0.1, 0.3])]
)
def test_where_one_row_is_replaced_each_release_may_be_either_way_round(null, alternative):
    """Two answers about what the old row has and the new one lacks, or about one such thing and one the other way."""
    one, turned = (null, alternative), (alternative, null)
    for epsilon in (0.0, 0.1, 0.4, 1.0, 2.0):
        once = delta_bounds(OutcomesEvent(*one, 1, REPLACE), epsilon=epsilon)
        assert once.lower <= exact_delta(epsilon, one) <= once.upper < exact_delta(epsilon, one) + 1e-4
        least = max(exact_delta(epsilon, one, one), exact_delta(epsilon, one, turned))
        three = max(exact_delta(epsilon, one, one, one), exact_delta(epsilon, turned, one, one))
        for first in (one, turned):
            assert delta_bounds(OutcomesEvent(*first, 2, REPLACE), epsilon=epsilon).upper >= least
            both = Ledger([OutcomesEvent(*one, 1, REPLACE), OutcomesEvent(*first, 1, REPLACE)])
            assert delta_bounds(both, epsilon=epsilon).upper >= least
            assert delta_bounds(Ledger([*both, GaussianEvent(9.0, 1, REPLACE)]), epsilon=epsilon).upper >= least
            assert delta_bounds(OutcomesEvent(*first, 3, REPLACE), epsilon=epsilon).upper >= three
    together = exact_delta(0.4, one, one)
    bounds = delta_bounds(OutcomesEvent(*one, 2), epsilon=0.4)
    assert bounds.lower <= together <= bounds.upper < together + 1e-4


def test_outcomes_that_tell_everything():
    bounds = delta_bounds(OutcomesEvent([1.0, 0.0], [0.0, 1.0]), epsilon=1.0)
    assert 1 - 1e-8 < bounds.lower <= bounds.upper == 1


def test_outcomes_with_a_certain_answer_are_leaks():
    """What only one data set can show has an infinite loss: 1 - 0.99^2 of the releases show it."""
    event = OutcomesEvent([0.5, 0.5, 0.0], [0.49, 0.5, 0.01], 2)
    assert epsilon_bounds(event, delta=1e-5) == (np.inf, np.inf)
    assert mu_bounds(event, failure=1e-5) == (np.inf, np.inf)
    lower, upper = delta_bounds(event, epsilon=1.0)
    assert lower <= 1 - 0.99**2 <= upper < 1.001 * lower
    assert epsilon_bounds(event, delta=0.05).upper < 0.1


@pytest.mark.parametrize(
    "mechanism", [DiscreteGaussianMechanism(2.0), DiscreteLaplaceMechanism(1.0, 3)], ids=["gaussian", "laplace"]
)
def test_discrete_mechanisms(mechanism):
    bounds = epsilon_bounds(mechanism.event(), delta=1e-3)
    assert bounds.lower * (1 - 1e-9) <= mechanism.epsilon(1e-3) <= bounds.upper * (1 + 1e-9)
    many = epsilon_bounds(mechanism.event(30), delta=1e-5)
    assert overlap(many, compose(mechanism.tradeoff(), times=30).epsilon(1e-5))
    assert many.upper < 1.002 * many.lower


def test_beside_other_events():
    laplace = LaplaceEvent(1.0, 10, sampling_prob=0.1)
    steps = Event(1.0, 0.01, 1000)
    alone = epsilon_bounds(steps, delta=1e-5)
    both = epsilon_bounds(Ledger([laplace, steps]), delta=1e-5)
    assert alone.upper < both.lower < both.upper < min(1.002 * both.lower, alone.upper + 1.2)

    # Beside random allocation, a whole-data release, and batches of fixed size, of which a lower end is Poisson's.
    allocated = epsilon_bounds(Ledger([laplace, AllocationEvent(1.0, 100, 2), GaussianEvent(5.0)]), delta=1e-5)
    assert both.lower / 4 < allocated.lower < allocated.upper < 1.02 * allocated.lower
    outcomes = OutcomesEvent([0.6, 0.4], [0.5, 0.5], 5, REPLACE)
    uniform = epsilon_bounds(Ledger([outcomes, UniformEvent(1.0, 0.01, 1000)]), delta=1e-5)
    assert alone.upper < uniform.lower < uniform.upper < 2 * uniform.lower
    replaced = epsilon_bounds(Ledger([outcomes, Event(1.0, 0.01, 1000, REPLACE)]), delta=1e-5)
    assert epsilon_bounds(Event(1.0, 0.01, 1000, REPLACE), delta=1e-5).upper < replaced.lower < replaced.upper


def test_what_does_nothing_and_what_always_takes_part():
    plain = epsilon_bounds(LaplaceEvent(0.3, 20), delta=1e-5)
    assert epsilon_bounds(LaplaceEvent(0.3, 20, sampling_prob=1.0), delta=1e-5) == plain
    nearly = epsilon_bounds(LaplaceEvent(0.3, 20, sampling_prob=1 - 1e-9), delta=1e-5)
    np.testing.assert_allclose(nearly, plain, rtol=1e-3)
    assert epsilon_bounds(LaplaceEvent(0.3, 20, sampling_prob=0.0), delta=1e-5) == (0.0, 0.0)
    assert epsilon_bounds(OutcomesEvent([1.0], [1.0], 10**9), delta=1e-5) == (0.0, 0.0)
    assert epsilon_bounds(LaplaceEvent(600.0, 2, sampling_prob=0.5), delta=1e-5).lower > 390


def test_json_and_words():
    ledger = Ledger([LaplaceEvent(1.0, 10, sampling_prob=0.1), OutcomesEvent([0.6, 0.4], [0.5, 0.5])])
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert "sampling probability 0.1" in ledger[0].describe()
    older = (
        '{"gdpjax_ledger": 2, "events": [{"type": "laplace", "epsilon": 1.0, "num_steps": 1, "neighboring_relation": '
    )
    assert Ledger.from_json(older + '"add_or_remove_one"}]}')[0].sampling_prob == 1.0


test_what_is_not_known_is_refused = refusals(
    (lambda: LaplaceEvent(1.0, 1, REPLACE, 0.5), "not under REPLACE_ONE"),
    (lambda: OutcomesEvent([0.5, 0.4], [0.5, 0.5]), "with sum 1"),
    (lambda: OutcomesEvent([-0.5, 1.5], [0.5, 0.5]), "null"),
    (lambda: moments_accountant_epsilon(LaplaceEvent(1.0, sampling_prob=0.5), delta=1e-5), "does not know"),
    (lambda: certified(LaplaceEvent(1.0, sampling_prob=0.5), group_size=2), "leave group_size and rtol out"),
    (lambda: Ledger([OutcomesEvent([1.0], [1.0])]).to_dp_event(), "got OutcomesEvent"),
    (
        lambda: certified(Ledger([OutcomesEvent([1.0], [1.0], 1, SPECIAL), ShuffledEvent(1.0, 10)])),
        "both ShuffledEvent and OutcomesEvent",
    ),
)


def test_masses_below_the_rounding_of_one():
    """What only nearly never happens is not merged: epsilon is log(0.3 / 1e-28) but for delta."""
    null, alternative = [0.3, 0.2, 0.5], [1e-28, 1e-19, 1.0]
    expected = np.log(0.3 / 1e-28) + np.log1p(-1e-5 / 0.3)
    for event in (OutcomesEvent(null, alternative), OutcomesEvent(alternative, null)):
        lower, upper = epsilon_bounds(event, delta=1e-5)
        assert lower * (1 - 1e-9) <= expected <= upper * (1 + 1e-9)
        assert upper < 1.0001 * lower
        assert delta_bounds(event, epsilon=43.0).upper >= 0.3 * (1 - 1e-8)
        assert tradeoff_bounds(event, alpha=1e-25).lower <= 0.7


@pytest.mark.parametrize("mass", [0.5, 1e-6, 1.96e-15, 1.7e-16])
def test_what_an_outcome_of_one_law_alone_gives_away(mass):
    """It has no type I error, so that f(0) = 1 - mass, and it is delta at every larger epsilon."""
    event = OutcomesEvent([0.5, 0.5, 0.0], [0.5, 0.5 - mass, mass])
    at_zero = tradeoff_bounds(event, alpha=0.0)
    assert at_zero.lower <= 1 - mass <= at_zero.upper
    assert at_zero.upper - at_zero.lower < 1e-8
    lower, upper = delta_bounds(event, epsilon=5.0)
    assert lower <= mass <= upper


@pytest.mark.parametrize("others", [[], [AllocationEvent(1.0, 10)]], ids=["alone", "composed"])
def test_laws_without_an_outcome_in_common(others):
    curve = certified(Ledger([OutcomesEvent([1.0, 0.0], [0.0, 1.0], 3), *others]))
    assert curve.epsilon(1e-5) == (np.inf, np.inf)
    assert curve.delta(2.0) == (1, 1)
    assert curve.mu() == (np.inf, np.inf)
    np.testing.assert_array_equal(curve.tradeoff([0.0, 0.3, 1.0]), 0)


def test_several_releases_by_enumeration():
    rng = np.random.default_rng(8)
    null, alternative = rng.dirichlet(np.ones(3) * 0.3, 2)
    logs = np.log(null), np.log(alternative)
    q, p = (sum(np.meshgrid(log, log, log)).ravel() for log in logs)
    for epsilon in (0.1, 1.0, 3.0):
        removed = np.sum(np.maximum(np.exp(p) - np.exp(epsilon + q), 0))
        added = np.sum(np.maximum(np.exp(q) - np.exp(epsilon + p), 0))
        bounds = delta_bounds(OutcomesEvent(null, alternative, 3), epsilon=epsilon)
        np.testing.assert_allclose(bounds, max(removed, added), rtol=1e-9)


@pytest.mark.parametrize("prob", [0.05, 0.4, 0.95])
def test_coarse_cells_of_laplace_noise_contain_fine_ones(prob, monkeypatch):
    """Whatever the number of cells, the pair below understates and the one above overstates."""
    ledger = Ledger([LaplaceEvent(3.0, 4, sampling_prob=prob), GaussianEvent(3.0)])
    fine = [epsilon_bounds(ledger, delta=delta) for delta in (1e-3, 1e-6)]
    monkeypatch.setattr("gdpjax.accounting._outcomes._NUM_CELLS", 4)
    for delta, narrow in zip((1e-3, 1e-6), fine, strict=True):
        coarse = epsilon_bounds(ledger, delta=delta)
        assert coarse.lower <= narrow.upper
        assert narrow.lower <= coarse.upper
    assert fine[0].upper - fine[0].lower < 0.5 * (epsilon_bounds(ledger, delta=1e-3).upper - fine[0].lower)


@pytest.mark.parametrize(
    "steps", [Event(2.0, 0.3, 20, REPLACE), UniformEvent(2.0, 0.3, 20)], ids=["poisson", "uniform"]
)
def test_unlike_directions_beside_replaced_rows(steps):
    """Which data set is called the first does not matter to an upper end."""
    rare, often = [0.999, 0.001], [0.9, 0.1]
    one = epsilon_bounds(Ledger([OutcomesEvent(rare, often, 3, REPLACE), steps]), delta=1e-4)
    other = epsilon_bounds(Ledger([OutcomesEvent(often, rare, 3, REPLACE), steps]), delta=1e-4)
    np.testing.assert_allclose(one.upper, other.upper, rtol=2e-3)
    assert max(one.lower, other.lower) <= min(one.upper, other.upper)
