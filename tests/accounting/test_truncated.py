"""Truncated Poisson sampling: no data set's delta exceeds the bound, by enumeration, and the event says what it is."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import _truncated, delta_bounds, epsilon_bounds, epsilon_estimate, mu_bounds, tradeoff_bounds
from gdpjax.ledger import TruncatedPoissonEvent

EPSILONS = np.array([0.0, 0.3, 1.0, 2.0])
GRID = np.linspace(-9.0, 9.0, 4001)


def sums(gradients, prob, capacity):
    """{sum of the batch: probability}: every drawn set, and every subset that may be kept of it."""
    law = {}
    for drawn in itertools.product([0, 1], repeat=len(gradients)):
        rows = [g for g, d in zip(gradients, drawn, strict=True) if d]
        chance = math.prod(prob if d else 1 - prob for d in drawn)
        kept = list(itertools.combinations(rows, min(capacity, len(rows))))
        for subset in kept:
            law[sum(subset)] = law.get(sum(subset), 0.0) + chance / len(kept)
    return law


def density(law, noise, x=GRID):
    return sum(weight * stats.norm.pdf(x, at, noise) for at, weight in law.items())


def deltas(p, q, step):
    """Both directions of the hockey-stick divergence at EPSILONS."""
    ratio = np.exp(EPSILONS).reshape(-1, *[1] * p.ndim)
    axes = tuple(range(1, p.ndim + 1))
    ways = [np.maximum(a - ratio * b, 0.0).sum(axis=axes) * step**p.ndim for a, b in ((p, q), (q, p))]
    return np.maximum(*ways)


def worst(noise, prob, num_examples, capacity):
    """The largest delta over all data sets of up to ``num_examples`` with gradients of -1, 0 and 1; by target first."""
    step, most = GRID[1] - GRID[0], np.zeros_like(EPSILONS)
    for n in range(1, num_examples + 1):
        for others in itertools.combinations_with_replacement((-1, 0, 1), n - 1):
            without = density(sums(others, prob, capacity), noise)
            for target in (1, -1):
                both = density(sums((target, *others), prob, capacity), noise)
                most = np.maximum(most, deltas(both, without, step))
    return most


CASES = [
    (1.0, 0.3, 4, 1),
    (1.0, 0.6, 4, 2),
    (0.6, 0.5, 4, 3),  # K = B - 1 fits, K = B does not
    (0.5, 0.9, 3, 1),
    (0.7, 0.25, 3, 3),  # every batch fits
]


@pytest.mark.parametrize(("noise", "prob", "num_examples", "capacity"), CASES)
def test_no_data_set_exceeds_the_bound(noise, prob, num_examples, capacity):
    found = worst(noise, prob, num_examples, capacity)
    event = TruncatedPoissonEvent(noise, prob, 1, num_examples, capacity)
    bounds = delta_bounds(event, epsilon=EPSILONS)
    error = 2e-5 * found  # of the sum over the grid, at the kink
    assert (found - error <= bounds.upper).all()
    assert (found + error >= bounds.lower).all()


@pytest.mark.parametrize(("noise", "prob", "num_examples", "capacity"), CASES)
def test_no_data_set_exceeds_the_bound_without_second_kind(noise, prob, num_examples, capacity):
    """A step in which the example pushes out another is an event of probability p q, in which all is lost."""
    found = worst(noise, prob, num_examples, capacity)
    (step,) = _truncated._above(TruncatedPoissonEvent(noise, prob, 1, num_examples, capacity), spare=1.0)
    displaced = prob * stats.binom.sf(capacity - 1, num_examples - 1, prob)
    assert (step.noise_multiplier, step.sampling_prob) == (noise, prob)
    assert step.overflow == pytest.approx(displaced, rel=1e-8, abs=1e-30)
    assert (found <= delta_bounds(step, epsilon=EPSILONS).upper + 2e-5 * found).all()


def test_poisson_accounting_would_be_wrong():
    """Many examples are drawn, and one that takes the place of another moves the sum by two."""
    noise, prob, num_examples, capacity = 0.7, 0.9, 6, 4
    found = worst(noise, prob, num_examples, capacity)
    poisson = delta_bounds(noise, prob, 1, EPSILONS).upper
    assert (found > 1.2 * poisson).any()
    assert (
        found <= delta_bounds(TruncatedPoissonEvent(noise, prob, 1, num_examples, capacity), epsilon=EPSILONS).upper
    ).all()


def test_two_steps_with_others_that_follow_what_was_released():
    """The adversary turns the other gradients by the sign of the first sum."""
    noise, prob, capacity = 0.8, 0.5, 1
    x = np.linspace(-7.0, 7.0, 351)
    step = x[1] - x[0]

    def joint(target):
        first = density(sums((*target, -1, -1), prob, capacity), noise, x)
        after = {s: density(sums((*(s * t for t in target), -s, -s), prob, capacity), noise, x) for s in (-1, 1)}
        return np.stack([p * after[1 if at > -0.5 else -1] for p, at in zip(first, x, strict=True)])

    found = deltas(joint((1,)), joint(()), step)
    bounds = delta_bounds(TruncatedPoissonEvent(noise, prob, 2, 3, capacity), epsilon=EPSILONS)
    assert (found <= bounds.upper).all()


def test_the_count_of_full_batches_is_bounded():
    for num_steps, prob, spare in [(3516, 1e-3, 1e-8), (10, 0.5, 1e-30), (100, 0.0, 1e-9), (7, 1.0, 1e-3)]:
        count, more = _truncated._most_overflows(num_steps, prob, spare)
        assert stats.binom.sf(count, num_steps, prob) <= more <= spare
        assert count == 0 or stats.binom.sf(count - 1, num_steps, prob) > spare * (1 - 1e-6)


def test_the_kept_probability_is_that_of_the_sampler():
    for n, p, capacity in [(6, 0.4, 2), (50, 0.1, 5), (5, 0.3, 5), (1, 0.7, 1)]:
        others = np.arange(n)
        exact = p * stats.binom.pmf(others, n - 1, p) @ np.minimum(1.0, capacity / (others + 1))
        event = _truncated._below(TruncatedPoissonEvent(1.0, p, 3, n, capacity))
        assert exact * (1 - 2e-9) <= event.sampling_prob <= exact


def test_a_capacity_that_always_suffices_is_poisson_sampling():
    run = 1.3, 256 / 60_000, 3516
    poisson = epsilon_bounds(*run, 1e-5)
    roomy, ample = (
        epsilon_bounds(TruncatedPoissonEvent(*run, 60_000, capacity), delta=1e-5) for capacity in (60_000, 400)
    )
    for bounds in (roomy, ample):
        np.testing.assert_allclose(bounds, poisson, rtol=1e-5)
    tight = epsilon_bounds(TruncatedPoissonEvent(*run, 60_000, 300), delta=1e-5)
    assert tight.lower < poisson.lower < poisson.upper < tight.upper


def test_it_composes_and_answers_every_question():
    event = TruncatedPoissonEvent(1.0, 0.05, 60, 1000, 75)
    both = Ledger([event, Event(2.0, 0.1, 5)])
    bounds = epsilon_bounds(both, delta=np.array([1e-5, 1e-7]))
    assert (bounds.lower > epsilon_bounds(event, delta=1e-5).lower).all()
    assert (bounds.upper >= bounds.lower).all()
    estimate = epsilon_estimate(event, delta=1e-5)
    assert estimate == pytest.approx(float(epsilon_bounds(event, delta=1e-5).upper), rel=2e-2)
    curve = tradeoff_bounds(event, alpha=np.array([0.0, 1e-3, 0.2]))
    assert (curve.lower <= curve.upper).all()
    assert (curve.lower[1:] > 0).all()
    assert epsilon_bounds(TruncatedPoissonEvent(0.0, 0.05, 6, 100, 7), delta=1e-5) == (np.inf, np.inf)


@pytest.mark.slow
def test_mu():
    run = 2.0, 0.05, 20
    poisson, bounds = mu_bounds(*run), mu_bounds(TruncatedPoissonEvent(*run, 1000, 120))
    assert bounds.lower == pytest.approx(float(poisson.lower), rel=1e-3)
    assert poisson.upper <= bounds.upper < 1.01 * poisson.upper


def test_the_event():
    event = TruncatedPoissonEvent(1.0, 0.1, 3, 50, 8)
    assert event.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    ledger = Ledger([event, Event(1.0, 0.1, 2)])
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert ledger.num_steps == 5
    for relation in (NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE):
        with pytest.raises(ValueError, match="proved bound under ADD_OR_REMOVE_ONE"):
            TruncatedPoissonEvent(1.0, 0.1, 3, 50, 8, relation)
    for fields in [(1.0, 0.1, 3, 0, 8), (1.0, 0.1, 3, 50, 0), (1.0, 0.1, 3, 50, 1.5), (-1.0, 0.1, 3, 50, 8)]:
        with pytest.raises(ValueError, match="must be"):
            TruncatedPoissonEvent(*fields)
    with pytest.raises(ValueError, match="group_size > 1"):
        epsilon_bounds(event, delta=1e-5, group_size=2)
    with pytest.raises(ValueError, match="has an event of its own"):
        Event(1.0, 0.1, 3, "truncated_poisson")
    with pytest.raises(ValueError, match="has an event of its own"):
        epsilon_bounds(1.0, 0.1, 3, 1e-5, sampling="truncated_poisson")
    for form in ("to_dp_event", "to_opacus_history"):
        with pytest.raises(ValueError, match=r"TruncatedPoissonEvent|truncated_poisson"):
            getattr(ledger, form)()
