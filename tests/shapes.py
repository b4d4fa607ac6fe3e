"""Call the public names whose signatures have shapes, with all shapes in gdpjax checked; run by test_shapes."""

import typing

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from beartype.door import is_bearable

CONF = beartype.BeartypeConf(is_pep484_tower=True)  # an int is a float


def has_shape(hint):
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(has_shape, typing.get_args(hint)))


def checked(function):
    """Check the arguments and results that have shapes; the others are pyright's."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if has_shape(hint)}
    return beartype.beartype(conf=CONF)(function)


with jaxtyping.install_import_hook("gdpjax", "sys.modules['__main__'].checked"):
    import gdpjax
    from gdpjax import accounting, auditing, correlated, mechanisms, plotting, sampling, tradeoff, training

KEY = jax.random.key(0)
X = jnp.ones((6, 3))
NOISE = np.array([1.0, 2.0])[:, None]
PROBS = np.array([0.1, 0.2, 0.3])


def check_fields(value):
    """Check the fields of a named tuple, which are not arguments of a checked function, and of those in it."""
    with jaxtyping.jaxtyped("context"):
        for name, hint in typing.get_type_hints(type(value)).items():
            assert not has_shape(hint) or is_bearable(getattr(value, name), hint, conf=CONF), (value, name, hint)
    for field in value:
        if hasattr(field, "_fields"):
            check_fields(field)


def loss(w, x):
    return jnp.dot(w, x)


def check_accounting():
    run = (NOISE, PROBS, 100)
    for bounds in (
        accounting.epsilon_bounds(*run, 1e-5),
        accounting.delta_bounds(*run, 1.0),
        accounting.tradeoff_bounds(*run, 0.1),
        accounting.mu_bounds(*run),
        *accounting.mu_and_regret(1.0, PROBS, 100),
        accounting.epsilon_bounds(gdpjax.Event(1.0, 0.1, 10), delta=np.array([1e-5, 1e-6])),
    ):
        check_fields(bounds)
    curve = accounting.certified(*run)
    for bounds in (curve.epsilon(1e-5), curve.delta(PROBS), curve.mu(), curve.tpr(0.1), curve.bayes_success(0.5)):
        check_fields(bounds)
    mu = accounting.clt_mu_poisson(*run)
    accounting.clt_mu_uniform(*run), accounting.clt_epsilon(*run, 1e-5)
    accounting.gdp_epsilon(1e-5, mu), accounting.gdp_delta(1.0, mu), accounting.gdp_log_delta(1.0, mu)
    jax.jit(accounting.gdp_mu)(jnp.ones(3), 1e-5)
    rdp = accounting.rdp_subsampled_gaussian(NOISE, PROBS, np.array([2.0, 3.0]))
    accounting.rdp_epsilon(rdp, np.array([2.0, 3.0]), 1e-5)
    accounting.moments_accountant_epsilon(*run, 1e-5)
    accounting.tuning_epsilon(*run, 1e-5, eta=0.0, gamma=0.1, axis=0)
    accounting.calibrate_noise_multiplier(epsilon=PROBS, delta=1e-5, sampling_prob=0.1, num_steps=10)
    accounting.calibrate_num_steps(mu=5 * PROBS, noise_multiplier=1.0, sampling_prob=0.1, accountant="clt")
    gamma = accounting.gamma_for_mean_num_runs(np.array([5.0, 6.0]), 1.0)
    accounting.mean_num_runs(1.0, gamma), accounting.sample_num_runs(KEY, eta=1.0, gamma=gamma)


def check_curves():
    mu = np.array([0.5, 1.0])
    curve = tradeoff.Gaussian(mu)
    curve(0.1), curve.slope(mu), tradeoff.delta(curve, 1.0), tradeoff.epsilon(curve, 0.1 * mu[:, None])
    polygon = tradeoff.PiecewiseLinear.from_probabilities(mu / 1.5, mu[::-1] / 1.5)
    polygon(mu), tradeoff.Laplace(mu)(0.5), tradeoff.ApproximateDP(mu, 0.1)(0.5)
    tradeoff.subsample(tradeoff.Gaussian(1.0), 0.5)(mu)
    for composed in (tradeoff.compose(tradeoff.Laplace(0.5), times=4), tradeoff.compose(polygon, times=2)):
        for bounds in (composed.epsilon(1e-3), composed.delta(mu), composed.tradeoff(mu), composed.mu(1e-3)):
            check_fields(bounds)
    check_fields(tradeoff.central_limit(tradeoff.Laplace(0.1), times=100).bounds(mu))
    check_fields(plotting.tradeoff_curves(1.0, 0.1, 10, 1e-5))
    check_fields(plotting.epsilon_curves(1.0, 0.1, 10, 1e-5))


def check_mechanisms():
    for mechanism in (mechanisms.GaussianMechanism(1.0), mechanisms.LaplaceMechanism(1.0)):
        mechanism.sample(KEY, X, 1.0), mechanism.delta(PROBS), mechanism.epsilon(PROBS)
    mechanisms.PoissonSubsampled(mechanism, 0.5).sample(KEY, {"w": X}, 1.0)
    mechanisms.DiscreteGaussianMechanism(2.0).sample(KEY, np.arange(6).reshape(2, 3))
    mechanisms.DiscreteLaplaceMechanism(1.0).sample(KEY, 3)
    coins = mechanisms.RandomizedResponse.two_coins()
    coins.sample(KEY, jnp.array([[0, 1]]))
    check_fields(coins.estimate(np.array([[400, 600], [300, 700]])))


def check_steps():
    batches = sampling.Poisson(6, 3.0, 5)
    draw = jax.jit(batches.sample)(KEY, 1)
    *rows, is_padding = draw.take(X)
    for clip in (1.0, gdpjax.PerLeaf(1.0), gdpjax.AutoS(1.0), gdpjax.Normalize(1.0)):
        grad_fn = gdpjax.clipped_grad(loss, clip, return_info=True)
        total, info = jax.jit(grad_fn)(jnp.ones(3), *rows, is_padding=is_padding)
        check_fields(info), info.num_dropped
    tx = gdpjax.privatize(grad_fn, 1.0, batches, KEY)
    grad_fn.sensitivity(gdpjax.NeighboringRelation.REPLACE_ONE)
    gdpjax.explain(loss, jnp.ones(3), X, is_padding=jnp.zeros(6, bool))
    check_fields(tx.init(jnp.ones(3)))
    adaptive = gdpjax.privatize_adaptive(
        initial_l2_clip_norm=1.0, noise_multiplier=1.0, count_stddev=1.0, key=KEY, batches=batches
    )
    state = adaptive.init(jnp.ones(3))
    check_fields(state), gdpjax.clip_norm_of(state)
    check_fields(gdpjax.accumulate_clipped(tx, 2).init(jnp.ones(3)))
    noise = gdpjax.add_gaussian_noise(1.0, KEY)
    check_fields(noise.update(total, noise.init(total))[1])


def check_sampling():
    sizes = dict(num_examples=8, expected_batch_size=4, num_steps=4)
    schemes = (
        sampling.TruncatedPoisson(**sizes, capacity=6),
        sampling.RandomAllocation(**sizes),
        sampling.Shuffled(**sizes),
        sampling.WithoutReplacement(**sizes),
        sampling.CyclicPoisson(8, 2, 4, num_groups=2),
    )
    for scheme in schemes:
        jax.eval_shape(scheme.sample, KEY, 1)
        jax.eval_shape(jax.vmap(scheme.sample, (None, 0)), KEY, jnp.arange(2))
    check_fields(scheme.on_host(KEY)[0])
    scheme.sample(KEY, 1, num_valid=7)
    sampling.poisson_sample(KEY, 8, 0.5, 8)


def check_training():
    plan = gdpjax.make_plan(
        max_examples=6, expected_batch_size=3, num_steps=4, clip=1.0, delta=1e-2, noise_multiplier=2.0
    )
    train = training.private_training(plan, loss, optax.sgd(0.1), num_arrays=1)
    data = train.place(np.ones((6, 3), np.float32))
    state, info = train.step(train.init(jnp.ones(3), KEY), data)
    for result in (data, state, info, train.run_steps(state, data, 3)[1]):
        check_fields(result)
    assert state.num_steps_done == 1
    assert not (state.finished | state.overflowed)
    training.group_by_user(np.array([7, 9, 7]), np.ones((3, 2)), max_per_user=2, key=KEY)
    training.adam_scale(epsilon=1e-8)


def check_auditing():
    included = auditing.flip_coins(KEY, 200)
    scores = included + jax.random.normal(KEY, (200,))
    auditing.audit_one_run(scores, included, key=KEY, delta=1e-5)
    auditing.audit_many_runs(scores, included, delta=1e-5, threshold=0.5)
    guesses = auditing.RightGuesses.count(scores, included, 20, KEY)
    guesses.mu(), guesses.epsilon(1e-5), guesses.p_value(1.0, 1e-5), guesses.refutes(tradeoff.Gaussian(1.0))
    auditing.RightGuesses(np.array([5, 6]), 10, 20).mu()
    region = auditing.ErrorRegion.from_counts(np.array([1, 2]), 100, 20, 100, confidence=0.95)
    region.mu(), region.epsilon(np.array([1e-5, 1e-6])), auditing.ErrorRegion(0.1, 0.1).mu()
    canaries = auditing.gradient_canaries(KEY, 4, {"w": jnp.zeros((2, 4))}, 1.0)
    auditing.white_box_scores({"w": jnp.ones((2, 4))}, canaries)
    auditing.black_box_scores(scores, 1.0), auditing.mislabel(KEY, jnp.arange(10), 10)
    auditing.out_of_distribution(KEY, 4, (2, 2))
    auditing.audit_step(lambda key, included: included + jax.random.normal(key), KEY, delta=0.0, num_releases=64)


def check_correlated():
    once = correlated.SingleParticipation()
    strategies = (
        correlated.Dense(np.eye(4)),
        correlated.BandedInverse(np.array([1.0, -0.5])),
        correlated.BandedToeplitz(np.array([1.0, 0.5])),
        correlated.BufferedToeplitz(np.array([0.9, 0.5]), np.array([0.2, 0.1])),
        correlated.lambda_cgd(0.5),
        correlated.bisr(2),
        correlated.optimize_banded_toeplitz(8, 2),
        correlated.optimize_banded_inverse(8, 2, once),
        correlated.optimize_buffered_toeplitz(8, once),
        correlated.optimize_dense(4),
    )
    for strategy in strategies:
        strategy.sensitivity(4, once), strategy.attained(4, once), strategy.error(4)
        strategy.next(0, lambda step: X, strategy.init(X))
    strategies[1].inverse_column(8), strategies[1].column(4).magnitudes()
    correlated.MomentumSGD(0.9).coefficients(5), correlated.PrefixSum().apply(np.ones(3))


def check_wrong_shapes():
    three, two = jnp.ones(3), jnp.ones(2)
    wrong = (
        lambda: auditing.black_box_scores(three, two),
        lambda: accounting.rdp_epsilon(three, two + 1, 1e-5),
        lambda: tradeoff.PiecewiseLinear(np.array([0.0, 1.0]), np.array([1.0, 0.5, 0.0])),
        lambda: sampling._batch.Batch(jnp.arange(3), two > 0, jnp.int32(3), 3),
    )
    for call in wrong:
        with pytest.raises(jaxtyping.TypeCheckError):
            call()
    info = training._loop.Info(three, three, three > 0, two > 0)
    with pytest.raises(AssertionError):
        check_fields(info)


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_") and name != "check_fields":
            check()
