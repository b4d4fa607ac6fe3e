"""Shuffled batches: both ends of the bracket against the truth on small data sets, and their events in a Ledger."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import special

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import certified, epsilon_bounds, gdp_delta, gdp_epsilon, mu_bounds
from gdpjax.ledger import (
    AllocationEvent,
    GaussianEvent,
    LaplaceEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
    init_ledger,
    ledger_from_state,
    record_steps,
)
from gdpjax.tradeoff import Gaussian
from tests.refused import refusals

EPSILONS = np.array([0.0, 0.3, 1.0, 2.5, 5.0])
ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACED = NeighboringRelation.REPLACE_ONE
RUN = ShuffledEvent(0.6, steps_per_epoch=100)


# The truth, by quadrature.


def grid(noise, num=400, reach=9.0):
    """Return points that cover sums of up to four in size, with noise of the given standard deviation."""
    return np.linspace(-4.0 - reach * noise, 4.0 + reach * noise, num)


def normal(y, mean, noise):
    """Return the density of a normal number."""
    return np.exp(-0.5 * ((y - mean) / noise) ** 2) / (noise * np.sqrt(2 * np.pi))


def larger_delta(p, q, epsilons):
    """Return the larger of the two directions for two laws given by their masses."""
    ratio = np.exp(epsilons)[:, None]
    forward = np.maximum(p - ratio * q, 0).sum(axis=1)
    backward = np.maximum(q - ratio * p, 0).sum(axis=1)
    return np.maximum(forward, backward)


def law_of_epoch(gradients, noise):
    """Return the masses on a grid of the two sums of an epoch of two batches, shuffled."""
    y = grid(noise)
    num_examples = len(gradients)
    law = 0
    for first_batch in itertools.combinations(range(num_examples), (num_examples + 1) // 2):
        is_first = np.isin(np.arange(num_examples), first_batch)
        first = normal(y, gradients[is_first].sum(), noise)
        second = normal(y, gradients[~is_first].sum(), noise)
        law = law + np.multiply.outer(first, second)
    return (law / law.sum()).ravel()


def laws_of_epoch(target, replacement, rest, noise):
    """Return the laws of an epoch for two data sets that differ in one gradient."""
    with_target = law_of_epoch(np.array([target, *rest]), noise)
    with_replacement = law_of_epoch(np.array([replacement, *rest]), noise)
    return with_target, with_replacement


def largest_sum_law(noise, num_steps, mean):
    """Return the masses of the largest of t normal numbers, one of them with a mean."""
    y = grid(noise, 4000)
    cdf_of_one = special.ndtr((y - mean) / noise)
    cdf_of_others = special.ndtr(y / noise)
    density = normal(y, mean, noise) * cdf_of_others ** (num_steps - 1)
    if num_steps > 1:
        others_below = cdf_of_others ** (num_steps - 2)
        density = density + cdf_of_one * (num_steps - 1) * others_below * normal(y, 0.0, noise)
    return density * (y[1] - y[0])


def largest_sum_laws(noise, num_steps, means=(2.0, 1.0)):
    """Return the law of the largest sum for each of two means of the step of the target."""
    return [largest_sum_law(noise, num_steps, mean) for mean in means]


# The upper end.


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("relation", [SPECIAL, REPLACED])
def test_no_data_set_is_above_the_upper_end(noise, relation):
    """No delta of a small data set is above the upper end, with the gradients at which it is hard."""
    if relation is REPLACED:
        sensitivity = 2.0
        pairs = ((1.0, -1.0), (0.3, -0.9))
    else:
        sensitivity = 1.0
        pairs = ((1.0, 0.0), (-1.0, 0.0))
    event = ShuffledEvent(noise / sensitivity, 2, neighboring_relation=relation)
    upper = certified(event).above.delta(EPSILONS).upper
    worst = 0.0
    for target, replacement in pairs:
        for rest in ((-1, -1, -1), (0, 0, 0), (1, 1, -1), (-1, -1), (0.5, -1, 1), ()):
            p, q = laws_of_epoch(target, replacement, rest, noise)
            deltas = larger_delta(p, q, EPSILONS)
            assert (deltas <= upper * (1 + 5e-3) + 1e-9).all(), (target, rest)  # the grid's error
            worst = np.maximum(worst, deltas)
    assert worst[1] > 0.5 * upper[1]

    # Poisson accounting of the last pair would be noticed to be wrong.
    amplified = larger_delta(0.5 * p + 0.5 * q, q, EPSILONS)
    assert (worst[:3] > amplified[:3]).all()


def test_the_upper_end_is_the_gaussian_mechanism():
    """Nine epochs cost at most what nine releases of Gaussian noise cost, and epochs of several events add up."""
    event = ShuffledEvent(0.8, 20, 9, ADDED)
    above = certified(event).above
    mu = 3 / 0.8
    epsilon = gdp_epsilon(1e-5, mu)
    delta = gdp_delta(2.0, mu)
    assert epsilon <= above.epsilon(1e-5).upper <= epsilon * (1 + 1e-7)
    assert delta <= above.delta(2.0).upper <= delta * (1 + 1e-7)
    beta = above.tradeoff(0.1)
    assert beta.lower <= Gaussian(mu)(0.1) <= beta.upper
    assert mu <= above.mu().upper <= mu * (1 + 1e-9)

    two_events = Ledger([ShuffledEvent(0.8, 20, 5, ADDED), ShuffledEvent(0.8, 7, 4, ADDED)])
    above = certified(two_events).above
    np.testing.assert_allclose(above.epsilon(1e-5).upper, epsilon, rtol=1e-7)


def test_the_permutations_error_is_paid_for_above():
    """The probability with which the permutation is not uniform is part of delta."""
    event = ShuffledEvent(0.8, 20, 9, ADDED, overflow=1e-6)
    above = certified(event).above
    delta_left = (1e-5 - 1e-6) / (1 - 1e-6)
    np.testing.assert_allclose(above.epsilon(1e-5).upper, gdp_epsilon(delta_left, 3 / 0.8), rtol=1e-7)
    assert above.epsilon(1e-7).upper == np.inf


# The lower end.


def largest_sums(*epochs):
    """Return the curve of the largest sums of epochs, each a noise multiplier, steps an epoch and how many epochs."""
    run = Ledger([ShuffledEvent(*epoch, neighboring_relation=ADDED) for epoch in epochs])
    _, sums = certified(run).below
    return sums


@pytest.mark.parametrize(("noise", "steps"), [(0.4, 1), (1.0, 2), (0.7, 50), (2.0, 10)])
def test_the_largest_sum_of_an_epoch(noise, steps):
    """The deltas of the largest sum are those of its law, from below."""
    p, q = largest_sum_laws(noise, steps)
    exact = larger_delta(p, q, EPSILONS)
    deltas = largest_sums((noise, steps, 1)).delta(EPSILONS).lower
    assert (deltas <= exact * (1 + 1e-5) + 1e-12).all()
    assert (deltas >= exact * (1 - 2e-3) - 1e-9).all()

    # A null example that takes no place shows less.
    p, q = largest_sum_laws(noise, steps, (1.0, 0.0))
    without_place = larger_delta(p, q, EPSILONS)
    if steps > 2:
        assert (deltas[1:4] > without_place[1:4]).all()


def test_two_epochs_and_other_noise():
    """The deltas of two epochs are those of the joint law of two largest sums, from below."""
    joint_laws = []
    for first, second in zip(largest_sum_laws(0.8, 5), largest_sum_laws(1.2, 3), strict=True):
        # A quarter of the points, four times as heavy.
        joint_laws.append(np.multiply.outer(first[::4] * 4, second[::4] * 4).ravel())
    exact = larger_delta(*joint_laws, EPSILONS)
    deltas = largest_sums((0.8, 5, 1), (1.2, 3, 1)).delta(EPSILONS).lower
    assert (deltas <= exact * (1 + 1e-4)).all()
    assert (deltas >= exact * (1 - 3e-3)).all()

    # Two epochs in one row, or in two.
    one_row = largest_sums((0.8, 5, 2)).delta(EPSILONS).lower
    two_rows = largest_sums((0.8, 5, 1), (0.8, 5, 1)).delta(EPSILONS).lower
    np.testing.assert_allclose(two_rows, one_row, rtol=1e-3)


def test_the_answers_about_the_largest_sums_agree():
    """Epsilon, the trade-off curve and mu follow from the deltas."""
    sums = largest_sums((0.9, 30, 4))
    largest_epsilon = sums.epsilon(1e-8).lower
    epsilons = np.linspace(0.1, 0.999 * largest_epsilon, 80)
    deltas = sums.delta(epsilons).lower
    np.testing.assert_allclose(sums.epsilon(deltas).lower, epsilons, rtol=1e-3)

    # The curve is above its tangents at the epsilons, and next to the highest of them or the one at epsilon 0.
    delta_at_zero = sums.delta(0.0).lower
    for alpha in (1e-3, 0.05, 0.4):
        steep = 1 - deltas - np.exp(epsilons) * alpha
        flat = np.exp(-epsilons) * (1 - deltas - alpha)
        highest = np.maximum(steep, flat).max()
        beta = sums.tradeoff(alpha).upper
        assert beta >= highest - 1e-12
        assert beta <= max(highest, 1 - delta_at_zero - alpha) + 2e-2

    # Some delta refutes a smaller mu, and none refutes a larger one.
    mu = sums.mu(1e-8).lower
    of_smaller_mu = 1e-8 + (1 - 1e-8) * gdp_delta(epsilons, 0.999 * mu)
    of_larger_mu = 1e-8 + (1 - 1e-8) * gdp_delta(epsilons, 1.01 * mu)
    assert (deltas > of_smaller_mu).any()
    assert not (deltas > of_larger_mu).any()


@pytest.mark.parametrize("noise", [1e-3, 0.02, 50.0, 1e5])
@pytest.mark.parametrize("steps", [1, 3, 10**6])
@pytest.mark.parametrize("epochs", [1, 1000])
def test_extreme_runs_stay_below_the_upper_end(noise, steps, epochs):
    """Every answer of the lower end is below that of the upper end, with extreme noise and numbers of steps."""
    sums = largest_sums((noise, steps, epochs))
    above = certified(ShuffledEvent(noise, steps, epochs)).above
    deltas = np.array([1e-2, 1e-9, 1e-40])
    alphas = np.array([0.0, 0.1, 1.0])
    assert (sums.epsilon(deltas).lower <= above.epsilon(deltas).upper).all()
    assert (sums.delta(EPSILONS).lower <= above.delta(EPSILONS).upper).all()
    assert (sums.mu(deltas).lower <= above.mu(deltas).upper).all()
    assert (sums.tradeoff(alphas).upper >= above.tradeoff(alphas).lower).all()


# The bracket.


def test_the_bracket_of_replaced_examples_is_from_allocation_to_the_gaussian_mechanism():
    """Every bracket has one end of allocation and one of the Gaussian mechanism."""
    event = ShuffledEvent(1.0, 10, 5, REPLACED)
    curve = certified(event)
    of_allocation = certified(AllocationEvent(1.0, 10, 5))
    for question, argument in (("epsilon", 1e-5), ("delta", 1.0), ("mu", 1e-8), ("tradeoff", 0.1)):
        bounds = getattr(curve, question)(argument)
        best = getattr(of_allocation, question)(argument)
        worst = getattr(curve.above, question)(argument)
        if question == "tradeoff":
            assert (bounds.lower, bounds.upper) == (worst.lower, best.upper)
        else:
            assert (bounds.lower, bounds.upper) == (best.lower, worst.upper)
        assert bounds.lower < bounds.upper
    assert epsilon_bounds(event, delta=1e-5) == curve.epsilon(1e-5)
    assert mu_bounds(Ledger([event]), failure=1e-8) == curve.mu(1e-8)


def test_allocation_or_poisson_accounting_would_be_wrong():
    """The lower end is far above the claims of either accounting."""
    lower_end = certified(RUN).below[1].epsilon(1e-5).lower
    of_allocation = epsilon_bounds(AllocationEvent(0.6, 100), delta=1e-5)
    of_poisson = epsilon_bounds(Event(0.6, 0.01, 100), delta=1e-5)
    assert lower_end > 2 * of_allocation.upper
    assert lower_end > 2 * of_poisson.upper


def test_an_epoch_that_was_not_finished():
    """An unfinished epoch counts as a whole one above, and as none for the largest sums."""
    unfinished = ShuffledEvent(0.8, 10, 4, missing_steps=3)
    assert unfinished.num_steps == 37
    curve = certified(unfinished)
    of_four_epochs = certified(ShuffledEvent(0.8, 10, 4))
    assert curve.above.epsilon(1e-5).upper == of_four_epochs.above.epsilon(1e-5).upper

    delta = np.asarray(1e-5)
    of_three_epochs = certified(ShuffledEvent(0.8, 10, 3))
    np.testing.assert_array_equal(curve.below[1].epsilon(delta).lower, of_three_epochs.below[1].epsilon(delta).lower)
    of_allocation = certified(AllocationEvent(0.8, 10, 4, neighboring_relation=SPECIAL, missing_steps=3))
    assert curve.below[0].epsilon(1e-5).lower == of_allocation.epsilon(1e-5).lower
    assert certified(ShuffledEvent(0.8, 10, 1, missing_steps=9)).below[1:] == ()


BESIDE = {
    "other events": (
        ShuffledEvent(1.1, 2, neighboring_relation=ADDED),
        [Event(1.5, 0.3, 1), GaussianEvent(2.0), RandomizedResponseEvent(0.3)],
        [Event(1.1, 1.0, 1), Event(1.5, 0.3, 1), GaussianEvent(2.0), RandomizedResponseEvent(0.3)],
        [AllocationEvent(1.1, 2), Event(1.5, 0.3, 1), GaussianEvent(2.0), RandomizedResponseEvent(0.3)],
    ),
    "another relation": (
        ShuffledEvent(1.0, 5, 2, REPLACED),
        [UniformEvent(1.0, 0.1, 3), LaplaceEvent(0.1, 1, REPLACED)],
        [UniformEvent(1.0, 1.0, 2), UniformEvent(1.0, 0.1, 3), LaplaceEvent(0.1, 1, REPLACED)],
        [AllocationEvent(1.0, 5, 2), Event(1.0, 0.1, 3), LaplaceEvent(0.1)],
    ),
    "truncated batches": (
        ShuffledEvent(1.0, 5, 2, ADDED),
        [TruncatedPoissonEvent(1.0, 0.1, 3, 100, 30)],
        [Event(1.0, 1.0, 2), TruncatedPoissonEvent(1.0, 0.1, 3, 100, 30)],
        [AllocationEvent(1.0, 5, 2), Event(1.0, 0.0999, 3)],
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_beside_other_events(name):
    """The upper end composes others with the Gaussian mechanism, and the lower one is at least that of allocation."""
    shuffled, others, above, below = BESIDE[name]
    lower, upper = epsilon_bounds(Ledger([shuffled, *others]), delta=1e-4)
    assert upper == epsilon_bounds(Ledger(above), delta=1e-4).upper
    assert lower >= epsilon_bounds(Ledger(below), delta=1e-4).lower * (1 - 1e-9)
    assert lower < upper


# The event.


def test_without_noise_everything_is_shown():
    """The lower ends without noise are infinite epsilon and delta 1."""
    curve = certified(ShuffledEvent(0.0, 10, 2))
    assert curve.epsilon(1e-5).lower == np.inf
    assert curve.delta(1.0).lower == 1.0


@pytest.mark.parametrize("relation", [SPECIAL, ADDED, REPLACED])
def test_saved_and_recorded(relation):
    """The event survives JSON, and recorded steps become the event of their epochs."""
    event = ShuffledEvent(1.5, 7, 3, relation, overflow=1e-20, missing_steps=2)
    assert Ledger.from_json(Ledger([event]).to_json()).events == (event,)
    state = init_ledger(4, ShuffledEvent(1.0, 7, neighboring_relation=relation))
    assert ledger_from_state(state) == Ledger()
    after_19_steps = record_steps(state, 19, 1.5, 1 / 7, 0.0)
    (recorded,) = ledger_from_state(after_19_steps).events
    assert recorded == dataclasses.replace(event, overflow=0.0)

    two_noises = record_steps(state, 3, 1.5, 1 / 7, 0.0)
    two_noises = record_steps(two_noises, 1, 2.0, 1 / 7, 0.0)
    with pytest.warns(UserWarning, match="4 steps of different noise multipliers"):
        (merged,) = ledger_from_state(two_noises)
    assert merged == ShuffledEvent(1.5, 7, 1, relation, missing_steps=3, is_exact=False)


test_refusals = refusals(
    (lambda: ShuffledEvent(-1.0, 10), "noise_multiplier"),
    (lambda: ShuffledEvent(1.0, 10, missing_steps=10), "missing_steps must be a whole number >= 0, at most 9"),
    (lambda: epsilon_bounds(RUN, delta=1e-5, group_size=2), "leave group_size and rtol out"),
    (lambda: epsilon_bounds(Ledger([RUN, Event(1.0, 0.1, 1)]), delta=1e-5), "share one neighboring relation"),
    (lambda: Ledger([RUN]).to_dp_event(), "got ShuffledEvent"),
)
