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
    moments_accountant_epsilon,
    rdp_delta,
    rdp_epsilon,
    rdp_subsampled_gaussian,
    sample_num_runs,
    tuning_epsilon,
    tuning_rdp,
)

ORDERS = np.array([1.05, 1.3, 2.0, 3.0, 5.0, 9.0, 20.0, 60.0])
RUN = (1.3, 256 / 60_000, 3516)


def negative_binomial_best(eta, gamma):
    """P(the best run has an outcome of probability x, better outcomes having probability b), without cancellation."""

    def best(x, b):
        t = gamma + (1 - gamma) * b
        log_ratio = np.log1p((1 - gamma) * x / t)
        if eta == 0:
            return log_ratio / -np.log(gamma)
        return (gamma / t) ** eta * np.expm1(-eta * log_ratio) / np.expm1(eta * np.log(gamma))

    return best


def best_of(law, parameters):
    """The law of the best (last) outcome of K runs, outcome 0 being "no run at all"."""
    better = np.append(np.cumsum(law[:0:-1])[::-1], 0.0)
    if "mean" in parameters:
        mean = parameters["mean"]
        return np.append(np.exp(-mean), np.exp(-mean * better) * -np.expm1(-mean * law))
    return np.append(0.0, negative_binomial_best(**parameters)(law, better))


def renyi(p, q, orders):
    both = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p[both]), np.log(q[both])
    return special.logsumexp(np.outer(orders, log_p) + np.outer(1 - orders, log_q), axis=1) / (orders - 1)


def two_way_renyi(p, q, orders):
    return np.maximum(renyi(p, q, orders), renyi(q, p, orders))


def random_pairs(count):
    """Laws of one run on neighbouring data: from nearly equal to far apart, including rare outcomes at the top."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        size = rng.integers(2, 6)
        p = rng.dirichlet(np.full(size, 10 ** rng.uniform(-0.7, 1))) + 1e-9
        q = p * np.exp(10 ** rng.uniform(-3, 0.3) * rng.normal(size=size))
        yield p / p.sum(), q / q.sum(), rng
    for tilt in (0.1, 1.0, 3.0):  # randomized response: the better outcome is the telling one
        p = np.array([1 / (1 + np.exp(tilt)), 1 / (1 + np.exp(-tilt))])
        yield p, p[::-1], rng

    # a rare best outcome with an enormous ratio: the whole factor E[K] is paid
    for rare in (1e-3, 1e-2):
        p, q = np.array([1 - rare, rare]), np.array([1.0, rare * np.exp(-300.0)])
        yield p, q, rng


def laws(rng):
    eta, gamma = rng.choice([-0.5, 0.0, 0.7, 1.0, 4.0]), 10 ** rng.uniform(-3, -0.05)
    mean = 10 ** rng.uniform(-1.5, 1.5)
    yield dict(eta=eta, gamma=gamma)
    yield dict(distribution="poisson", mean=mean)


def test_true_divergence_never_exceeds_the_bound():
    tightest = {"negative_binomial": np.inf, "poisson": np.inf}
    for p, q, rng in random_pairs(150):
        for parameters in laws(rng):
            bound = tuning_rdp(two_way_renyi(p, q, ORDERS), ORDERS, **parameters)
            truth = two_way_renyi(best_of(p, parameters), best_of(q, parameters), ORDERS)
            name = parameters.get("distribution", "negative_binomial")
            tightest[name] = min(tightest[name], np.min(bound / np.maximum(truth, 1e-12)))
            assert (truth <= bound * (1 + 1e-9)).all(), (parameters, p, q, truth, bound)
    assert tightest["negative_binomial"] < 1.2  # the check is not vacuous
    assert tightest["poisson"] < 1.2


def test_true_delta_never_exceeds_the_converted_bound():
    for p, q, rng in random_pairs(40):
        for parameters in laws(rng):
            bound = tuning_rdp(two_way_renyi(p, q, ORDERS), ORDERS, **parameters)
            best, other = best_of(p, parameters), best_of(q, parameters)
            for delta in (1e-1, 1e-4):
                epsilon = rdp_epsilon(bound, ORDERS, delta)
                assert np.maximum(best - np.exp(epsilon) * other, 0).sum() <= delta * (1 + 1e-9)
                assert np.maximum(other - np.exp(epsilon) * best, 0).sum() <= delta * (1 + 1e-9)


def test_poisson_below_one_run_is_not_free():
    """Without the mass at K = 0 the formula would be negative here."""
    assert tuning_rdp([0.0], [2.0], distribution="poisson", mean=0.1)[0] > 0


def test_one_run_delta():
    rdp = RUN[2] * rdp_subsampled_gaussian(*RUN[:2], ORDERS)
    own = rdp_delta(rdp, ORDERS, np.log1p(1 / (ORDERS - 1)))
    default = tuning_rdp(rdp, ORDERS, distribution="poisson", mean=20.0)
    given = tuning_rdp(rdp, ORDERS, distribution="poisson", mean=20.0, one_run_delta=own)
    np.testing.assert_allclose(given, default, rtol=1e-12)
    assert (tuning_rdp(rdp, ORDERS, distribution="poisson", mean=20.0, one_run_delta=0.0) <= default).all()


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, np.inf])
def test_against_an_independent_library(eta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant
    orders, mean = np.arange(2.0, 65.0), 30.0
    gaussian = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(RUN[1], dp_event.GaussianDpEvent(RUN[0])), RUN[2]
    )
    theirs = RdpAccountant(orders).compose(dp_event.RepeatAndSelectDpEvent(gaussian, mean, eta)).get_epsilon(1e-5)
    parameters = (
        dict(distribution="poisson", mean=mean)
        if eta == np.inf
        else dict(eta=eta, gamma=gamma_for_mean_num_runs(mean, eta))
    )
    rdp = RUN[2] * rdp_subsampled_gaussian(*RUN[:2], orders)
    assert rdp_epsilon(tuning_rdp(rdp, orders, **parameters), orders, 1e-5) == pytest.approx(theirs, rel=1e-8)


def test_epsilon_is_the_composition_of_its_parts():
    from gdpjax.accounting._rdp import DEFAULT_ORDERS

    rdp = RUN[2] * rdp_subsampled_gaussian(*RUN[:2], DEFAULT_ORDERS)
    eta, gamma = np.array([-0.9, -0.5, 0.0, 1.0, 3.0])[:, None], np.array([0.5, 0.1, 0.01])
    mean = np.array([1.0, 10.0, 100.0])
    for parameters in (dict(eta=eta, gamma=gamma), dict(distribution="poisson", mean=mean)):
        parts = rdp_epsilon(tuning_rdp(rdp, DEFAULT_ORDERS, **parameters), DEFAULT_ORDERS, 1e-5)
        epsilon = tuning_epsilon(*RUN, 1e-5, **parameters)
        np.testing.assert_allclose(epsilon, parts, rtol=1e-12)
        assert (epsilon > moments_accountant_epsilon(*RUN, 1e-5)).all()
        assert (np.diff(epsilon, axis=-1) > 0).all()
        assert epsilon.ndim == 1 or (np.diff(epsilon, axis=0) > 0).all()


def test_mean_and_its_inverse():
    eta = np.array([-0.9, -0.5, -1e-7, 0.0, 1e-7, 0.3, 1.0, 8.0])[:, None]
    gamma = np.array([1e-6, 0.1, 0.9, 1 - 1e-6])
    with mp.workdps(40):
        exact = [
            [(1 - g) / (g * -mp.log(g)) if e == 0 else (1 - g) * e / (g * (1 - g**e)) for g in map(mp.mpf, gamma)]
            for e in map(mp.mpf, eta[:, 0])
        ]
    np.testing.assert_allclose(mean_num_runs(eta, gamma), np.array(exact, float), rtol=1e-9)
    mean = np.array([1.001, 2.0, 50.0, 1e4])
    found = gamma_for_mean_num_runs(mean, np.maximum(eta, -0.5))
    np.testing.assert_allclose(mean_num_runs(np.maximum(eta, -0.5), found), np.broadcast_to(mean, (8, 4)), rtol=1e-9)


def negative_binomial_pmf(eta, gamma, size):
    k = np.arange(1, size)
    log_pmf = special.gammaln(k + eta) - special.gammaln(k + 1) + k * np.log1p(-gamma)
    pmf = np.exp(log_pmf - log_pmf.max())
    return np.concatenate([[0.0], pmf / pmf.sum()])


@pytest.mark.parametrize("gamma", [1e-300, 1e-20, 1e-6, 0.5, 0.999, 1 - 2.0**-53])
def test_a_mean_close_to_one_does_not_lower_the_bound(gamma):
    orders = [1.001, 2.0, 64.0]
    for eta in (-1 + 2.0**-40, -0.999999, -0.5, 0.0, 3.0):
        bound = tuning_rdp([0.0, 0.0, 0.0], orders, eta=eta, gamma=gamma)
        with mp.workdps(700):
            e, g = mp.mpf(eta), mp.mpf(gamma)
            mean = (1 - g) / (g * -mp.log(g)) if eta == 0 else (1 - g) * e / (g * (1 - g**e))
            # Without anything leaked by one run, the smallest candidate of the selection is that of the largest order.
            selection = (1 + e) * -mp.log(g) / mp.mpf(orders[-1])
            for value, order in zip(bound, orders, strict=True):
                assert mp.mpf(float(value)) >= selection + mp.log(mean) / (mp.mpf(order) - 1), (eta, order)


@pytest.mark.parametrize(
    ("parameters", "pmf"),
    [
        (dict(eta=eta, gamma=gamma), negative_binomial_pmf(eta, gamma, 40_000))
        for eta, gamma in [(1.0, 0.05), (0.0, 0.01), (-0.5, 0.01), (5.0, 0.2)]
    ]
    + [
        (dict(distribution="poisson", mean=mean), stats.poisson.pmf(np.arange(1000), mean))
        for mean in (0.3, 7.0, 400.0)
    ],
)
def test_number_of_runs_has_its_law(parameters, pmf):
    size = 50_000
    runs = np.asarray(sample_num_runs(jax.random.key(5), **parameters, shape=(size,)))
    assert runs.dtype == np.int32
    # cells of at least 200 expected draws, the rest pooled
    below = np.append(0.0, np.cumsum(pmf) * size)
    edges = [0]
    while edges[-1] < len(pmf):
        edges.append(int(np.searchsorted(below, below[edges[-1]] + 200)))
    expected = np.array([pmf[a:b].sum() for a, b in itertools.pairwise(edges)]) * size
    observed = np.histogram(runs, bins=[*edges[:-1], max(runs.max(), len(pmf)) + 1])[0]
    if expected[-1] < 200:
        expected, observed = (np.append(x[:-2], x[-2:].sum()) for x in (expected, observed))
    assert stats.chisquare(observed, expected * size / expected.sum()).pvalue > 1e-4


def test_transformations():
    gamma, eta = np.array([0.02, 0.1, 0.5]), 0.5
    rdp = np.linspace(0.01, 0.3, 8)
    loop = [tuning_rdp(rdp, ORDERS, eta=eta, gamma=g) for g in gamma]
    np.testing.assert_allclose(tuning_rdp(rdp, ORDERS, eta=eta, gamma=gamma), loop, rtol=1e-13)
    single = jax.jit(jax.vmap(lambda g: tuning_rdp(rdp, ORDERS, eta=eta, gamma=g)))(jnp.array([0.5, 2.0]))
    assert single.dtype == jnp.float32
    assert (np.asarray(single[0], float) >= loop[2]).all()
    np.testing.assert_allclose(single[0], loop[2], rtol=3e-7)
    assert np.isnan(single[1]).all()
    mean = np.array([1.0, 10.0, 100.0])
    many = tuning_epsilon(*RUN, 1e-5, distribution="poisson", mean=np.tile(mean, 30))  # more than one chunk
    few = tuning_epsilon(*RUN, 1e-5, distribution="poisson", mean=mean)
    np.testing.assert_allclose(many, np.tile(few, 30), rtol=1e-12)
    keys = jax.random.split(jax.random.key(0), 6)
    eager = [int(sample_num_runs(key, eta=1.0, gamma=0.125)) for key in keys]
    compiled = jax.jit(jax.vmap(lambda key, g: sample_num_runs(key, eta=1.0, gamma=g), in_axes=(0, None)))
    np.testing.assert_array_equal(compiled(keys, 0.125), eager)
    assert (compiled(keys, 1.5) == -1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tuning_rdp([1.0], [2.0], eta=-1.0, gamma=0.1), "eta must be a finite number > -1, got -1.0"),
        (lambda: tuning_rdp([1.0], [2.0], eta=1.0, gamma=np.nan), "gamma must be a number strictly between 0 and 1"),
        (lambda: tuning_rdp([1.0], [2.0], eta=1.0), "takes eta and gamma, got eta"),
        (lambda: tuning_rdp([1.0], [2.0], distribution="poisson", eta=1.0, mean=2.0), "takes mean, got eta and mean"),
        (lambda: tuning_rdp([1.0], [2.0], distribution="fixed", mean=2.0), "distribution must be one of"),
        (lambda: tuning_rdp([1.0], [2.0], distribution="poisson", mean=0.0), r"mean must be a number in \(0, 1e6\]"),
        (lambda: tuning_rdp([1.0], [2.0], eta=1.0, gamma=0.1, one_run_delta=0.1), "one_run_delta belongs to"),
        (lambda: tuning_rdp([1.0, 2.0], [2.0], eta=1.0, gamma=0.1), "the last axis of rdp must be that of orders"),
        (lambda: tuning_epsilon(1.0, 0.1, 1.5, 1e-5, eta=1.0, gamma=0.1), "num_steps must be a whole number"),
        (lambda: gamma_for_mean_num_runs(1.0, 1.0), r"mean must be a number in \(1, 1e6\]"),
        (lambda: mean_num_runs(1.0, 1.0), "gamma must be"),
        (lambda: sample_num_runs(jax.random.key(0), distribution="poisson", mean=1e4), r"mean must be .*600"),
        (lambda: sample_num_runs(jax.random.key(0), eta=1e3, gamma=0.1), "choose a smaller eta or a larger gamma"),
        (lambda: sample_num_runs(jax.random.key(0), eta=0.0, gamma=1e-200), "the mean must be at most 1e6"),
        (lambda: sample_num_runs(jax.random.key(0), eta=1.0, gamma=np.full(2, 0.1), shape=(3,)), "broadcast"),
        (lambda: rdp_delta([1.0], [2.0], -1.0), "epsilon must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
