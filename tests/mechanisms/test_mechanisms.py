"""Mechanisms: exact curves against oracles, samplers against the curves they claim, examples with error bars.

The samples are 1e6 draws under both hypotheses; the likelihood-ratio test's empirical errors must lie on the claimed
curve within bands that a correct sampler leaves with probability below 1e-6 a run (keys are fixed, so never).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chi2, laplace

from gdpjax import NeighboringRelation
from gdpjax.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PoissonSubsampled,
    RandomizedResponse,
)
from gdpjax.tradeoff import ApproximateDP, compose, delta, epsilon
from tests.refused import refusals

NUM = 1_000_000
REPLACED = NeighboringRelation.REPLACE_ONE
QUANTILES = np.array([0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])


def assert_errors_on_curve(null, alternative, curve):
    """Check tests "statistic > c", which are likelihood-ratio tests for monotone ratios, at several c."""
    num_draws = len(null)
    thresholds = np.quantile(null, 1 - QUANTILES)
    null_below = np.searchsorted(np.sort(null), thresholds, side="right")
    alternative_below = np.searchsorted(np.sort(alternative), thresholds, side="right")
    alpha = 1 - null_below / num_draws
    beta = alternative_below / len(alternative)
    assert_on_curve(alpha, beta, num_draws, curve)


def standard_error(frequency, num_draws):
    """Return the standard error of a frequency, and not 0 where nothing was seen."""
    variance = np.maximum(frequency * (1 - frequency), 1e-6)
    return np.sqrt(variance / num_draws)


def assert_on_curve(alpha, beta, num_draws, curve):
    """Assert that both errors are on the curve within five standard errors, at every threshold."""
    alpha_error = 5.0 * standard_error(alpha, num_draws)
    beta_error = 5.0 * standard_error(beta, num_draws)
    low = curve(np.minimum(1.0, alpha + alpha_error)) - beta_error
    high = curve(np.maximum(0.0, alpha - alpha_error)) + beta_error
    is_on_curve = (low <= beta) & (beta <= high)
    assert np.all(is_on_curve), (alpha, beta, low, high)


def draw_pair(mechanism, seed, sensitivity):
    """Return a million draws each where the value is 0 and where it is the sensitivity; each is one release."""

    @jax.jit
    def draw(key, value):
        values = jnp.full(NUM, value, jnp.float32)
        return mechanism.sample(key, values, sensitivity=sensitivity)

    null_key, alternative_key = jax.random.split(jax.random.key(seed))
    null = np.asarray(draw(null_key, 0.0))
    alternative = np.asarray(draw(alternative_key, sensitivity))
    return null, alternative


@pytest.fixture(scope="module")
def gaussian_draws():
    """Return releases by Gaussian noise of multiplier 0.8 and sensitivity 2."""
    return draw_pair(GaussianMechanism(0.8), seed=1, sensitivity=2.0)


def test_gaussian_errors_lie_on_the_curve(gaussian_draws):
    """The likelihood-ratio test errs as the curve says, and a claim that is 2 % off is seen."""
    null, alternative = gaussian_draws
    curve = GaussianMechanism(0.8).tradeoff()
    assert_errors_on_curve(null, alternative, curve)
    wrong_curve = GaussianMechanism(0.8 * 1.02).tradeoff()
    with pytest.raises(AssertionError):
        assert_errors_on_curve(null, alternative, wrong_curve)


def test_laplace_errors_lie_on_the_curve_and_the_noise_is_laplace():
    """The errors are on the curve, the distribution function is Laplace's, and it is fine near zero."""
    mechanism = LaplaceMechanism(1.2)
    null, alternative = draw_pair(mechanism, seed=2, sensitivity=3.0)
    assert_errors_on_curve(null, alternative, mechanism.tradeoff())

    scale = 3.0 / 1.2
    probs = np.array([1e-5, 0.01, 0.3, 0.5, 0.7, 0.999, 0.99999])
    thresholds = laplace.ppf(probs) * scale
    frequencies = np.searchsorted(np.sort(null), thresholds, side="right") / NUM
    allowed = 5 * np.sqrt(probs * (1 - probs) / NUM)
    np.testing.assert_array_less(np.abs(frequencies - probs), allowed)

    # The noise takes values as close to zero as it should.
    is_near_zero = np.abs(null) < 1e-4
    assert np.mean(is_near_zero) == pytest.approx(1 - np.exp(-1e-4 / scale), rel=0.6)


def test_subsampled_curve_against_actual_subsampling():
    """Releases of subsampled neighbours err as the curve of their direction says, and C_p is below both curves.

    The neighbours are zeros, and zeros with one example of the largest norm.
    """
    mechanism = PoissonSubsampled(GaussianMechanism(0.5), 0.3)
    num_draws = NUM // 4

    @jax.jit
    def draw(key, data):
        keys = jax.random.split(key, num_draws)
        return jax.vmap(lambda key: mechanism.sample(key, data, sensitivity=1.0)[0])(keys)

    without_example = np.zeros((2, 1), np.float32)
    with_example = np.array([[0.0], [1.0]], np.float32)
    null = np.asarray(draw(jax.random.key(5), without_example))
    alternative = np.asarray(draw(jax.random.key(6), with_example))
    remove = mechanism.tradeoff("remove")
    add = mechanism.tradeoff("add")
    assert_errors_on_curve(null, alternative, remove)
    assert_errors_on_curve(-alternative, -null, add)

    both = mechanism.tradeoff()
    assert np.all(both(QUANTILES) <= remove(QUANTILES) + 1e-15)
    # On the straight piece neither direction attains C_p.
    middle = np.linspace(0.3, 0.4, len(QUANTILES))
    lower_of_both = np.minimum(remove(middle), add(middle))
    assert np.all(both(middle) < lower_of_both - 0.005)


def test_randomized_response_counts_and_n_fold_curve():
    """The number of answers "yes" of ten people is the statistic of their composition."""
    mechanism = RandomizedResponse.two_coins()
    assert mechanism.privacy_loss == np.log(3.0)
    num_people = 10
    num_draws = NUM // 4
    sample = jax.jit(mechanism.sample)

    def counts_of_yes(seed, truths):
        answers = np.asarray(sample(jax.random.key(seed), truths))
        return answers.sum(axis=1)

    null = counts_of_yes(7, np.zeros((num_draws, num_people), np.int32))
    alternative = counts_of_yes(8, np.ones((num_draws, num_people), np.int32))
    curve = compose(mechanism.tradeoff(), times=num_people).exact

    thresholds = np.arange(num_people)
    alpha = np.mean(null[:, None] > thresholds, axis=0)
    beta = np.mean(alternative[:, None] <= thresholds, axis=0)
    assert_on_curve(alpha, beta, num_draws, curve)
    exact_alpha = binom.sf(thresholds, num_people, 0.25)
    exact_beta = binom.cdf(thresholds, num_people, 0.75)
    np.testing.assert_allclose(curve(exact_alpha), exact_beta, rtol=1e-12)


@pytest.mark.parametrize("k", [2, pytest.param(3, marks=pytest.mark.slow), 10])
def test_categories_delta_and_frequencies(k):
    """The delta of each epsilon is its formula, and estimates of frequencies err by their standard errors."""
    mechanism = RandomizedResponse(1.5, k)
    epsilons = np.array([0.0, 0.5, 1.2, 1.5])
    deltas = mechanism.delta(epsilons)
    exact = (np.exp(1.5) - np.exp(epsilons)) / (np.exp(1.5) + k - 1)
    np.testing.assert_allclose(deltas, exact, rtol=1e-12, atol=1e-15)
    # More categories are strictly better than their epsilon says.
    if k > 2:
        pair = ApproximateDP(1.5)
        assert np.all(mechanism.tradeoff()(QUANTILES) >= pair(QUANTILES) - 1e-15)
        assert deltas[1] < delta(pair, 0.5)

    frequencies = np.arange(1, k + 1) / (k * (k + 1) / 2)
    num_people = 1000
    repeats = 400
    truths = np.random.default_rng(9).choice(k, (repeats, num_people), p=frequencies)
    answers = np.asarray(jax.jit(mechanism.sample)(jax.random.key(10), truths))
    counts = np.zeros((repeats, k), int)
    for category in range(k):
        counts[:, category] = (answers == category).sum(axis=1)
    estimate = mechanism.estimate(counts)
    np.testing.assert_allclose(estimate.frequencies.sum(axis=1), 1.0)

    # Standardized errors have mean 0 and standard deviation 1.
    scores = (estimate.frequencies - frequencies) / estimate.standard_errors
    means = scores.mean(axis=0)
    deviations = scores.std(axis=0)
    assert np.all(np.abs(means) < 5 / np.sqrt(repeats))
    assert np.all(np.abs(deviations - 1) < 5 / np.sqrt(2 * repeats))


def laplace_log_weight(x):
    """Return the log of the law of discrete Laplace noise of epsilon 0.7 and sensitivity 2, up to a constant."""
    return -0.35 * np.abs(x)


def gaussian_log_weight(x):
    """Return the log of the law of discrete Gaussian noise of standard deviation 2.5, up to a constant."""
    return -0.5 * (x / 2.5) ** 2


@pytest.mark.parametrize(
    ("mechanism", "log_weight"),
    [
        (DiscreteLaplaceMechanism(0.7, 2), laplace_log_weight),
        (DiscreteGaussianMechanism(1.25, 2), gaussian_log_weight),
    ],
    ids=["laplace", "gaussian"],
)
def test_discrete_noise_has_its_law_and_curve(mechanism, log_weight):
    """A chi-squared test finds no other law, and the curve passes through the tests "x > c"."""
    x = np.arange(-300, 301)
    weight = np.exp(log_weight(x))
    law = weight / weight.sum()

    # Counts of single numbers, and of all others together.
    num_draws = 4000
    noise = mechanism.sample(jax.random.key(11), np.zeros(num_draws, np.int64))
    is_inner = np.abs(x) <= 5
    observed = np.array([np.sum(noise == number) for number in x[is_inner]])
    observed = np.append(observed, num_draws - observed.sum())
    expected = num_draws * np.append(law[is_inner], law[~is_inner].sum())
    statistic = np.sum((observed - expected) ** 2 / expected)
    assert statistic < chi2.ppf(1 - 1e-6, len(expected) - 1)

    curve = mechanism.tradeoff()
    for threshold in range(-5, 8):
        alpha = law[x > threshold].sum()
        beta = law[x <= threshold - 2].sum()
        assert curve(alpha) == pytest.approx(beta, rel=1e-9)


SAMPLERS = {
    "gaussian": lambda key, value, size: GaussianMechanism(1.0).sample(key, value, size),
    "laplace": lambda key, value, size: LaplaceMechanism(1.0).sample(key, value, size),
    "subsampled": lambda key, value, size: PoissonSubsampled(GaussianMechanism(1.0), 0.5).sample(key, value, size),
    "response": lambda key, value, size: RandomizedResponse(size).sample(key, value.astype(int)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_configurations_under_vmap_do_not_share_one_key(name):
    """The difference of two results with the same noise would be that of the values."""
    key, values, sizes = jax.random.key(0), jnp.array([[0.0, 1.0], [1.0, 1.0]]), jnp.array([1.0, 2.0])
    sample = SAMPLERS[name]
    for axes in ((None, 0, None), (None, None, 0)):
        value, size = (values, 1.0) if axes[1] == 0 else (values[0], sizes)
        with pytest.raises(ValueError, match="share one noise key"):
            jax.vmap(sample, in_axes=axes)(key, value, size)
    assert jax.vmap(sample)(jax.random.split(key, 2), values, sizes).shape[0] == 2
    jax.vmap(lambda _: sample(key, values[0], 1.0))(sizes)


def test_equal_keys_of_configurations_under_vmap_release_nothing():
    keys = jnp.broadcast_to(jax.random.key(0), (2,))
    values = jnp.arange(2 * 40).reshape(2, 40) % 2
    noisy = jax.vmap(lambda key, value: GaussianMechanism(1.0).sample(key, value, 1.0))(keys, values)
    assert np.all(np.isnan(noisy))
    answers = jax.vmap(RandomizedResponse(20.0).sample)(keys, values)
    assert np.any(answers != values)


@pytest.mark.parametrize("mechanism", [GaussianMechanism(1.0), LaplaceMechanism(1.0)])
def test_samples_have_derivatives(mechanism):
    for of in (jax.grad, jax.jacfwd, jax.jacrev):
        rate = jax.jit(of(lambda value: mechanism.sample(jax.random.key(0), value, 1.0)))(0.3)
        assert rate == 1.0


def test_traced_gaussian_mechanism_claims_no_smaller_mu():
    for dtype in (jnp.bfloat16, jnp.float32):
        noise_multipliers = jnp.array([0.7, 1.1, 3.3], dtype)
        mu = jax.jit(lambda multiplier: GaussianMechanism(multiplier).mu)(noise_multipliers)
        exact = 1 / np.asarray(noise_multipliers, np.float64)
        assert np.all((exact <= mu) & (mu <= exact * (1 + 2e-7)))


@pytest.mark.parametrize("mechanism", [GaussianMechanism(1.0), LaplaceMechanism(1.0)])
def test_noise_that_float32_flushes_to_zero_is_nan(mechanism):
    assert np.isnan(mechanism.sample(jax.random.key(0), jnp.float32(1.2e-38), 1e-40))
    assert mechanism.sample(jax.random.key(0), jnp.float32(1.5), 0.0) == 1.5


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_lies_are_uniform_where_the_categories_do_not_divide_32_bits(transform):
    """32 random bits modulo 3 * 2^29 are below 2^30 with probability 3/4, and half as likely above as below."""
    num_categories = 3 * 2**29
    mechanism = RandomizedResponse(0.1, num_categories)
    lies = transform(mechanism.sample)(jax.random.key(5), jnp.full(NUM, num_categories - 1))
    assert np.mean(np.asarray(lies) < 2**30) == pytest.approx(2 / 3, abs=5 * 0.5 / np.sqrt(NUM))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 16.0, 17.5, 40.0])
def test_randomized_response_tells_the_truth_no_more_often_in_compiled_code(epsilon):
    mechanism = RandomizedResponse(epsilon)
    answers = jnp.zeros(3, int)  # known while compiling
    compiled = float(jax.jit(lambda: mechanism.truth_probability)())
    assert compiled <= mechanism.truth_probability < 1.0
    assert jax.jit(lambda key: mechanism.sample(key, answers))(jax.random.key(0)).shape == (3,)


@pytest.mark.parametrize(
    "mechanism",
    [DiscreteGaussianMechanism(0.02), DiscreteGaussianMechanism(0.03, 1000), DiscreteLaplaceMechanism(1600.0, 2)],
)
def test_hardly_any_discrete_noise_is_refused(mechanism):
    """Where masses underflowed, epsilon was 0."""
    for ask in (lambda: mechanism.epsilon(1e-5), lambda: mechanism.delta(1.0), mechanism.event):
        with pytest.raises(ValueError, match="at most 700 nats"):
            ask()


@pytest.mark.parametrize("sensitivity", [1, 100])
def test_little_discrete_noise_has_a_large_epsilon(sensitivity):
    largest = 1.01 * GaussianMechanism(0.1).epsilon(1e-5)
    assert 49 < DiscreteGaussianMechanism(0.1, sensitivity).epsilon(1e-5) < largest


def test_discrete_laplace_of_little_loss_needs_no_polygon():
    """A polygon of all integers would have millions of corners; delta is (1 - e^-(loss - epsilon)) / (1 + e^-loss)."""
    mechanism = DiscreteLaplaceMechanism(1e-6)
    assert mechanism.delta(4e-7) == pytest.approx(-np.expm1(-6e-7) / (1 + np.exp(-1e-6)), rel=1e-12)


@pytest.mark.parametrize("loss", [1e-12, 1e-6, 1.0, 40.0])
def test_the_epsilon_of_delta_0_is_the_privacy_loss(loss):
    """Differences of masses near 1 / 2 or 1 / k would lose the digits of a small loss."""
    of_integers = [DiscreteLaplaceMechanism(loss, sensitivity) for sensitivity in (1, 2, 1000)]
    for mechanism in (*of_integers, *(RandomizedResponse(loss, k) for k in (2, 3, 50))):
        assert loss <= mechanism.epsilon(0.0) <= loss * (1 + 2e-13)
        assert mechanism.delta(loss * (1 - 2e-13)) > 0.0 == mechanism.delta(loss)


def test_a_mechanism_that_is_an_argument_of_compiled_code_adds_no_less_noise(monkeypatch):
    """There its parameters are rounded to float32."""

    def ones(_, shapes, dtypes):
        return [jnp.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def sample(mechanism):
        return mechanism.sample(jax.random.key(0), 0.0, 1.0)

    monkeypatch.setattr("gdpjax.mechanisms._additive.standard_normals", ones)
    monkeypatch.setattr("gdpjax.mechanisms._additive.standard_laplace", lambda _, *like: jnp.ones(*like))
    for run in (sample, jax.jit(sample)):
        for parameter in np.linspace(0.3, 3.0, 20).tolist():
            assert float(run(GaussianMechanism(parameter))) >= parameter
            assert float(run(LaplaceMechanism(parameter))) >= 1 / parameter


@pytest.mark.parametrize("loss", [None, 12.1])
def test_a_probability_that_is_an_argument_of_compiled_code_is_no_larger(monkeypatch, loss):
    """The random word is the first above the exact threshold, so no row is drawn, and nobody tells the truth.

    The float32 of 0.3 is larger than 0.3, and that of 12.1 larger than 12.1.
    """
    mechanism, prob = PoissonSubsampled(GaussianMechanism(1e-3), 0.3), 0.3
    value, sensitivity = jnp.ones((1, 1)), (1.0,)
    if loss:
        mechanism, prob = RandomizedResponse(loss, 2**20), -np.expm1(-loss) / (1 + (2**20 - 1) * np.exp(-loss))
        value, sensitivity = jnp.array([2**20 - 1]), ()
    word = int(prob * 2**32)
    monkeypatch.setattr("gdpjax._core.keys.bits", lambda _, shape: jnp.full(shape, word, "uint32"))
    sample = jax.jit(lambda mechanism: mechanism.sample(jax.random.key(0), value, *sensitivity))
    assert abs(sample(mechanism)[0] - value.max()) > 0.5


def test_discrete_noise_at_tiny_delta():
    """The epsilon is right at tiny deltas, where a polygon's beta near 1 would give 8.49 for 1e-25."""
    mechanism = DiscreteGaussianMechanism(1.0)
    # Sums of (A - e^epsilon N)+ with 50 digits, by mpmath.
    deltas = np.array([1e-12, 1e-15, 1e-25])
    exact = np.array([7.384476333286251, 8.279618437330985, 10.498716983918177])
    large_deltas = np.array([0.3, 1e-3, 1e-9])
    epsilons = mechanism.epsilon(np.concatenate([deltas, [0.0, 0.5], large_deltas]))
    assert np.all(exact * (1 - 1e-15) <= epsilons[:3])
    assert np.all(epsilons[:3] <= exact * (1 + 1e-11))
    np.testing.assert_array_equal(epsilons[3:5], [np.inf, 0.0])
    np.testing.assert_allclose(mechanism.delta(exact), deltas, rtol=1e-9)

    # Where the polygon is right, too, they agree.
    of_the_polygon = epsilon(mechanism.tradeoff(), large_deltas)
    np.testing.assert_allclose(epsilons[5:], of_the_polygon, rtol=1e-7)
    assert jax.jit(mechanism.epsilon)(1e-15) == pytest.approx(exact[1], rel=1e-6)


def test_traced_parameters_out_of_range_give_nan_not_a_bare_value():
    """A noise multiplier or probability that cannot be checked must not release the value without noise."""
    key = jax.random.key(0)
    value = np.ones((2, 1), np.float32)

    @jax.jit
    def releases(noise_multiplier, epsilon, sampling_prob):
        subsampled = PoissonSubsampled(GaussianMechanism(1.0), sampling_prob)
        return (
            GaussianMechanism(noise_multiplier).sample(key, value, 1.0),
            LaplaceMechanism(epsilon).sample(key, value, 1.0),
            subsampled.sample(key, value, 1.0),
        )

    for bad in ((0.0, np.inf, 2.0), (-1.0, np.inf, 2.0)):
        for released in releases(*bad):
            assert np.isnan(released).all()
    for released in releases(1.0, 1.0, 0.5):
        assert np.isfinite(released).all()


def test_pytrees_and_dtypes():
    """Every leaf gets noise of its own, low precision is widened, and sensitivity 0 needs no noise."""
    mechanism = GaussianMechanism(1.0)
    vector = np.zeros(3, np.float32)
    matrix = np.zeros((2, 2), np.float32)
    tree = {"a": vector, "b": (matrix, 0.0)}

    @jax.jit
    def releases(key):
        noisy = mechanism.sample(key, tree, sensitivity=1.0)
        low_precision = mechanism.sample(key, jnp.zeros(3, jnp.bfloat16), 1.0)
        public = mechanism.sample(key, jnp.ones(3), 0.0)
        return noisy, low_precision, public

    noisy, low_precision, public = releases(jax.random.key(0))
    assert jax.tree.structure(noisy) == jax.tree.structure(tree)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noisy)])
    assert len(np.unique(flat)) == 8
    assert low_precision.dtype == np.float32
    np.testing.assert_array_equal(public, 1.0)


def test_subsampling_sums_pytrees():
    """With probability 1 and next to no noise the release is the sum over the examples."""
    mechanism = PoissonSubsampled(LaplaceMechanism(1e6), 1.0)
    data = {"x": np.ones((5, 2), np.float32)}
    release = jax.jit(lambda key: mechanism.sample(key, data, 1.0))
    summed = release(jax.random.key(1))
    np.testing.assert_allclose(summed["x"], 5.0, atol=1e-4)


test_bad_input = refusals(
    (lambda: GaussianMechanism(0.0), "noise_multiplier must be a finite number > 0"),
    (lambda: RandomizedResponse.with_truth_probability(0.4), "must exceed 1 / 2"),
    (lambda: RandomizedResponse(1.0).sample(jax.random.key(0), jnp.array([2])), "categories from 0 to 1"),
    (lambda: RandomizedResponse(1.0).sample(jax.random.key(0), jnp.array([0.5])), "categories as integers"),
    (lambda: GaussianMechanism([1.0, 2.0]).sample(jax.random.key(0), jnp.ones(2), 1.0), "must be one number"),
    (lambda: PoissonSubsampled(RandomizedResponse(1.0), 0.5), "mechanism must be"),
    (lambda: PoissonSubsampled(PoissonSubsampled(GaussianMechanism(1.0), 0.5), 0.5), "mechanism must be"),
    (lambda: PoissonSubsampled(GaussianMechanism(1.0), 0.5).sample(jax.random.key(0), 1.0, 1.0), "leading axis"),
    (lambda: PoissonSubsampled(GaussianMechanism(1.0), 0.5).event(neighboring_relation=REPLACED), "got REPLACE_ONE"),
    (lambda: GaussianMechanism(1.0).sample(jax.random.key(0), 1.0, -1.0), "sensitivity must be"),
    (lambda: DiscreteLaplaceMechanism(1.0).sample(jax.random.key(0), 1.5), "value must hold integers"),
)


def test_whole_numbers_that_float32_would_round_are_refused():
    """Large integers are refused, or released as NaN where they are traced: rounded they have another sensitivity."""
    key = jax.random.key(0)
    mechanism = GaussianMechanism(1.0)
    with pytest.raises(ValueError, match="at most 16777216"):
        mechanism.sample(key, np.array([33554435]), 1.0)
    traced = jax.jit(lambda value: mechanism.sample(key, value, 1.0))
    assert np.isnan(traced(np.array([33554435, 33554435]))).all()
    assert np.isfinite(traced(np.array([2**24, -5]))).all()


@pytest.mark.parametrize("value", [2**62 + 1, -(2**62) - 1, 2**63])
def test_integers_that_noise_could_push_out_of_int64_are_refused(value):
    """Integers of more than 2^62 in size are refused, and 2^62 is not."""
    mechanism = DiscreteLaplaceMechanism(1.0)
    with pytest.raises(ValueError, match=r"at most 2\^62 in size"):
        mechanism.sample(jax.random.key(0), np.array([value]))
    largest = np.array([2**62])
    assert mechanism.sample(jax.random.key(0), largest).dtype == np.int64
