"""Scale, then privatize: the scaled gradients are clipped and noised, and epsilon is the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.training import adam_scale, make_plan, private_training
from gdpjax.transforms import PrivatizeState

pytestmark = pytest.mark.usefixtures("cheap_noise")
N, D = 40, 3
PLAN = {
    "clip": 1.0,
    "max_examples": N,
    "expected_batch_size": 8,
    "num_steps": 6,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
}
PARAMS = {"w": jnp.array([0.3, -0.2, 0.5]), "b": jnp.zeros(())}
FACTORS = {"w": jnp.array([0.1, 1.0, 20.0]), "b": jnp.asarray(3.0)}


def loss(params, x, y):
    """Return half the squared residual."""
    residual = x @ params["w"] + params["b"] - y
    return 0.5 * residual**2


def linear(params, x, y):
    """Return a loss whose gradient with respect to w is x itself."""
    return params["w"] @ x + 0 * y


def rows():
    """Return the inputs and labels of N examples."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, D)).astype(np.float32)
    y = x.sum(axis=1) + 1
    return x, y.astype(np.float32)


@functools.partial(jax.jit, static_argnames=("clip", "expected_batch_size"))
def mean_by_hand(params, factors, x, y, clip, expected_batch_size):
    """Return the mean of the clipped scaled gradients, divided by the factors; and the norms of scaled gradients."""
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
    scaled = jax.tree.map(jnp.multiply, gradients, factors)

    # The norm of an example is over all leaves.
    flat = [leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(scaled)]
    norms = jnp.linalg.norm(jnp.concatenate(flat, axis=1), axis=1)
    weights = jnp.minimum(1, clip / norms)
    total = jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), scaled)
    mean = jax.tree.map(lambda leaf, factor: leaf / expected_batch_size / factor, total, factors)
    return mean, norms


def whole_batch(training):
    """Return the arguments of step_on for a batch of the first rows, filled up with padding."""
    x, y = rows()
    numbers = np.arange(training.plan.capacity)
    indices = numbers % N
    is_padding = indices != numbers
    return (x[indices], y[indices]), is_padding


def after_steps(training, params, num_steps=3):
    """Return the state after some steps on the whole batch."""
    (x, y), is_padding = whole_batch(training)
    state = training.init(params, jax.random.key(1))
    for _ in range(num_steps):
        state, _ = training.step_on(state, x, y, is_padding=is_padding)
    return state


def adam_factors(moments, count, epsilon, b2):
    """Return the factors of `adam_scale` in NumPy."""
    roots = {}
    for name, moment in moments.items():
        unbiased = np.asarray(moment, float) / (1 - b2**count)
        roots[name] = np.sqrt(unbiased) + epsilon
    squares = np.concatenate([root.ravel() ** 2 for root in roots.values()])
    root_mean_square = np.sqrt(squares.mean())
    return {name: root_mean_square / root for name, root in roots.items()}


@pytest.mark.parametrize("strategy", ["auto", pytest.param("vmap", marks=pytest.mark.slow), "microbatch"])
def test_a_step_without_noise_is_the_written_out_step(strategy):
    """Gradients are scaled, clipped, added up, and divided by batch size and factors."""
    plan = make_plan(**PLAN | {"noise_multiplier": 0.0, "clip": 5.0})
    training = private_training(plan, loss, optax.sgd(1.0), scale=lambda _: FACTORS, strategy=strategy)
    (x, y), is_padding = whole_batch(training)
    state = training.init(PARAMS, jax.random.key(0))
    state, info = training.step_on(state, x, y, is_padding=is_padding)

    is_real = ~is_padding
    mean, norms = mean_by_hand(PARAMS, FACTORS, x[is_real], y[is_real], 5.0, plan.expected_batch_size)
    num_clipped = int((norms > 5).sum())
    assert 0 < num_clipped < is_real.sum(), "some rows are clipped and others are not"
    np.testing.assert_allclose(info.norms[is_real], norms, rtol=1e-5)
    for name, leaf in mean.items():
        np.testing.assert_allclose(PARAMS[name] - state.params[name], leaf, rtol=1e-4, atol=1e-6)


def test_steps_of_adam_are_the_written_out_steps():
    """The factors of a step are those of the moments before it."""
    plan = make_plan(**PLAN | {"noise_multiplier": 0.0})
    optimizer = optax.adam(0.1, b2=0.9)
    training = private_training(plan, loss, optimizer, scale=adam_scale(epsilon=0.01, b2=0.9))
    (x, y), is_padding = whole_batch(training)
    state = training.init(PARAMS, jax.random.key(0))

    # The same steps by hand, of which the first has no moments yet.
    params = PARAMS
    moments = optimizer.init(PARAMS)
    factors = jax.tree.map(jnp.ones_like, PARAMS)
    update = jax.jit(optimizer.update)
    for step in range(1, 5):
        state, _ = training.step_on(state, x, y, is_padding=is_padding)
        mean, _ = mean_by_hand(params, factors, x[~is_padding], y[~is_padding], 1.0, plan.expected_batch_size)
        updates, moments = update(mean, moments, params)
        params = optax.apply_updates(params, updates)
        factors = adam_factors(moments[0].nu, step, 0.01, 0.9)
        for name, leaf in params.items():
            np.testing.assert_allclose(state.params[name], leaf, rtol=1e-4, atol=1e-5)
    assert max(factors["w"]) > 1.1 * min(factors["w"])


def test_the_noise_of_each_coordinate():
    """The noise of a coordinate has standard deviation noise_multiplier C / (factor x expected batch size)."""
    factors = jnp.repeat(jnp.array([0.01, 1.0, 50.0]), 4000)
    training = private_training(make_plan(**PLAN), linear, optax.sgd(1.0), scale=lambda _: {"w": factors})
    x = np.zeros((N, 12000), np.float32)
    state = training.init({"w": jnp.zeros(12000)}, jax.random.key(2))
    after, _ = training.step(state, training.place(x, np.zeros(N, np.float32)))
    for block, factor in enumerate([0.01, 1.0, 50.0]):
        noise = after.params["w"][4000 * block : 4000 * (block + 1)]
        assert float(jnp.std(noise)) == pytest.approx(2.0 / (factor * 8), rel=0.05)


def test_one_example_moves_the_scaled_sum_by_the_clip_norm_at_most():
    """An example with a long gradient moves the scaled sum by C at most, though its factors differ a lot."""
    plan = make_plan(**PLAN | {"num_steps": 1, "expected_batch_size": 30})
    placed = private_training(plan, linear, optax.sgd(1.0)).place

    @jax.jit
    def parameters_after_a_step(factors, key, data):
        training = private_training(plan, linear, optax.sgd(1.0), scale=lambda _: {"w": factors})
        state = training.init({"w": jnp.zeros(D)}, key)
        state, _ = training.step(state, data)
        return state.params["w"]

    distances = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        factors = np.exp(generator.normal(scale=3, size=D)).astype(np.float32)
        x, y = rows()
        x[-1] = 1e4 * generator.normal(size=D)

        # The same key on data with and without the last example.
        key = jax.random.key(seed)
        with_it = parameters_after_a_step(factors, key, placed(x, y))
        without = parameters_after_a_step(factors, key, placed(x[:-1], y[:-1]))
        moved = np.asarray(with_it, np.float64) - np.asarray(without, np.float64)
        distances.append(np.linalg.norm(moved * factors) * 30)
    assert parameters_after_a_step._cache_size() == 1
    assert max(distances) <= 1 + 1e-4
    assert max(distances) >= 1 - 1e-3, "the example was in one of the batches"


def test_a_wrong_factor_makes_the_step_nan():
    """A factor that is not finite and positive never becomes a number, and the step is charged for."""
    plan = make_plan(**PLAN)
    data = private_training(plan, loss, optax.sgd(0.1)).place(*rows())

    @jax.jit
    def step_with(factor, key):
        factors = {"w": jnp.stack([1.0, factor, 1.0]), "b": 1.0}
        training = private_training(plan, loss, optax.sgd(0.1), scale=lambda _: factors)
        state = training.init(PARAMS, key)
        state, _ = training.step(state, data)
        return state

    for factor in (1.0, 0.0, -1.0, np.nan, np.inf, 1e-40):
        state = step_with(np.float32(factor), jax.random.key(0))
        is_as_expected = np.isfinite if factor == 1.0 else np.isnan
        for leaf in jax.tree.leaves(state.params):
            assert is_as_expected(leaf).all(), factor
        assert int(gdpjax.ledger_of(state.opt_state).num_steps) == 1


def test_frozen_leaves():
    """Frozen leaves stay as they are, and do not enter the mean of Adam's factors."""
    plan = make_plan(**PLAN)
    table = jnp.array([2.0, 0.5, -1.0])
    scale = adam_scale(epsilon=1e-3)

    def with_constant(params, x, y):
        return loss(params, x * table, y)

    def with_table(params, x, y):
        return loss(params, x * params["table"], y)

    plain = after_steps(private_training(plan, with_constant, optax.adam(0.1), scale=scale), PARAMS)
    trainable = {"w": True, "b": True, "table": False}
    training = private_training(plan, with_table, optax.adam(0.1), trainable=trainable, scale=scale)
    frozen = after_steps(training, {**PARAMS, "table": table})
    for name in PARAMS:
        np.testing.assert_allclose(frozen.params[name], plain.params[name], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(frozen.params["table"], table)


def is_private_state(node):
    return isinstance(node, PrivatizeState)


def test_the_factors_do_not_see_the_noise_key():
    """The factors are made of the optimizer's own state, which holds neither key nor ledger."""
    seen = []

    def scale(optimizer_state):
        seen.append(optimizer_state)
        return 1.0

    training = private_training(make_plan(**PLAN), loss, optax.adam(0.1), scale=scale)
    state = training.init(PARAMS, jax.random.key(0))
    jax.eval_shape(training.step, state, training.place(*rows()))
    assert len(seen) >= 2
    for state in seen:
        nodes = jax.tree.leaves(state, is_leaf=is_private_state)
        assert not any(is_private_state(node) for node in nodes)
        assert isinstance(state[0], optax.ScaleByAdamState)


def test_the_statement():
    """The first line of the statement tells of the factors, and the others are those of the plan."""
    plan = make_plan(**PLAN)
    optimizer = optax.adam(0.1)
    with_factors = private_training(plan, loss, optimizer, scale=adam_scale(epsilon=0.1))
    without = private_training(plan, loss, optimizer)
    assert without.statement() == plan.statement()
    scaled = with_factors.statement().split("\n")
    plain = plan.statement().split("\n")
    assert scaled[1:] == plain[1:]
    assert scaled[0].startswith(plain[0])
    assert "scale-then-privatize" in scaled[0]


@pytest.mark.parametrize(
    ("optimizer", "scale", "message"),
    [
        (optax.adam(0.1), lambda _: {"w": 1.0}, "pytree structure error|key mismatch"),
        (optax.adam(0.1), lambda _: {"w": jnp.ones(2), "b": 1.0}, "broadcast"),
        (optax.adam(0.1), lambda _: jnp.ones(D), "broadcast to the parameters"),
        (optax.adam(0.1), lambda _: {"w": jnp.ones(D, bool), "b": 1.0}, "floating-point"),
        (optax.sgd(0.1), adam_scale(epsilon=0.1), "got 0 in its state"),
        (optax.chain(optax.scale_by_adam(), optax.scale_by_adam()), adam_scale(epsilon=0.1), "got 2 in its state"),
    ],
)
def test_refusals(optimizer, scale, message):
    """Factors that do not fit the parameters, and an optimizer without the moments, are refused before a step."""
    plan = make_plan(**PLAN)
    with pytest.raises(ValueError, match=message):
        private_training(plan, loss, optimizer, scale=scale).init(PARAMS, jax.random.key(0))
