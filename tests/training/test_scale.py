"""Scale, then privatize: the scaled gradients are clipped and noised, and epsilon is the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import correlated
from gdpjax.sampling import Shuffled
from gdpjax.training import adam_scale, make_plan, private_training, resume_run, start_run
from gdpjax.transforms import PrivatizeState
from tests.training.interrupted import committed, finished

N, D = 40, 3
PLAN = {
    "clip": 1.0,
    "max_examples": N,
    "expected_batch_size": 8,
    "num_steps": 6,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
}
PARAMS = {
    "w": jnp.array([0.3, -0.2, 0.5]),
    "b": jnp.zeros(()),
}
FACTORS = {
    "w": jnp.array([0.1, 1.0, 20.0]),
    "b": jnp.asarray(3.0),
}


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


@pytest.fixture(scope="module")
def adaptive():
    """Return a training with the factors of Adam, and its data."""
    training = private_training(make_plan(**PLAN), loss, optax.adam(0.1), scale=adam_scale(epsilon=1e-3))
    return training, training.place(*rows())


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


def factor_of_one(_):
    return 1.0


def factors_of_one(_):
    return {"w": jnp.ones(D), "b": 1.0}


@pytest.mark.parametrize("ones", [pytest.param(factor_of_one, marks=pytest.mark.slow), factors_of_one])
def test_factors_of_one_change_nothing(ones):
    """Parameters, ledger and the structure of the state are those of a training without factors."""
    plan = make_plan(**PLAN)
    plain = after_steps(private_training(plan, loss, optax.adam(0.1)), PARAMS)
    scaled = after_steps(private_training(plan, loss, optax.adam(0.1), scale=ones), PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(plain.params[name], scaled.params[name], rtol=1e-5, atol=1e-6)
    assert gdpjax.ledger_of(plain.opt_state) == gdpjax.ledger_of(scaled.opt_state)
    assert jax.tree.structure(plain) == jax.tree.structure(scaled)


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


def test_one_example_moves_the_scaled_sum_by_the_whole_clip_norm():
    """The bound is attained in the scaled space: the gradient is clipped with the factors on it."""
    plan = make_plan(**PLAN | {"num_steps": 1, "noise_multiplier": 0.0})
    factors = np.array([0.01, 1.0, 100.0])
    training = private_training(plan, linear, optax.sgd(1.0), scale=lambda _: {"w": jnp.asarray(factors)})
    (x, y), is_padding = whole_batch(training)
    x[0] = [1e6, 0, 1e6]
    without = is_padding.copy()
    without[0] = True

    # The same step on the batch with and without the long gradient.
    state = training.init({"w": jnp.zeros(D)}, jax.random.key(0))
    first, _ = training.step_on(state, x, y, is_padding=is_padding)
    second, _ = training.step_on(state, x, y, is_padding=without)
    moved = np.subtract(first.params["w"], second.params["w"], dtype=np.float64) * 8
    scaled = np.abs(moved * factors)
    np.testing.assert_allclose(scaled, [1e-4, 0, 1], rtol=0.1, atol=1e-5)
    assert np.linalg.norm(scaled) == pytest.approx(1, rel=1e-3)


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


def test_leaves_that_are_not_trained_need_no_factor():
    """The factors of integers and frozen leaves are not looked at."""

    def with_index(params, x, y):
        return loss(params, x[params["index"]] * params["table"], y)

    factors = {"w": FACTORS["w"], "b": 3.0, "index": "none", "table": -1.0}
    trainable = {"w": True, "b": True, "index": True, "table": False}
    training = private_training(
        make_plan(**PLAN),
        with_index,
        optax.sgd(0.1),
        trainable=trainable,
        scale=lambda _: factors,
    )
    others = {"index": jnp.array([0, 2, 1]), "table": jnp.ones(D)}
    state = after_steps(training, {**PARAMS, **others})
    assert np.isfinite(state.params["w"]).all()
    assert np.not_equal(state.params["w"], PARAMS["w"]).all()
    for name, leaf in others.items():
        np.testing.assert_array_equal(state.params[name], leaf)


def test_the_mean_square_of_the_reciprocals_is_one():
    """The noise of the mean has the same total variance as without factors, also with frozen leaves."""
    optimizer = optax.adamw(0.1)
    params = {"a": jnp.zeros(50), "frozen": jnp.zeros(7), "c": jnp.zeros((3, 4))}
    state = optimizer.init(params)
    scale = jax.jit(adam_scale(epsilon=0.1))
    for factor in jax.tree.leaves(scale(state)):
        np.testing.assert_array_equal(factor, 1)

    generator = np.random.default_rng(0)
    update = jax.jit(optimizer.update)
    for _ in range(5):
        gradients = {
            "a": generator.normal(size=50),
            "frozen": np.zeros(7),
            "c": np.full((3, 4), 3.0),
        }
        _, state = update(jax.tree.map(np.float32, gradients), state, params)

    # Over the two leaves that have gradients.
    factors = jax.tree.map(np.asarray, scale(state))
    np.testing.assert_array_equal(factors["frozen"], 1)
    flat_factors = np.concatenate([np.ravel(factors["a"]), np.ravel(factors["c"])])
    squared_reciprocals = flat_factors**-2.0
    assert squared_reciprocals.mean() == pytest.approx(1, rel=1e-5)
    assert float(factors["c"].max()) < float(factors["a"].min())
    moments = {name: state[0].nu[name] for name in ("a", "c")}
    by_hand = adam_factors(moments, 5, 0.1, 0.999)
    np.testing.assert_allclose(factors["a"], by_hand["a"], rtol=1e-4)


def test_noise_alone_keeps_its_size_and_the_norms_of_gradients():
    """With epsilon at the size of the noise, moments that are noise give factors near 1."""
    generator = np.random.default_rng(0)
    optimizer = optax.adam(0.1)
    params = jnp.zeros(5000)
    state = optimizer.init(params)
    scale = jax.jit(adam_scale(epsilon=1.0))
    update = jax.jit(optimizer.update)
    gradient = generator.normal(size=5000)
    for step in range(6):
        factors = np.asarray(scale(state), float)
        noise = generator.normal(size=5000) / factors
        assert np.sqrt(np.mean(noise**2)) == pytest.approx(1, rel=0.1)
        largest_growth = 1.5 if step else 1.0001
        assert np.linalg.norm(factors * gradient) < largest_growth * np.linalg.norm(gradient)
        _, state = update(np.float32(noise), state, params)


def test_a_sweep_is_one_program(adaptive, tmp_path):
    """Noise and epsilon of the factors may be traced, and each run is that of numbers that are known."""
    training, data = adaptive

    def run(noise, epsilon, key):
        swept_plan = training.plan.replace(noise_multiplier=noise)
        swept = private_training(swept_plan, loss, optax.adam(0.1), scale=adam_scale(epsilon=epsilon))
        state = swept.init(PARAMS, key)
        state, _ = swept.run_steps(state, data, 6)
        return state.params

    # The second of these runs has the numbers of `adaptive`.
    noise = jnp.array([1.0, 2.0])
    epsilon = jnp.array([0.5, 1e-3])
    keys = jax.random.split(jax.random.key(5), 2)
    together = jax.jit(jax.vmap(run))(noise, epsilon, keys)
    assert not np.allclose(together["w"][0], together["w"][1])

    alone = start_run(tmp_path / "alone", training, PARAMS, data, key=keys[1])
    finished(alone, 2)
    np.testing.assert_allclose(together["w"][1], alone.state.params["w"], rtol=1e-4, atol=1e-5)

    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(run, (None, 0, None))(1.0, epsilon, keys[0])


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


def sgd_with_spread():
    """Return gradient descent whose state holds the number of the step, and a number for the factors."""

    def init(params):
        return {"count": jnp.int32(0), "spread": jnp.float32(0)}

    def update(gradient, state, params=None):
        return jax.tree.map(jnp.negative, gradient), state | {"count": state["count"] + 1}

    return optax.GradientTransformation(init, update)


def test_correlated_noise_is_that_of_the_scaled_space():
    """On data without gradient the steps, times their factors, are those of the same run without factors."""
    batches = Shuffled(PLAN["max_examples"], PLAN["expected_batch_size"], epochs=2, order="fixed")
    others = {name: PLAN[name] for name in ("clip", "delta", "noise_multiplier")}
    plan = make_plan(batches, **others, noise=correlated.bisr(3))

    def scale(state):
        return 1.0 + state["spread"] * (state["count"] % 2)

    training = private_training(plan, linear, sgd_with_spread(), scale=scale)
    data = training.place(np.zeros((N, D), np.float32), np.zeros(N, np.float32))
    released = []
    for spread in (0.0, 9.0):
        state = training.init({"w": jnp.zeros(D)}, jax.random.key(4))
        private_state, optimizer_state = state.opt_state
        optimizer_state = optimizer_state | {"spread": jnp.float32(spread)}
        state = state._replace(opt_state=(private_state, optimizer_state))

        # The differences of the weights are what was released.
        weights = [np.zeros(D)]
        for _ in range(plan.num_steps):
            state, _ = training.step(state, data)
            weights.append(np.asarray(state.params["w"]))
        released.append(np.diff(weights, axis=0))

    # The factors of every second step are 10.
    is_odd = np.arange(plan.num_steps) % 2
    factors = np.where(is_odd, 10.0, 1.0)[:, None]
    np.testing.assert_allclose(released[1] * factors, released[0], rtol=1e-3, atol=1e-4)


def test_a_run_goes_on_with_the_same_factors(adaptive, tmp_path):
    """A resumed run has the moments of its checkpoint, bit for bit, and factors are another program under one key."""
    training, data = adaptive
    key = jax.random.key(8)
    interrupted = committed(start_run(tmp_path / "one", training, PARAMS, data, key=key))
    interrupted.advance(2)
    resumed = resume_run(tmp_path / "one", training, PARAMS, data)
    finished(resumed, 2)

    whole = start_run(tmp_path / "two", training, PARAMS, data, key=key)
    finished(whole, 2)
    for name in PARAMS:
        np.testing.assert_array_equal(resumed.state.params[name], whole.state.params[name])

    # The key was used for a run with factors.
    plain = private_training(training.plan, loss, optax.adam(0.1))
    with pytest.raises(ValueError, match=r"for another run \(other program\)"):
        start_run(tmp_path / "three", plain, PARAMS, data, key=key)


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
        (optax.adam(0.1), lambda _: {"w": jnp.ones(2), "b": 1.0}, "cannot be broadcast"),
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


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": np.nan}, {"b2": 1.0}, {"b2": 0}])
def test_refusals_of_adam_scale(wrong):
    """The argument that is out of range is named."""
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        adam_scale(**{"epsilon": 0.1} | wrong)
