"""Truncated Poisson sampling: no data set's delta exceeds the bound, by enumeration, and the event says what it is."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import _truncated, delta_bounds, epsilon_bounds
from gdpjax.ledger import TruncatedPoissonEvent

EPSILONS = np.array([0.0, 0.3, 1.0, 2.0])
GRID = np.linspace(-9.0, 9.0, 4001)


def law_of_sum(gradients, sampling_prob, capacity):
    """Return {sum of the batch: probability}: every drawn set, and every subset of it that may be kept."""
    law = {}
    for is_drawn in itertools.product([0, 1], repeat=len(gradients)):
        num_drawn = sum(is_drawn)
        num_left_out = len(gradients) - num_drawn
        prob = math.prod([sampling_prob] * num_drawn + [1 - sampling_prob] * num_left_out)
        drawn = list(itertools.compress(gradients, is_drawn))
        kept_subsets = list(itertools.combinations(drawn, min(capacity, num_drawn)))
        for kept in kept_subsets:
            total = sum(kept)
            law[total] = law.get(total, 0.0) + prob / len(kept_subsets)
    return law


def density(law, noise, x=GRID):
    """Return the density of the sum with noise."""
    total = 0
    for mean, prob in law.items():
        total = total + prob * stats.norm.pdf(x, mean, noise)
    return total


def larger_delta(p, q, spacing):
    """Return the larger of both directions of the hockey-stick divergence at EPSILONS."""
    ratio = np.exp(EPSILONS).reshape(-1, *[1] * p.ndim)
    axes = tuple(range(1, p.ndim + 1))
    cell = spacing**p.ndim
    forward = np.maximum(p - ratio * q, 0.0).sum(axis=axes) * cell
    backward = np.maximum(q - ratio * p, 0.0).sum(axis=axes) * cell
    return np.maximum(forward, backward)


def worst_delta(noise, sampling_prob, max_examples, capacity):
    """Return the largest delta over all data sets of up to ``max_examples`` with gradients of -1, 0 and 1."""
    spacing = GRID[1] - GRID[0]
    worst = np.zeros_like(EPSILONS)
    for num_examples in range(1, max_examples + 1):
        for others in itertools.combinations_with_replacement((-1, 0, 1), num_examples - 1):
            without_target = density(law_of_sum(others, sampling_prob, capacity), noise)
            for target in (1, -1):
                with_target = density(law_of_sum((target, *others), sampling_prob, capacity), noise)
                worst = np.maximum(worst, larger_delta(with_target, without_target, spacing))
    return worst


CASES = [
    (1.0, 0.3, 4, 1),
    (1.0, 0.6, 4, 2),
    (0.6, 0.5, 4, 3),  # K = B - 1 fits, K = B does not
    (0.5, 0.9, 3, 1),
    (0.7, 0.25, 3, 3),  # every batch fits
]


@pytest.mark.parametrize(("noise", "prob", "num_examples", "capacity"), CASES)
def test_no_data_set_exceeds_the_bound(noise, prob, num_examples, capacity):
    """The largest delta of small data sets is in the bracket."""
    worst = worst_delta(noise, prob, num_examples, capacity)
    event = TruncatedPoissonEvent(noise, prob, 1, num_examples, capacity)
    bounds = delta_bounds(event, epsilon=EPSILONS)
    error = 2e-5 * worst  # of the sum over the grid, at the kink
    assert (worst - error <= bounds.upper).all()
    assert (worst + error >= bounds.lower).all()


@pytest.mark.parametrize(("noise", "prob", "num_examples", "capacity"), CASES)
def test_no_data_set_exceeds_the_bound_without_second_kind(noise, prob, num_examples, capacity):
    """The bound holds if a step that pushes another example out, an event of probability p q, loses all."""
    worst = worst_delta(noise, prob, num_examples, capacity)
    event = TruncatedPoissonEvent(noise, prob, 1, num_examples, capacity)
    (step,) = _truncated._above(event, spare=1.0)
    prob_of_pushing_out = prob * stats.binom.sf(capacity - 1, num_examples - 1, prob)
    assert (step.noise_multiplier, step.sampling_prob) == (noise, prob)
    assert step.overflow == pytest.approx(prob_of_pushing_out, rel=1e-8, abs=1e-30)
    bounds = delta_bounds(step, epsilon=EPSILONS)
    assert (worst <= bounds.upper + 2e-5 * worst).all()


def test_poisson_accounting_would_be_wrong():
    """The delta of Poisson sampling is exceeded where many are drawn.

    An example that takes the place of another moves the sum by two.
    """
    worst = worst_delta(noise=0.7, sampling_prob=0.9, max_examples=6, capacity=4)
    of_poisson = delta_bounds(0.7, 0.9, 1, EPSILONS)
    assert (worst > 1.2 * of_poisson.upper).any()
    bounds = delta_bounds(TruncatedPoissonEvent(0.7, 0.9, 1, 6, 4), epsilon=EPSILONS)
    assert (worst <= bounds.upper).all()


def test_two_steps_with_others_that_follow_what_was_released():
    """The bound holds if the adversary turns the other gradients by the sign of the first sum."""
    noise = 0.8
    x = np.linspace(-7.0, 7.0, 351)
    spacing = x[1] - x[0]

    def density_of_sum(gradients):
        return density(law_of_sum(gradients, 0.5, capacity=1), noise, x)

    def joint_density(target):
        first = density_of_sum((*target, -1, -1))
        turned_target = [-gradient for gradient in target]
        second_if_high = density_of_sum((*target, -1, -1))
        second_if_low = density_of_sum((*turned_target, 1, 1))
        second = np.where((x > -0.5)[:, None], second_if_high, second_if_low)
        return first[:, None] * second

    deltas = larger_delta(joint_density([1]), joint_density([]), spacing)
    bounds = delta_bounds(TruncatedPoissonEvent(noise, 0.5, 2, 3, 1), epsilon=EPSILONS)
    assert (deltas <= bounds.upper).all()


def test_the_count_of_full_batches_is_bounded():
    """The count is the smallest that is exceeded with at most the probability that may be spent."""
    for num_steps, prob, spare in [(3516, 1e-3, 1e-8), (10, 0.5, 1e-30), (100, 0.0, 1e-9), (7, 1.0, 1e-3)]:
        count, prob_of_more = _truncated._most_overflows(num_steps, prob, spare)
        assert stats.binom.sf(count, num_steps, prob) <= prob_of_more <= spare
        assert count == 0 or stats.binom.sf(count - 1, num_steps, prob) > spare * (1 - 1e-6)


def test_the_kept_probability_is_that_of_the_sampler():
    """The sampling probability of the lower end is that of being drawn and kept, rounded down."""
    for num_examples, prob, capacity in [(6, 0.4, 2), (50, 0.1, 5), (5, 0.3, 5), (1, 0.7, 1)]:
        num_others = np.arange(num_examples)
        probs = stats.binom.pmf(num_others, num_examples - 1, prob)
        kept_if_drawn = np.minimum(1.0, capacity / (num_others + 1))
        exact = prob * probs @ kept_if_drawn
        event = _truncated._below(TruncatedPoissonEvent(1.0, prob, 3, num_examples, capacity))
        assert exact * (1 - 2e-9) <= event.sampling_prob <= exact


def test_a_capacity_that_always_suffices_is_poisson_sampling():
    """Brackets of roomy batches are those of Poisson sampling, and small batches widen them."""
    run = (1.3, 256 / 60_000, 3516)
    poisson = epsilon_bounds(*run, 1e-5)
    for capacity in (60_000, 400):
        bounds = epsilon_bounds(TruncatedPoissonEvent(*run, 60_000, capacity), delta=1e-5)
        np.testing.assert_allclose(bounds, poisson, rtol=1e-5)
    small = epsilon_bounds(TruncatedPoissonEvent(*run, 60_000, 300), delta=1e-5)
    assert small.lower < poisson.lower < poisson.upper < small.upper


def test_the_event():
    """The event survives JSON, adds its steps, and refuses what has no proved bound."""
    event = TruncatedPoissonEvent(1.0, 0.1, 3, 50, 8)
    assert event.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    ledger = Ledger([event, Event(1.0, 0.1, 2)])
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert ledger.num_steps == 5
    for relation in (NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE):
        with pytest.raises(ValueError, match="proved bound under ADD_OR_REMOVE_ONE"):
            TruncatedPoissonEvent(1.0, 0.1, 3, 50, 8, relation)
    with pytest.raises(ValueError, match="leave group_size and rtol out"):
        epsilon_bounds(event, delta=1e-5, group_size=2)
    for form in ("to_dp_event", "to_opacus_history"):
        with pytest.raises(ValueError, match=r"TruncatedPoissonEvent|truncated_poisson"):
            getattr(ledger, form)()
