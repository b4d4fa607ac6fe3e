"""The transforms are ordinary optax: inject_hyperparams, flax TrainState, nnx.Optimizer, donation, checkpoints."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, serialization
from flax.training.train_state import TrainState

import gdpjax
from gdpjax.sampling import PoissonNumbers

pytestmark = pytest.mark.usefixtures("cheap_noise")
PRIVATE = {"noise_multiplier": 1.0, "batches": PoissonNumbers(0.25, 8.0), "key": jax.random.key(0)}
X = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
Y = np.arange(8) % 3


def cross_entropy(logits, label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def test_inject_hyperparams_with_a_schedule_and_a_hand_set_value():
    grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x) ** 2, 1.0)
    factory = optax.inject_hyperparams(gdpjax.dpsgd, static_args=("clip", "nesterov"))
    tx = factory(optax.linear_schedule(0.1, 0.0, 10), clip=grad_fn, **PRIVATE)
    params = jnp.ones(4)
    state = tx.init(params)
    update = jax.jit(tx.update)
    total = jax.jit(grad_fn)(params, X)
    for multiplier in [1.0, 1.0, 0.5]:
        state.hyperparams["noise_multiplier"] = jnp.asarray(multiplier)
        updates, state = update(total, state, params)
    assert updates.shape == (4,)
    first, second = gdpjax.ledger_of(state).events
    assert (first.noise_multiplier, first.num_steps) == (1.0, 2)
    assert (second.noise_multiplier, second.num_steps) == (0.5, 1)
    assert update._cache_size() == 1


NAIVE = {
    "dpsgd": (gdpjax.dpsgd, {"clip": True}, "under optax.inject_hyperparams"),
    "privatize": (gdpjax.privatize, {"clip": True}, "under optax.inject_hyperparams"),
}


@pytest.mark.parametrize("case", NAIVE)
def test_inject_hyperparams_without_static_args_says_what_to_list(case):
    factory, options, message = NAIVE[case]
    grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x) ** 2, 1.0)
    options = {name: grad_fn if value is True else value for name, value in options.items()}
    rate = {} if factory is gdpjax.privatize else {"learning_rate": 0.1}
    tx = optax.inject_hyperparams(factory)(**rate, **options, **PRIVATE)
    with pytest.raises(ValueError, match=message):
        tx.init(jnp.ones(4))


def test_sizes_must_be_static():
    for make in (gdpjax.clip_and_sum, lambda clip, **sizes: gdpjax.clipped_grad(jnp.vdot, clip, **sizes)):
        for size in (jnp.int32(8), jnp.ones(2, int)):
            with pytest.raises(ValueError, match="list max_batch_size in static_args"):
                make(1.0, max_batch_size=size)
        for size in (0, -1, 2.5, "8"):
            with pytest.raises(ValueError, match="max_batch_size must be a whole number >= 1"):
                make(1.0, max_batch_size=size)


def test_flax_train_state_and_its_serialization():
    model = nn.Dense(3, use_bias=False)
    params = {"params": {"kernel": jnp.eye(4, 3)}}

    def loss(params, x, y):
        return cross_entropy(model.apply(params, x), y)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=gdpjax.dpadam(1e-2, clip=grad_fn, **PRIVATE))

    @jax.jit
    def step(state):
        return state.apply_gradients(grads=grad_fn(state.params, X, Y))

    for _ in range(3):
        state = step(state)
    assert gdpjax.ledger_of(state.opt_state).num_steps == 3
    restored = serialization.from_bytes(state, serialization.to_bytes(state))
    assert gdpjax.ledger_of(restored.opt_state) == gdpjax.ledger_of(state.opt_state)
    for a, b in zip(jax.tree.leaves(step(state)), jax.tree.leaves(step(restored)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nnx_optimizer():
    model = nnx.Linear(4, 3, use_bias=False, rngs=nnx.Rngs(0))
    graph, _ = nnx.split(model, nnx.Param)

    def loss(params, x, y):
        return cross_entropy(nnx.merge(graph, params)(x), y)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))
    optimizer = nnx.Optimizer(model, gdpjax.dpsgd(0.1, clip=grad_fn, **PRIVATE), wrt=nnx.Param)
    before = [np.array(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, grad_fn(nnx.state(model, nnx.Param), X, Y))

    for _ in range(2):
        step(model, optimizer)
    after = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert all((a != np.asarray(b)).all() for a, b in zip(before, after, strict=True))
    assert gdpjax.ledger_of(optimizer.opt_state).num_steps == 2


def test_bfloat16_model_trains_with_float32_noise():
    params = jnp.ones(4, jnp.bfloat16)
    grad_fn = gdpjax.clipped_grad(lambda w, x: (w @ x.astype(w.dtype)) ** 2, 1.0)
    tx = gdpjax.dpsgd(0.1, clip=grad_fn, **PRIVATE)
    state = tx.init(params)
    updates, _ = jax.eval_shape(lambda params: tx.update(grad_fn(params, X), state, params), params)
    assert updates.dtype == jnp.float32
    assert jax.eval_shape(optax.apply_updates, params, updates).dtype == jnp.bfloat16


def test_donated_state():
    grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x) ** 2, 1.0)
    tx = gdpjax.dpsgd(0.1, clip=grad_fn, **PRIVATE)

    def step(params, state):
        updates, state = tx.update(grad_fn(params, X), state, params)
        return optax.apply_updates(params, updates), state

    donating, params = jax.jit(step, donate_argnums=(0, 1)), jnp.ones(4)
    state = tx.init(params)
    for _ in range(3):
        params, state = donating(params, state)
    assert gdpjax.ledger_of(state).num_steps == 3
    assert jax.random.key_data(PRIVATE["key"]).shape == (2,)  # donation did not take the user's key with it
    donating(jnp.ones(4), tx.init(jnp.ones(4)))


@pytest.mark.parametrize("x64", [False, True])
def test_whole_step_works_with_and_without_x64(x64):
    with jax.enable_x64(x64):
        params = jnp.ones(4)
        grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x.astype(w.dtype)) ** 2, 1.0)
        tx = gdpjax.dpsgd(0.1, clip=grad_fn, **PRIVATE)
        step = jax.jit(lambda state: tx.update(grad_fn(params, X), state, params))
        updates, state = step(tx.init(params))
        assert updates.dtype == params.dtype
        assert gdpjax.ledger_of(state).num_steps == 1
