"""Renyi divergences of truncated Poisson batches and of a whole Ledger."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp

from gdpjax import Event, Ledger
from gdpjax.accounting import epsilon_bounds, moments_accountant_epsilon, rdp_epsilon, rdp_subsampled_gaussian
from gdpjax.accounting._moments_accountant import rdp_of_events
from gdpjax.ledger import (
    AllocationEvent,
    ApproximateDPEvent,
    GaussianEvent,
    LaplaceEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
)
from tests.accounting.test_truncated import CASES, law_of_sum

ORDERS = np.array([1.1, 1.5, 2.0, 3.0, 5.0, 8.0])
WIDE = np.linspace(-30.0, 30.0, 6001)


def rdp_of(*events, orders=ORDERS):
    """Return the Renyi differential privacy of events."""
    return rdp_of_events(events, np.asarray(orders, np.float64))


def rdp_of_truncated(noise, sampling_prob, max_examples, capacity):
    """Return that of one truncated step."""
    return rdp_of(TruncatedPoissonEvent(noise, sampling_prob, 1, max_examples, capacity))


def log_density(law, noise):
    """Return the log of the density of the sum with noise."""
    return logsumexp([np.log(prob) + stats.norm.logpdf(WIDE, mean, noise) for mean, prob in law.items()], axis=0)


def renyi_divergences(log_p, log_q):
    """Return the Renyi divergences at ORDERS of one direction, of log densities on WIDE."""
    log_spacing = np.log(WIDE[1] - WIDE[0])
    divergences = []
    for order in ORDERS:
        log_moment = logsumexp(order * log_p - (order - 1) * log_q) + log_spacing
        divergences.append(log_moment / (order - 1))
    return np.array(divergences)


def worst_divergences(noise, sampling_prob, max_examples, capacity):
    """Return the largest divergences over all data sets of up to ``max_examples`` with gradients of -1, 0 and 1."""
    worst = np.zeros(ORDERS.size)
    for num_examples in range(1, max_examples + 1):
        for others in itertools.combinations_with_replacement((-1, 0, 1), num_examples - 1):
            without_target = log_density(law_of_sum(others, sampling_prob, capacity), noise)
            for target in (1, -1):
                with_target = log_density(law_of_sum((target, *others), sampling_prob, capacity), noise)
                worst = np.maximum(worst, renyi_divergences(with_target, without_target))
                worst = np.maximum(worst, renyi_divergences(without_target, with_target))
    return worst


@pytest.mark.parametrize(("noise", "prob", "num_examples", "capacity"), CASES)
def test_no_data_set_exceeds_the_bound(noise, prob, num_examples, capacity):
    """The largest divergence of small data sets is at most the bound, and a tenth of it at some order."""
    worst = worst_divergences(noise, prob, num_examples, capacity)
    bound = rdp_of_truncated(noise, prob, num_examples, capacity)
    assert (worst <= bound * (1 + 1e-9)).all()
    assert (worst > 0.1 * bound).any()


def test_a_capacity_that_suffices_is_poisson_sampling():
    """The bound of roomy batches is that of Poisson sampling, and of full ones that with half the noise."""
    noise_multiplier = 1.3
    prob = 256 / 60_000

    def rdp_at(capacity):
        return rdp_of_truncated(noise_multiplier, prob, 60_000, capacity)

    of_poisson = rdp_subsampled_gaussian(noise_multiplier, prob, ORDERS)
    np.testing.assert_allclose(rdp_at(60_000), of_poisson, rtol=1e-12)
    np.testing.assert_allclose(rdp_at(512), of_poisson, rtol=1e-9)
    of_half_the_noise = rdp_subsampled_gaussian(0.65, prob, ORDERS)
    np.testing.assert_allclose(rdp_at(1), of_half_the_noise, rtol=1e-6)
    by_capacity = [rdp_at(capacity) for capacity in (200, 256, 300, 340, 400)]
    assert (np.diff(by_capacity, axis=0) < 0).all()
    assert (rdp_of_truncated(1.0, 0.0, 100, 10) == 0).all()

    epsilon_of_poisson = moments_accountant_epsilon(noise_multiplier, prob, 3516, 1e-5)
    for capacity, excess in [(60_000, 1e-10), (400, 1e-6), (370, 1e-2)]:
        event = TruncatedPoissonEvent(noise_multiplier, prob, 3516, 60_000, capacity)
        epsilon = moments_accountant_epsilon(event, delta=1e-5)
        assert epsilon_of_poisson <= epsilon <= epsilon_of_poisson * (1 + excess)


def test_bounded_losses_are_their_integrals():
    a = ORDERS
    for order, found in zip(a, rdp_of(LaplaceEvent(0.7, 3)), strict=True):
        moment, _ = integrate.quad(
            lambda x, k=order: 0.5 * np.exp(-k * abs(x) + (k - 1) * abs(x - 0.7)), -60, 60, points=[0, 0.7], limit=200
        )
        assert found == pytest.approx(3 * np.log(moment) / (order - 1), rel=1e-7)
    truth, other = np.exp(0.7) / (np.exp(0.7) + 3), 1 / (np.exp(0.7) + 3)
    answers = truth**a * other ** (1 - a) + other**a * truth ** (1 - a) + 2 * other
    found = rdp_of(RandomizedResponseEvent(0.7, num_categories=4))
    np.testing.assert_allclose(found, np.log(answers) / (a - 1), rtol=1e-10)
    binary = rdp_of(RandomizedResponseEvent(0.7))
    np.testing.assert_allclose(rdp_of(ApproximateDPEvent(0.7, 0.0)), binary, rtol=1e-14)
    assert (rdp_of(LaplaceEvent(1e-9)) <= 1e-9 * (1 + 1e-12)).all()
    assert rdp_of(LaplaceEvent(900.0), orders=[512.0]) == pytest.approx(900.0, rel=1e-2)


def test_a_ledger_adds_up():
    events = [
        Event(1.0, 0.05, 30),
        TruncatedPoissonEvent(1.0, 0.05, 60, 1000, 90),
        GaussianEvent(5.0, 2),
        LaplaceEvent(0.05, 4),
        ApproximateDPEvent(0.1, 0.0),
    ]
    parts = [rdp_of(event) for event in events]
    np.testing.assert_allclose(rdp_of(*events), sum(parts), rtol=1e-12)
    np.testing.assert_allclose(parts[0], 30 * rdp_subsampled_gaussian(1.0, 0.05, ORDERS), rtol=1e-9)
    np.testing.assert_allclose(parts[2], 2 * ORDERS / 50, rtol=1e-10)
    assert (rdp_of() == 0).all()

    deltas = np.array([1e-5, 1e-6])
    untruncated = Ledger([event for event in events if not isinstance(event, TruncatedPoissonEvent)])
    of_few_orders = rdp_epsilon(rdp_of(*untruncated.events), ORDERS, deltas)
    of_all_orders = moments_accountant_epsilon(untruncated, delta=deltas)
    assert (of_all_orders <= of_few_orders).all()
    assert (of_few_orders < 1.1 * of_all_orders).all()
    assert (of_all_orders >= epsilon_bounds(untruncated, delta=deltas).lower).all()
    assert moments_accountant_epsilon(Ledger(events), delta=1e-6) > of_all_orders[1]


def test_what_is_lost_is_taken_from_delta():
    plain = 1.3, 0.01, 500
    left = (1e-5 - 4e-6) / (1 - 4e-6)
    expected = moments_accountant_epsilon(*plain, left)
    assert moments_accountant_epsilon(Event(*plain, overflow=4e-6), delta=1e-5) == pytest.approx(expected, rel=1e-9)
    both = Ledger([Event(*plain), ApproximateDPEvent(0.0, 4e-6)])
    assert moments_accountant_epsilon(both, delta=1e-5) == pytest.approx(expected, rel=1e-6)
    assert moments_accountant_epsilon(Event(*plain, overflow=1e-4), delta=1e-5) == np.inf


def test_no_noise_is_no_privacy():
    for event in (Event(0.0, 0.1, 5), GaussianEvent(0.0), TruncatedPoissonEvent(0.0, 0.1, 5, 100, 20)):
        assert (rdp_of(event) == np.inf).all()
        assert moments_accountant_epsilon(event, delta=1e-5) == np.inf
    assert (rdp_of(Event(0.0, 0.0, 5)) == 0).all()


def test_refusals():
    for event in (ShuffledEvent(1.0, 100, 5), AllocationEvent(1.0, 100, 5)):
        with pytest.raises(ValueError, match=f"moments accountant does not know {type(event).__name__}"):
            moments_accountant_epsilon(Ledger([event]), delta=1e-5)
    mixed = Ledger([Event(1.0, 0.1, 5), UniformEvent(1.0, 0.1, 5)])
    with pytest.raises(ValueError, match="must share one neighboring relation"):
        moments_accountant_epsilon(mixed, delta=1e-5)
    event = Event(1.0, 0.1, 5)
    with pytest.raises(ValueError, match="leave neighboring_relation and sampling out"):
        moments_accountant_epsilon(event, delta=1e-5, sampling="uniform")


@pytest.mark.parametrize("noise_multiplier", [1e-60, 1e-78, 1e-80, 1e-100, 1e-145, 1e-160])
def test_noise_that_is_next_to_nothing_gives_no_nan(noise_multiplier):
    event = TruncatedPoissonEvent(noise_multiplier, 1.0, 1, max_examples=2, capacity=1)
    assert (rdp_of(event, orders=[2.0, 512.0, 1024.0]) > 1e60).all()
