"""The transforms are ordinary optax: inject_hyperparams, flax TrainState, nnx.Optimizer, donation, checkpoints."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
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
