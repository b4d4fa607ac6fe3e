"""Shuffled batches: both ends of the bracket against the truth on small data sets, and their events in a Ledger."""

import dataclasses
import itertools

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import (
    certified,
    epsilon_bounds,
    epsilon_estimate,
    gdp_delta,
    gdp_epsilon,
    gdp_tradeoff,
    mu_bounds,
)
from gdpjax.accounting._largest_sum import LargestSums, _masses
from gdpjax.accounting._shuffled import from_above, from_below
from gdpjax.ledger import (
    AllocationEvent,
    GaussianEvent,
    LaplaceEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    init_ledger,
    ledger_from_state,
    record_steps,
)

EPSILONS = np.array([0.0, 0.3, 1.0, 2.5, 5.0])
ADDED, SPECIAL = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL
REPLACED = NeighboringRelation.REPLACE_ONE
RUN = ShuffledEvent(0.6, steps_per_epoch=100)


# The truth, by quadrature.


def grid(noise, num=400, reach=9.0):
    return np.linspace(-4.0 - reach * noise, 4.0 + reach * noise, num)


def normal(y, mean, noise):
    return np.exp(-0.5 * ((y - mean) / noise) ** 2) / (noise * np.sqrt(2 * np.pi))


def larger_delta(p, q, epsilons):
    """The larger of the two directions for two laws given by their masses."""
    ratio = np.exp(epsilons)[:, None]
    return np.maximum(np.maximum(p - ratio * q, 0).sum(axis=1), np.maximum(q - ratio * p, 0).sum(axis=1))


def laws_of_epoch(target, other, rest, noise):
    """The masses on a grid of the sums of an epoch of two batches, shuffled, of data sets that differ in one row."""
    y = grid(noise)
    num = len(rest) + 1
    laws = []
    for row in (target, other):
        gradients = np.array([row, *rest])
        law = 0
        for first in itertools.combinations(range(num), (num + 1) // 2):
            chosen = np.isin(np.arange(num), first)
            sums = gradients[chosen].sum(), gradients[~chosen].sum()
            law = law + np.multiply.outer(normal(y, sums[0], noise), normal(y, sums[1], noise))
        laws.append((law / law.sum()).ravel())
    return laws


def largest_sum_laws(noise, steps, means=(2.0, 1.0)):
    """The masses of the largest of t normal numbers, of which one has a mean."""
    y = grid(noise, 4000)
    laws = []
    for mean in means:
        below, others = special.ndtr((y - mean) / noise), special.ndtr(y / noise)
        density = normal(y, mean, noise) * others ** (steps - 1)
        if steps > 1:
            density = density + below * (steps - 1) * others ** (steps - 2) * normal(y, 0.0, noise)
        laws.append(density * (y[1] - y[0]))
    return laws


# The upper end.


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("relation", [SPECIAL, REPLACED])
def test_no_data_set_is_above_the_upper_end(noise, relation):
    """Every partition of small data sets, with the gradients at which it is hard."""
    sensitivity = 2.0 if relation is REPLACED else 1.0
    event = ShuffledEvent(noise / sensitivity, 2, neighboring_relation=relation)
    upper = certified(event).above.delta(EPSILONS).upper
    worst = 0.0
    for target, other in ((1.0, -1.0), (0.3, -0.9)) if relation is REPLACED else ((1.0, 0.0), (-1.0, 0.0)):
        for rest in ((-1, -1, -1), (0, 0, 0), (1, 1, -1), (-1, -1), (0.5, -1, 1), ()):
            p, q = laws_of_epoch(target, other, rest, noise)
            found = larger_delta(p, q, EPSILONS)
            assert (found <= upper * (1 + 5e-3) + 1e-9).all(), (target, rest)  # the grid's error
            worst = np.maximum(worst, found)
    assert worst[1] > 0.5 * upper[1]
    amplified = larger_delta(0.5 * p + 0.5 * q, q, EPSILONS)  # Poisson sampling of these: it would be noticed
    assert (worst[:3] > amplified[:3]).all()


def test_the_upper_end_is_the_gaussian_mechanism():
    event = ShuffledEvent(0.8, 20, 9, ADDED)
    above, mu = certified(event).above, 3 / 0.8
    for found, exact in (
        (above.epsilon(1e-5), gdp_epsilon(1e-5, mu)),
        (above.delta(2.0), gdp_delta(2.0, mu)),
    ):
        assert exact <= found.upper <= exact * (1 + 1e-7)
    found = above.tradeoff(0.1)
    assert found.lower <= gdp_tradeoff(0.1, mu) <= found.upper
    assert mu <= above.mu().upper <= mu * (1 + 1e-9)
    two = certified(Ledger([ShuffledEvent(0.8, 20, 5, ADDED), ShuffledEvent(0.8, 7, 4, ADDED)])).above
    np.testing.assert_allclose(two.epsilon(1e-5).upper, gdp_epsilon(1e-5, mu), rtol=1e-7)


def test_the_permutations_error_is_paid_for_above():
    event = ShuffledEvent(0.8, 20, 9, ADDED, overflow=1e-6)
    above = certified(event).above
    np.testing.assert_allclose(above.epsilon(1e-5).upper, gdp_epsilon((1e-5 - 1e-6) / (1 - 1e-6), 3 / 0.8), rtol=1e-7)
    assert above.epsilon(1e-7).upper == np.inf


# The lower end.


@pytest.mark.parametrize(("noise", "steps"), [(0.4, 1), (0.4, 2), (1.0, 2), (0.7, 50), (2.0, 10)])
def test_the_largest_sum_of_an_epoch(noise, steps):
    p, q = largest_sum_laws(noise, steps)
    exact = larger_delta(p, q, EPSILONS)
    found = LargestSums([(noise, steps, 1)]).delta(EPSILONS)
    assert (found <= exact * (1 + 1e-5) + 1e-12).all()
    assert (found >= exact * (1 - 2e-3) - 1e-9).all()
    p, q = largest_sum_laws(noise, steps, (1.0, 0.0))  # of a null example that takes no place
    if steps > 2:
        assert (found[1:4] > larger_delta(p, q, EPSILONS)[1:4]).all()


@pytest.mark.parametrize("noise", [0.05, 1.0, 1e4])
@pytest.mark.parametrize("steps", [1, 234, 10**9])
def test_masses_are_rounded_to_either_side(noise, steps):
    edges = np.linspace(1.0 - 3 * noise, 2.0 + 15 * noise, 200)
    low, high = _masses(edges, 2.0, noise, steps)
    with mp.workdps(400):

        def cdf(edge):
            edge, s = mp.mpf(float(edge)), mp.mpf(noise)
            return mp.ncdf((edge - 2) / s) * mp.ncdf(edge / s) ** (steps - 1)

        for k in (0, 20, 40, 90, 150, 198):
            assert low[k] <= cdf(edges[k + 1]) - cdf(edges[k]) <= high[k]
    common = low > 1e-200
    assert (high[common] <= low[common] * (1 + 1e-8)).all()


def test_two_epochs_and_other_noise():
    one, other = largest_sum_laws(0.8, 5), largest_sum_laws(1.2, 3)
    p, q = (np.multiply.outer(a[::4] * 4, b[::4] * 4).ravel() for a, b in zip(one, other, strict=True))
    exact = larger_delta(p, q, EPSILONS)
    found = LargestSums([(0.8, 5, 1), (1.2, 3, 1)]).delta(EPSILONS)
    assert (found <= exact * (1 + 1e-4)).all()
    assert (found >= exact * (1 - 3e-3)).all()
    twice = LargestSums([(0.8, 5, 2)]).delta(EPSILONS)
    np.testing.assert_allclose(LargestSums([(0.8, 5, 1), (0.8, 5, 1)]).delta(EPSILONS), twice, rtol=1e-3)


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_a_data_set_reaches_the_lower_end(noise):
    """The other gradients are the opposite of the target's, and a null example takes a place."""
    p, q = laws_of_epoch(1.0, 0.0, (-1, -1, -1), noise)
    exact = larger_delta(p, q, EPSILONS)
    found = LargestSums([(noise, 2, 1)]).delta(EPSILONS)
    assert (found <= exact * (1 + 5e-3)).all()
    assert (found[:3] >= 0.8 * exact[:3]).all()
    p, q = laws_of_epoch(1.0, 0.0, (-1, -1), noise)  # batches of different sizes show more
    assert (found <= larger_delta(p, q, EPSILONS) * (1 + 5e-3)).all()


def test_the_answers_about_the_largest_sums_agree():
    sums = LargestSums([(0.9, 30, 4)])
    epsilons = np.linspace(0.1, 0.999 * sums.epsilon(np.asarray(1e-8)), 80)
    deltas = sums.delta(epsilons)
    np.testing.assert_allclose(sums.epsilon(deltas), epsilons, rtol=1e-3)
    for alpha in (1e-3, 0.05, 0.4):
        from_deltas = np.maximum(1 - deltas - np.exp(epsilons) * alpha, np.exp(-epsilons) * (1 - deltas - alpha))
        assert sums.tradeoff(np.asarray(alpha)) >= from_deltas.max() - 1e-12
        assert sums.tradeoff(np.asarray(alpha)) <= max(from_deltas.max(), 1 - sums.delta(np.zeros(1))[0] - alpha) + 2e-2
    mu = sums.mu(np.asarray(1e-8))
    assert (deltas > 1e-8 + (1 - 1e-8) * gdp_delta(epsilons, 0.999 * mu)).any()
    assert not (deltas > 1e-8 + (1 - 1e-8) * gdp_delta(epsilons, 1.01 * mu)).any()


@pytest.mark.parametrize(("noise", "epochs"), [(0.5, 1), (1.0, 1), (1.0, 9), (3.0, 4)])
def test_with_one_step_an_epoch_the_ends_meet(noise, epochs):
    sums, mu = LargestSums([(noise, 1, epochs)]), np.sqrt(epochs) / noise
    delta = np.array([1e-2, 1e-5, 1e-9])
    exact = gdp_epsilon(delta, mu)
    found = sums.epsilon(delta)
    assert (found <= exact).all()
    assert (found >= exact * (1 - 1e-3)).all()
    assert mu * (1 - 1e-3) <= sums.mu(np.asarray(1e-10)) <= mu


@pytest.mark.parametrize("noise", [1e-3, 0.02, 50.0, 1e5])
@pytest.mark.parametrize("steps", [1, 3, 10**6])
@pytest.mark.parametrize("epochs", [1, 1000])
def test_extreme_runs_stay_below_the_upper_end(noise, steps, epochs):
    sums = LargestSums([(noise, steps, epochs)])
    above = certified(ShuffledEvent(noise, steps, epochs)).above
    at = np.array([1e-2, 1e-9, 1e-40])
    assert (sums.epsilon(at) <= above.epsilon(at).upper).all()
    assert (sums.delta(EPSILONS) <= above.delta(EPSILONS).upper).all()
    assert (sums.mu(at) <= above.mu(at).upper).all()
    assert (sums.tradeoff(np.array([0.0, 0.1, 1.0])) >= above.tradeoff(np.array([0.0, 0.1, 1.0])).lower).all()


# The bracket.


def test_the_bracket_of_replaced_examples_is_from_allocation_to_the_gaussian_mechanism():
    event = ShuffledEvent(1.0, 10, 5, REPLACED)
    curve, allocated = certified(event), certified(AllocationEvent(1.0, 10, 5))
    for question, at in (("epsilon", 1e-5), ("delta", 1.0), ("mu", 1e-8), ("tradeoff", 0.1)):
        found, best, worst = (getattr(c, question)(at) for c in (curve, allocated, curve.above))
        if question == "tradeoff":
            assert (found.lower, found.upper) == (worst.lower, best.upper)
        else:
            assert (found.lower, found.upper) == (best.lower, worst.upper)
        assert found.lower < found.upper
    assert epsilon_bounds(event, delta=1e-5) == curve.epsilon(1e-5)
    assert mu_bounds(Ledger([event]), failure=1e-8) == curve.mu(1e-8)


@pytest.mark.parametrize("relation", [SPECIAL, ADDED])
def test_the_bracket_of_null_examples(relation):
    """At small noise the place that a null one takes shows nearly everything; at large noise it does not count."""
    small, large = (certified(ShuffledEvent(noise, 10, 5, relation)) for noise in (0.5, 4.0))
    found = small.epsilon(1e-5)
    assert found.upper < 1.01 * found.lower
    assert found.lower == small.sums.epsilon(np.asarray(1e-5))
    found = large.epsilon(1e-5)
    assert found.lower == certified(AllocationEvent(4.0, 10, 5)).epsilon(1e-5).lower
    assert found.lower > large.sums.epsilon(np.asarray(1e-5))


def test_allocation_or_poisson_accounting_would_be_wrong():
    """The lower end is far above what either claims."""
    proved = certified(RUN).sums.epsilon(np.asarray(1e-5))
    assert proved > 2 * epsilon_bounds(AllocationEvent(0.6, 100), delta=1e-5).upper
    assert proved > 2 * epsilon_bounds(Event(0.6, 0.01, 100), delta=1e-5).upper


def test_an_epoch_that_was_not_finished():
    whole, part = ShuffledEvent(0.8, 10, 4), ShuffledEvent(0.8, 10, 4, missing_steps=3)
    curve = certified(part)
    assert part.num_steps == 37
    assert curve.above.epsilon(1e-5).upper == certified(whole).above.epsilon(1e-5).upper
    three = certified(ShuffledEvent(0.8, 10, 3))
    np.testing.assert_array_equal(curve.sums.epsilon(np.asarray(1e-5)), three.sums.epsilon(np.asarray(1e-5)))
    assert from_below(part).events == (AllocationEvent(0.8, 10, 4, neighboring_relation=SPECIAL, missing_steps=3),)
    assert certified(ShuffledEvent(0.8, 10, 1, missing_steps=9)).sums is None


def test_without_noise_everything_is_shown():
    curve = certified(ShuffledEvent(0.0, 10, 2))
    assert curve.epsilon(1e-5).lower == np.inf
    assert curve.delta(1.0).lower == 1.0


def test_beside_other_events():
    """The lower end counts them with the steps of allocation, the upper one with the Gaussian mechanism."""
    others = [Event(1.5, 0.3, 1), GaussianEvent(2.0), RandomizedResponseEvent(0.3)]
    run = Ledger([ShuffledEvent(1.1, 2, neighboring_relation=ADDED), *others])
    assert from_above(run) == Ledger([Event(1.1, 1.0, 1), *others])
    assert from_below(run) == Ledger([AllocationEvent(1.1, 2), *others])
    found = epsilon_bounds(run, delta=1e-4)
    assert found.lower >= epsilon_bounds(from_below(run), delta=1e-4).lower
    assert found.upper == epsilon_bounds(from_above(run), delta=1e-4).upper
    assert found.lower > certified(run.events[0]).sums.epsilon(np.asarray(1e-4))


def test_beside_other_schemes():
    fixed = Ledger([ShuffledEvent(1.0, 5, 2, REPLACED), Event(1.0, 0.1, 3, "uniform"), LaplaceEvent(0.1, 1, REPLACED)])
    assert from_above(fixed).events[0] == Event(1.0, 1.0, 2, "uniform")
    assert from_below(fixed) == Ledger(
        [
            AllocationEvent(1.0, 5, 2, neighboring_relation=SPECIAL),
            Event(1.0, 0.1, 3, "poisson", SPECIAL),
            LaplaceEvent(0.1, 1, SPECIAL),
        ]
    )
    cut = Ledger([ShuffledEvent(1.0, 5, 2, ADDED), TruncatedPoissonEvent(1.0, 0.1, 3, 100, 30)])
    assert [type(event) for event in from_below(cut)] == [AllocationEvent, Event]
    assert [type(event) for event in from_above(cut)] == [Event, TruncatedPoissonEvent]


# The event.


@pytest.mark.parametrize("relation", [SPECIAL, ADDED, REPLACED])
def test_saved_and_recorded(relation):
    event = ShuffledEvent(1.5, 7, 3, relation, overflow=1e-20, missing_steps=2)
    assert Ledger.from_json(Ledger([event]).to_json()).events == (event,)
    state = init_ledger(4, "shuffled", relation, scheme={"steps_per_epoch": 7})
    assert ledger_from_state(state) == Ledger()
    (read,) = ledger_from_state(record_steps(state, 19, 1.5, 1 / 7, 0.0)).events
    assert read == dataclasses.replace(event, overflow=0.0)
    other = record_steps(record_steps(state, 3, 1.5, 1 / 7, 0.0), 1, 2.0, 1 / 7, 0.0)
    with pytest.raises(ValueError, match="shuffled batches are accounted for with one noise multiplier"):
        ledger_from_state(other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ShuffledEvent(-1.0, 10), "noise_multiplier"),
        (lambda: ShuffledEvent(1.0, 0), "steps_per_epoch"),
        (lambda: ShuffledEvent(1.0, 10, 0), "num_epochs"),
        (lambda: ShuffledEvent(1.0, 10, missing_steps=10), "missing_steps must be a whole number below"),
        (lambda: ShuffledEvent(1.0, 10, overflow=1.0), "overflow"),
        (lambda: ShuffledEvent(1.0, 10, 1, "neighbours"), "neighboring_relation"),
        (lambda: epsilon_bounds(RUN, delta=1e-5, group_size=2), "group_size > 1"),
        (lambda: epsilon_bounds(RUN, delta=1e-5, neighboring_relation=ADDED), "expected neighboring_relation"),
        (lambda: epsilon_bounds(RUN, delta=0.0), "delta"),
        (lambda: epsilon_bounds(Ledger([RUN, Event(1.0, 0.1, 1)]), delta=1e-5), "share one neighboring relation"),
        (lambda: epsilon_bounds(Ledger([RUN, ShuffledEvent(1.0, 1, 1, ADDED)]), delta=1e-5), "share one neighboring"),
        (lambda: Event(1.0, 0.1, 1, "shuffled"), "an event of its own, gdpjax.ledger.ShuffledEvent"),
        (lambda: epsilon_bounds(1.0, 0.1, 1, 1e-5, sampling="shuffled"), "an event of its own, gdpjax.ledger.Shuffled"),
        (lambda: epsilon_estimate(RUN, delta=1e-5), "no estimate"),
        (lambda: Ledger([RUN]).to_dp_event(), "can express poisson sampling, got ShuffledEvent"),
        (lambda: Ledger([RUN]).to_opacus_history(), "got ShuffledEvent"),
        (lambda: init_ledger(4, "shuffled", SPECIAL), r"shuffled sampling takes scheme=.*steps_per_epoch.*, got None"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
