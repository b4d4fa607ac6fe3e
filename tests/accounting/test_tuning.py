"""Selection by random stopping: true divergences of small mechanisms, an independent library, the sampler's law."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from gdpjax.accounting import (
    gamma_for_mean_num_runs,
    mean_num_runs,
    rdp_epsilon,
    rdp_subsampled_gaussian,
    sample_num_runs,
    tuning_epsilon,
)
from gdpjax.accounting._tuning import DEFAULT_ORDERS, tuning_rdp
from tests.refused import refusals

ORDERS = np.array([1.05, 1.3, 2.0, 3.0, 5.0, 9.0, 20.0, 60.0])
RUN = (1.3, 256 / 60_000, 3516)
"""Noise multiplier, sampling probability and number of steps."""


def negative_binomial_best(law, better, eta, gamma):
    """Return the law of the best of K runs without cancellation; better outcomes have probability ``better``."""
    t = gamma + (1 - gamma) * better
    log_ratio = np.log1p((1 - gamma) * law / t)
    if eta == 0:
        return log_ratio / -np.log(gamma)
    return (gamma / t) ** eta * np.expm1(-eta * log_ratio) / np.expm1(eta * np.log(gamma))


def best_of(law, parameters):
    """Return the law of the best (last) outcome of K runs, outcome 0 being "no run at all"."""
    prob_at_least = np.cumsum(law[::-1])[::-1]
    better = np.append(prob_at_least[1:], 0.0)
    if "mean" in parameters:
        mean = parameters["mean"]
        best = np.exp(-mean * better) * -np.expm1(-mean * law)
        return np.append(np.exp(-mean), best)
    best = negative_binomial_best(law, better, **parameters)
    return np.append(0.0, best)


def renyi(p, q, orders):
    """Return the Renyi divergences of two laws."""
    is_possible = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        log_p = np.log(p[is_possible])
        log_q = np.log(q[is_possible])
    exponents = np.outer(orders, log_p) + np.outer(1 - orders, log_q)
    return special.logsumexp(exponents, axis=1) / (orders - 1)


def two_way_renyi(p, q, orders):
    """Return the larger of the two directions of the divergence."""
    return np.maximum(renyi(p, q, orders), renyi(q, p, orders))


def random_pairs(count):
    """Yield laws of one run on neighbouring data: from nearly equal to far apart, with rare outcomes at the top."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        size = rng.integers(2, 6)
        concentration = 10 ** rng.uniform(-0.7, 1)
        p = rng.dirichlet(np.full(size, concentration)) + 1e-9
        distance = 10 ** rng.uniform(-3, 0.3)
        q = p * np.exp(distance * rng.normal(size=size))
        yield p / p.sum(), q / q.sum(), rng

    # Randomized response, whose better outcome is the telling one.
    for tilt in (0.1, 1.0, 3.0):
        p = np.array([1 / (1 + np.exp(tilt)), 1 / (1 + np.exp(-tilt))])
        yield p, p[::-1], rng

    # A rare best outcome with an enormous ratio: the whole factor E[K] is paid.
    for rare in (1e-3, 1e-2):
        p = np.array([1 - rare, rare])
        q = np.array([1.0, rare * np.exp(-300.0)])
        yield p, q, rng


def laws_of_num_runs(rng):
    """Yield the parameters of a law of the number of runs of each kind."""
    eta = rng.choice([-0.5, 0.0, 0.7, 1.0, 4.0])
    gamma = 10 ** rng.uniform(-3, -0.05)
    mean = 10 ** rng.uniform(-1.5, 1.5)
    yield dict(eta=eta, gamma=gamma)
    yield dict(distribution="poisson", mean=mean)


def test_true_divergence_never_exceeds_the_bound():
    """Each law of the best outcome is within the bound, and for some laws it is nearly attained."""
    tightest = {"negative_binomial": np.inf, "poisson": np.inf}
    for p, q, rng in random_pairs(150):
        rdp = two_way_renyi(p, q, ORDERS)
        for parameters in laws_of_num_runs(rng):
            bound = tuning_rdp(rdp, ORDERS, **parameters)
            truth = two_way_renyi(best_of(p, parameters), best_of(q, parameters), ORDERS)
            assert (truth <= bound * (1 + 1e-9)).all(), (parameters, p, q, truth, bound)
            name = parameters.get("distribution", "negative_binomial")
            smallest_ratio = np.min(bound / np.maximum(truth, 1e-12))
            tightest[name] = min(tightest[name], smallest_ratio)
    # The check is not vacuous.
    assert tightest["negative_binomial"] < 1.2
    assert tightest["poisson"] < 1.2


def rdp_of_the_run(orders):
    """Return the divergences of RUN at the given orders."""
    noise_multiplier, sampling_prob, num_steps = RUN
    return num_steps * rdp_subsampled_gaussian(noise_multiplier, sampling_prob, orders)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, np.inf])
def test_against_an_independent_library(eta):
    """The event "repeat and select" of dp-accounting has the same epsilon; its infinite eta stands for Poisson."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant
    noise_multiplier, sampling_prob, num_steps = RUN
    orders = np.arange(2.0, 65.0)
    mean = 30.0
    step = dp_event.PoissonSampledDpEvent(sampling_prob, dp_event.GaussianDpEvent(noise_multiplier))
    one_run = dp_event.SelfComposedDpEvent(step, num_steps)
    event = dp_event.RepeatAndSelectDpEvent(one_run, mean, eta)
    peer_epsilon = RdpAccountant(orders).compose(event).get_epsilon(1e-5)

    if eta == np.inf:
        parameters = dict(distribution="poisson", mean=mean)
    else:
        parameters = dict(eta=eta, gamma=gamma_for_mean_num_runs(mean, eta))
    tuned = tuning_rdp(rdp_of_the_run(orders), orders, **parameters)
    assert rdp_epsilon(tuned, orders, 1e-5) == pytest.approx(peer_epsilon, rel=1e-8)


@pytest.mark.parametrize("law", [dict(eta=0.0, gamma=0.1), dict(distribution="poisson", mean=10.0)])
def test_a_run_that_may_choose_counts_as_the_worst_at_each_order(law):
    """One choice is no choice, a harmless one costs nothing, and two that are worst at some orders cost both."""
    mild, steep = (1.3, 0.01, 1000), (0.6, 0.0005, 1000)
    each = np.array([tuning_epsilon(*run, 1e-5, **law) for run in (mild, steep)])
    settings = np.array([mild, steep]).T
    both = tuning_epsilon(*settings, 1e-5, **law, axis=0)
    assert each.max() < both < each.sum()
    rdp = [run[2] * rdp_subsampled_gaussian(*run[:2], DEFAULT_ORDERS) for run in (mild, steep)]
    expected = rdp_epsilon(tuning_rdp(np.max(rdp, axis=0), DEFAULT_ORDERS, **law), DEFAULT_ORDERS, 1e-5)
    assert both == pytest.approx(expected, rel=1e-12)

    alone = tuning_epsilon(*settings[:, None], 1e-5, **law, axis=0)
    np.testing.assert_allclose(alone, each, rtol=1e-12)
    with_less = tuning_epsilon([[1.3, 5.0], [0.6, 9.0]], [[0.01], [0.0005]], 1000, [1e-5, 1e-5], **law, axis=-1)
    np.testing.assert_allclose(with_less, each, rtol=1e-12)

    def of_noise(noise):
        return tuning_epsilon(noise, settings[1], 1000, 1e-5, **law, axis=0)

    noise = np.float32(settings[0])
    exact = of_noise(np.float64(noise))
    assert exact <= np.float64(jax.jit(of_noise)(noise)) <= exact * (1 + 1e-6)


def exact_mean(eta, gamma):
    """Return the mean number of runs with the digits that mpmath works with."""
    eta = mp.mpf(eta)
    gamma = mp.mpf(gamma)
    if eta == 0:
        return (1 - gamma) / (gamma * -mp.log(gamma))
    return (1 - gamma) * eta / (gamma * (1 - gamma**eta))


def test_mean_and_its_inverse():
    """The mean is its formula, and gamma is computed from it."""
    etas = np.array([-0.9, -0.5, -1e-7, 0.0, 1e-7, 0.3, 1.0, 8.0])
    gammas = np.array([1e-6, 0.1, 0.9, 1 - 1e-6])
    means = mean_num_runs(etas[:, None], gammas)
    with mp.workdps(40):
        for row, eta in zip(means, etas, strict=True):
            exact = [float(exact_mean(eta, gamma)) for gamma in gammas]
            np.testing.assert_allclose(row, exact, rtol=1e-9)

    target = np.array([1.001, 2.0, 50.0, 1e4])
    etas = np.maximum(etas, -0.5)[:, None]
    gammas = gamma_for_mean_num_runs(target, etas)
    means = mean_num_runs(etas, gammas)
    np.testing.assert_allclose(means, np.broadcast_to(target, (8, 4)), rtol=1e-9)


@pytest.mark.parametrize("eta", [-0.9, 0.0, 0.5])
@pytest.mark.parametrize("gamma", [1e-309, 5e-324])
def test_a_gamma_that_devices_take_for_zero_is_infinitely_many_runs(eta, gamma):
    """Below the smallest normal number nothing is claimed; the quotients of the formula are NaN there."""
    assert mean_num_runs(eta, gamma) == np.inf
    assert (tuning_rdp(0.1 * ORDERS, ORDERS, eta=eta, gamma=gamma) == np.inf).all()
    assert tuning_epsilon(*RUN, 1e-5, eta=eta, gamma=gamma) == np.inf


def negative_binomial_pmf(eta, gamma, size=40_000):
    """Return the probabilities of 0, 1, 2, ... runs, normalized over those below ``size``."""
    k = np.arange(1, size)
    log_pmf = special.gammaln(k + eta) - special.gammaln(k + 1) + k * np.log1p(-gamma)
    pmf = np.exp(log_pmf - log_pmf.max())
    return np.append(0.0, pmf / pmf.sum())


def poisson_pmf(mean, size=1000):
    """Return the probabilities of 0, 1, 2, ... runs."""
    return stats.poisson.pmf(np.arange(size), mean)


def pooled_cells(pmf, num_draws, fewest=200):
    """Return the edges of cells with at least so many expected draws each, but for the last one."""
    expected_below = np.append(0.0, np.cumsum(pmf) * num_draws)
    edges = [0]
    while edges[-1] < len(pmf):
        goal = expected_below[edges[-1]] + fewest
        edges.append(int(np.searchsorted(expected_below, goal)))
    return edges


@pytest.mark.parametrize("gamma", [1e-300, 1e-20, 1e-6, 0.5, 0.999, 1 - 2.0**-53])
def test_a_mean_close_to_one_does_not_lower_the_bound(gamma):
    """The bound is at least its formula at 700 digits, however close to one the mean is."""
    orders = [1.001, 2.0, 64.0]
    for eta in (-1 + 2.0**-40, -0.999999, -0.5, 0.0, 3.0):
        bound = tuning_rdp([0.0, 0.0, 0.0], orders, eta=eta, gamma=gamma)
        with mp.workdps(700):
            mean = exact_mean(eta, gamma)
            # Without anything leaked by one run, the smallest candidate of the selection is that of the largest order.
            selection = (1 + mp.mpf(eta)) * -mp.log(mp.mpf(gamma)) / mp.mpf(orders[-1])
            for value, order in zip(bound, orders, strict=True):
                exact = selection + mp.log(mean) / (mp.mpf(order) - 1)
                assert mp.mpf(float(value)) >= exact, (eta, order)


@pytest.mark.parametrize(
    ("parameters", "pmf"),
    [
        (dict(eta=1.0, gamma=0.05), negative_binomial_pmf(1.0, 0.05)),
        (dict(eta=0.0, gamma=0.03), negative_binomial_pmf(0.0, 0.03)),
        (dict(eta=-0.5, gamma=0.03), negative_binomial_pmf(-0.5, 0.03)),
        (dict(eta=5.0, gamma=0.2), negative_binomial_pmf(5.0, 0.2)),
        (dict(distribution="poisson", mean=0.3), poisson_pmf(0.3)),
        (dict(distribution="poisson", mean=7.0), poisson_pmf(7.0)),
        (dict(distribution="poisson", mean=400.0), poisson_pmf(400.0)),
    ],
)
def test_number_of_runs_has_its_law(parameters, pmf):
    """A chi-squared test finds no other law."""
    num_draws = 50_000
    runs = np.asarray(sample_num_runs(jax.random.key(5), **parameters, shape=(num_draws,)))
    assert runs.dtype == np.int32
    edges = pooled_cells(pmf, num_draws)
    probs = [pmf[start:stop].sum() for start, stop in itertools.pairwise(edges)]
    expected = num_draws * np.array(probs)
    last_edge = max(runs.max(), len(pmf)) + 1
    observed, _ = np.histogram(runs, bins=[*edges[:-1], last_edge])
    # The rest goes with the cell before it.
    if expected[-1] < 200:
        expected = np.append(expected[:-2], expected[-2:].sum())
        observed = np.append(observed[:-2], observed[-2:].sum())
    normalized = expected * num_draws / expected.sum()
    assert stats.chisquare(observed, normalized).pvalue > 1e-4


def test_tuned_divergences_are_mapped_over():
    """Arrays and vmap are a loop; compiled float32 is rounded up, and NaN out of range."""
    gammas = np.array([0.02, 0.1, 0.5])
    rdp = np.linspace(0.01, 0.3, 8)

    def tuned(gamma):
        return tuning_rdp(rdp, ORDERS, eta=0.5, gamma=gamma)

    one_by_one = [tuned(gamma) for gamma in gammas]
    np.testing.assert_allclose(tuned(gammas), one_by_one, rtol=1e-13)

    # The second gamma is no probability.
    valid, invalid = jax.jit(jax.vmap(tuned))(np.array([0.5, 2.0], np.float32))
    assert valid.dtype == jnp.float32
    assert (np.asarray(valid, float) >= one_by_one[2]).all()
    np.testing.assert_allclose(valid, one_by_one[2], rtol=3e-7)
    assert np.isnan(invalid).all()


test_bad_input = refusals(
    (lambda: tuning_rdp([1.0], [2.0], eta=-1.0, gamma=0.1), "eta must be a finite number > -1, got -1.0"),
    (lambda: tuning_rdp([1.0], [2.0], distribution="poisson", eta=1.0, mean=2.0), "takes mean, got eta and mean"),
    (lambda: tuning_rdp([1.0], [2.0], distribution="poisson", mean=0.0), r"mean must be a number in \(0, 1e6\]"),
    (lambda: tuning_rdp([1.0, 2.0], [2.0], eta=1.0, gamma=0.1), "the last axis of rdp must be that of orders"),
    (lambda: gamma_for_mean_num_runs(1.0, 1.0), r"mean must be a number in \(1, 1e6\]"),
    (lambda: sample_num_runs(jax.random.key(0), distribution="poisson", mean=1e4), r"mean must be .*600"),
    (lambda: sample_num_runs(jax.random.key(0), eta=1e3, gamma=0.1), "choose a smaller eta or a larger gamma"),
    (lambda: tuning_epsilon([1.0, 2.0], 0.1, 5, 1e-5, eta=1.0, gamma=0.1, axis=1), r"an axis 1.*shape \(2,\)"),
)


def test_the_gradient_follows_all_orders():
    # Each result has a term of the best order, in another place.
    orders = np.array([2.0, 3.0, 8.0])
    rdp = np.array([0.1, 0.2, 0.5])
    weights = np.array([1.0, 2.0, 3.0])

    def weighted(rdp):
        return weights @ tuning_rdp(rdp, orders, eta=1.0, gamma=0.1)

    steps = 1e-6 * np.eye(3)
    expected = [(weighted(rdp + step) - weighted(rdp - step)) / 2e-6 for step in steps]
    gradient = jax.jit(jax.grad(weighted))(jnp.asarray(rdp, jnp.float32))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
