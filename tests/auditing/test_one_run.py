"""One-run audits: the theorems against small mechanisms of all kinds, exact coverage, ties, guesses fixed."""

import itertools

import jax
import numpy as np
import pytest
from scipy import special, stats

from gdpjax.accounting import gdp_epsilon
from gdpjax.auditing import audit_one_run, count_correct, one_run_epsilon, one_run_mu, one_run_p_value, one_run_refutes
from gdpjax.auditing._one_run_epsilon import _mean_highest_mass
from gdpjax.tradeoff import ApproximateDP, Gaussian, PiecewiseLinear


def exceeds(bound, truth, r, accuracy):
    """Exact P(bound(W) > truth) where W ~ Bin(r, accuracy)."""
    values = np.arange(r + 1)
    return stats.binom.pmf(values, r, accuracy)[bound(values) > truth].sum()


def test_without_delta_the_p_value_is_a_binomial_tail():
    for r, epsilon in itertools.product((1, 7, 100, 5000), (0.0, 0.3, 2.0, 9.0)):
        values = np.unique(np.linspace(0, r, 30).astype(int))
        expected = stats.binom.sf(values - 1, r, special.expit(epsilon))
        found = one_run_p_value(values, r, r, epsilon=epsilon, delta=0.0)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-300)
        assert (found >= expected * (1 - 1e-12)).all()


@pytest.mark.parametrize(("r", "epsilon"), [(1, 1.0), (2, 0.0), (60, 0.7), (60, 6.0)])
def test_the_mean_of_the_highest_masses(r, epsilon):
    q = special.expit(epsilon)
    expected = np.mean([stats.binom.pmf(np.arange(k + 1), k, q).max() for k in range(r)])
    np.testing.assert_allclose(_mean_highest_mass(r, epsilon), expected, rtol=1e-8)


def published_p_value(v, r, m, epsilon, delta):
    """Steinke, Nasr and Jagielski, Theorem 3.1: alpha is the best average mass just below v."""
    q = special.expit(epsilon)
    windows = np.cumsum(stats.binom.pmf(v - np.arange(1, v + 1), r, q)) / np.arange(1, v + 1)
    return stats.binom.sf(v - 1, r, q) + 2 * m * delta * windows.max()


def test_the_delta_term_is_of_the_published_order_and_smaller():
    for (m, r), epsilon in itertools.product([(100, 100), (1000, 1000), (1000, 100), (10_000, 300)], (0.0, 1.0, 3.0)):
        v = int(stats.binom.ppf(0.97, r, special.expit(epsilon)))
        ours = one_run_p_value(v, r, m, epsilon=epsilon, delta=1e-6) - one_run_p_value(
            v, r, m, epsilon=epsilon, delta=0
        )
        theirs = published_p_value(v, r, m, epsilon, 1e-6) - published_p_value(v, r, m, epsilon, 0.0)
        assert 0.02 * theirs < ours < theirs


def small_mechanisms(m, r, count, seed):
    """Random laws P(T | S): [count, 2^m, outputs], with the number of right guesses [2^m, outputs].

    Outputs are all ways of guessing r of m coins. Some laws are spread out, some certain, some nearly right.
    """
    rng = np.random.default_rng(seed)
    coins = np.array(list(itertools.product((0, 1), repeat=m)))
    outputs = [
        (places, guess)
        for places in itertools.combinations(range(m), r)
        for guess in itertools.product((0, 1), repeat=r)
    ]
    right = np.array([[sum(s[p] == g for p, g in zip(*t, strict=True)) for t in outputs] for s in coins])
    sharpness = rng.choice([0.02, 0.1, 1.0], size=(count, 1, 1))
    weights = rng.gamma(sharpness, size=(count, *right.shape)) * np.exp(
        rng.uniform(0, 12, (count, 1, 1)) * (right >= rng.integers(1, r + 1, (count, 1, 1)))
    )
    mix = rng.choice([0.0, 0.01, 0.2, 1.0], size=(count, 1, 1))  # mostly the same law whatever the coins
    common = weights[:, :1] / weights[:, :1].sum(-1, keepdims=True)
    return (1 - mix) * common + mix * weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300), right, coins


def hockey_stick(laws, coins, epsilon):
    """The least delta for which each law is (epsilon, delta)-DP in every coin."""
    m = coins.shape[1]
    worst = np.zeros(len(laws))
    for i in range(m):
        flipped = np.arange(len(coins)) ^ (1 << (m - 1 - i))
        worst = np.maximum(worst, np.maximum(laws - np.exp(epsilon) * laws[:, flipped], 0).sum(-1).max(-1))
    return worst


@pytest.mark.parametrize(("m", "r"), [(2, 1), (2, 2), (3, 2), (3, 3), (4, 4)])
def test_no_small_mechanism_beats_the_theorems(m, r):
    laws, right, coins = small_mechanisms(m, r, 400, seed=m * 10 + r)
    for epsilon in (0.0, 0.5, 2.0):
        deltas = hockey_stick(laws, coins, epsilon)
        for v in range(1, r + 1):
            tails = (laws * (right >= v)).sum(-1).mean(-1)
            for law in range(len(laws)):
                if deltas[law] < 1:
                    bound = one_run_p_value(v, r, m, epsilon=epsilon, delta=deltas[law])
                    assert tails[law] <= bound + 1e-9
            for law in np.argsort(-tails + deltas)[:6]:  # the ones that guess best for their delta
                if 1e-6 < tails[law] < 1 - 1e-6 and deltas[law] < 1:
                    curve = ApproximateDP(epsilon, deltas[law])
                    assert not one_run_refutes(curve, v, r, m, confidence=1 - tails[law] * (1 - 1e-6))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_exact_coverage_of_epsilon(confidence):
    for m, r, epsilon, delta in itertools.product((30, 400), (30,), (0.0, 0.4, 2.0), (0.0, 1e-3, 0.05)):
        accuracy = delta + (1 - delta) * special.expit(epsilon)  # reveals with probability delta, else randomizes

        def bound(values, m=m, r=r, delta=delta):
            return one_run_epsilon(values, r, m, delta=delta, confidence=confidence)

        assert exceeds(bound, epsilon, r, accuracy) <= 1 - confidence
        # All canaries at once with probability delta: also (epsilon, delta)-DP.
        everything = delta * (bound(r) > epsilon) + (1 - delta) * exceeds(bound, epsilon, r, special.expit(epsilon))
        assert everything <= 1 - confidence


def test_ignoring_delta_would_not_cover():
    """Seen to fail on the broken version: the same mechanism audited as if delta were 0."""
    accuracy = 0.1 + 0.9 * 0.5
    assert exceeds(lambda v: one_run_epsilon(v, 400, 400, delta=0.0), 0.0, 400, accuracy) > 0.5
    assert exceeds(lambda v: one_run_epsilon(v, 400, 400, delta=0.1), 0.0, 400, accuracy) <= 0.05


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 3.0])
def test_exact_coverage_of_mu(mu):
    for m, r in ((40, 40), (300, 300)):  # everybody guessed: each guess is right with probability Phi(mu / 2)
        assert exceeds(lambda v, m=m, r=r: one_run_mu(v, r, m), mu, r, special.ndtr(mu / 2)) <= 0.05


def test_coverage_of_mu_with_abstentions_by_simulation():
    rng, m, r, repeats = np.random.default_rng(0), 200, 20, 4000
    for mu in (0.0, 1.0, 3.0):
        included = rng.random((repeats, m)) < 0.5
        order = np.argsort(mu * included + rng.normal(size=(repeats, m)), axis=1)
        sorted_coins = np.take_along_axis(included, order, axis=1)
        correct = sorted_coins[:, -10:].sum(1) + (~sorted_coins[:, :10]).sum(1)
        for bounds, truth in (
            (one_run_mu(correct, r, m), mu),
            (one_run_epsilon(correct, r, m, delta=1e-3), gdp_epsilon(1e-3, mu)),
        ):
            assert (bounds > truth).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repeats)


def test_the_bounds_come_near_what_there_is_to_find():
    m, rng = 10_000, np.random.default_rng(0)
    included = rng.random(m) < 0.5
    scores = included + rng.normal(size=m)
    audit = audit_one_run(scores, included, key=jax.random.key(0), delta=1e-5)
    assert audit.num_guesses == 1000
    assert 0.65 < audit.mu < 1  # 0.73 on average; see the module docstring for why not 1
    assert 1.9 < audit.epsilon < gdp_epsilon(1e-5, 1.0)
    assert gdp_epsilon(1e-5, audit.mu) > audit.epsilon + 0.5  # what the curve adds
    for epsilon in (0.5, 1.0, 4.0):  # randomized response is the worst case of the epsilon theorem
        correct = round(m * special.expit(epsilon))
        assert 0.9 * epsilon < one_run_epsilon(correct, m, m, delta=0.0) < epsilon


def test_a_curve_is_refuted_exactly_below_the_bound():
    bound = one_run_mu(80, 100, 300)
    assert one_run_refutes(Gaussian(bound * (1 - 1e-9)), 80, 100, 300)
    assert not one_run_refutes(Gaussian(bound * (1 + 1e-9)), 80, 100, 300)
    tangent = PiecewiseLinear([0.0, 0.5, 1.0], [1.0, 0.5, 0.0])
    assert one_run_refutes(tangent, 80, 100, 300) == one_run_refutes(Gaussian(0.0), 80, 100, 300)
    # The curve of pure epsilon says what the binomial theorem says, up to its union over tails.
    for epsilon, v in ((0.5, 90), (2.0, 99)):
        assert one_run_p_value(v, 100, 100, epsilon=epsilon, delta=0.0) < 1e-4
        assert one_run_refutes(ApproximateDP(epsilon), v, 100, 100)


def test_bounds_grow_with_what_is_right_and_broadcast():
    values = np.arange(101).reshape(1, -1)
    for bounds in (one_run_mu(values, 100, 200), one_run_epsilon(values, 100, 200, delta=1e-4)):
        assert bounds.shape == values.shape
        assert bounds.dtype == np.float64
        assert (np.diff(bounds[0]) >= 0).all()
        assert bounds[0, 0] == bounds[0, 50] == 0 < bounds[0, 100] < np.inf
    assert one_run_mu(77, 100, 200) == one_run_mu(values, 100, 200)[0, 77]
    assert one_run_epsilon(77, 100, 200, delta=1e-4) == one_run_epsilon(values, 100, 200, delta=1e-4)[0, 77]
    assert one_run_mu(77, 100, 200, confidence=0.999) < one_run_mu(77, 100, 200)
    with jax.enable_x64(True):
        assert one_run_mu(77, 100, 200) == one_run_mu(values, 100, 200)[0, 77]


def null_audit(seed, m=200, **options):
    rng = np.random.default_rng(seed)
    key = jax.random.key(seed)
    return audit_one_run(rng.normal(size=m), rng.random(m) < 0.5, key=key, delta=1e-5, **options)


def test_null_scores_give_nothing():
    several = (5, 20, 50, 100, 200)
    repeats = 100
    audits = [null_audit(seed, num_guesses=several) for seed in range(repeats)]
    assert np.mean([max(audit.mu, audit.epsilon) > 0 for audit in audits]) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repeats)
    # Seen to fail on the broken version: the best number of guesses on the same scores, each at the whole confidence.
    coins = np.random.default_rng(0).random((1000, 200)) < 0.5
    correct = np.cumsum(coins[:, :100].astype(int) + ~coins[:, 100:], axis=1)  # of r = 2, 4, ..., 200 guesses
    values = [one_run_p_value(correct[:, i], 2 * i + 2, 200, epsilon=0.0, delta=0.0) for i in range(100)]
    assert np.mean(np.min(values, axis=0) <= 0.05) > 0.2


def test_several_numbers_of_guesses_share_the_confidence():
    """Looking at several numbers and reporting the best costs what it would not cost to look at one."""
    rng, key, several = np.random.default_rng(0), jax.random.key(0), (20, 100, 400)
    included = rng.random(1000) < 0.5
    scores = included + rng.normal(size=1000)
    found = audit_one_run(scores, included, key=key, delta=1e-5, num_guesses=several)
    for name in ("mu", "epsilon"):
        alone = {
            confidence: max(
                getattr(
                    audit_one_run(scores, included, key=key, delta=1e-5, num_guesses=r, confidence=confidence), name
                )
                for r in several
            )
            for confidence in (1 - 0.05 / 3, 0.95)
        }
        assert 0 < getattr(found, name) < alone[0.95]
        np.testing.assert_allclose(getattr(found, name), alone[1 - 0.05 / 3], rtol=1e-6)


def test_ties_tell_nothing_even_in_a_sorted_file():
    included = np.arange(1000) >= 500
    for tied in (np.zeros(1000), np.full(1000, np.inf), np.where(np.arange(1000) % 2, 0.0, -0.0)):
        correct = [count_correct(tied, included, 100, jax.random.key(seed)) for seed in range(20)]
        assert abs(np.mean(correct) - 50) < 6
        assert np.std(correct) > 1
    # Seen to fail on the broken version: a stable sort guesses all of them.
    order = np.argsort(np.zeros(1000), kind="stable")
    assert included[order[-50:]].sum() + (~included[order[:50]]).sum() == 100


def test_the_extremes_are_guessed():
    scores = [np.inf, 2.0, 0.0, -3.0, -np.inf]
    assert count_correct(scores, [True, True, False, False, False], 5, jax.random.key(0)) == 4  # three highest: "in"
    assert count_correct(scores, [1, 0, 0, 1, 0], 2, jax.random.key(0)) == 2
    assert count_correct(scores, [0.0, 0.0, 1.0, 1.0, 1.0], 3, jax.random.key(0)) == 0


COINS = np.arange(100) % 2 == 0
OPTIONS = {"key": jax.random.key(0), "delta": 1e-5}


@pytest.mark.parametrize(
    ("scores", "included", "options", "message"),
    [
        (np.full(100, np.nan), COINS, {}, "must not be NaN"),
        (np.zeros(99), COINS, {}, "equal length"),
        (np.zeros((10, 10)), COINS.reshape(10, 10), {}, "two vectors"),
        ([], [], {}, "length >= 1"),
        (["a"] * 100, COINS, {}, "arrays of numbers"),
        (np.zeros(100), COINS * 2, {}, "True or False"),
        (np.zeros(100), np.where(COINS, 1.0, np.nan), {}, "True or False"),
        (np.zeros(100), np.ones(100), {}, "fair coins"),
        (np.zeros(100), COINS, {"num_guesses": 101}, "num_guesses"),
        (np.zeros(100), COINS, {"num_guesses": 0}, "num_guesses"),
        (np.zeros(100), COINS, {"num_guesses": (10, 10)}, "different numbers"),
        (np.zeros(100), COINS, {"num_guesses": ()}, "different numbers"),
        (np.zeros(100), COINS, {"num_guesses": 2.5}, "whole number"),
        (np.zeros(100), COINS, {"delta": 1.0}, "delta"),
        (np.zeros(100), COINS, {"delta": np.nan}, "delta"),
        (np.zeros(100), COINS, {"confidence": 1.0}, "confidence"),
        (np.zeros(100), COINS, {"confidence": np.nan}, "confidence"),
    ],
)
def test_bad_input(scores, included, options, message):
    with pytest.raises(ValueError, match=message):
        audit_one_run(scores, included, **{**OPTIONS, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_run_mu(5, 4, 10), "num_correct <= num_guesses"),
        (lambda: one_run_mu(-1, 4, 10), "num_correct"),
        (lambda: one_run_mu(1, 4, 3), "num_guesses <= num_canaries"),
        (lambda: one_run_mu(1, [4, 5], 10), "one number each"),
        (lambda: one_run_epsilon(np.nan, 4, 10, delta=0.0), "num_correct"),
        (lambda: one_run_p_value(1, 4, 10, epsilon=np.nan, delta=0.0), "epsilon"),
        (lambda: one_run_refutes(0.3, 1, 4, 10), "trade-off curve"),
        (lambda: one_run_refutes(Gaussian([1.0, 2.0]), 1, 4, 10), "one curve"),
        (lambda: one_run_refutes(PiecewiseLinear([0.0, 0.1, 1.0], [1.0, 0.2, 0.0]), 1, 4, 10), "symmetric"),
        (lambda: jax.jit(lambda w: one_run_mu(w, 4, 10))(2), "outside compiled code"),
    ],
)
def test_bad_counts(call, message):
    with pytest.raises(ValueError, match=message):
        call()
