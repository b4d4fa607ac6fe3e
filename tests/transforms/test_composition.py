"""The transforms are ordinary optax: frozen and tied parameters, bfloat16, inject_hyperparams, flax TrainState."""

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
    """Return the loss of one example of a classifier."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def quadratic(w, x):
    """Return a loss whose gradient is 2 (w . x) x."""
    return jnp.vdot(w, x) ** 2


def trained(tx, grad_fn, params, batch, num_steps):
    """Return the parameters after every step on the same batch, and the last state."""

    def step(carry, _):
        params, state = carry
        clipped_sum = grad_fn(params, *batch)
        updates, state = tx.update(clipped_sum, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    train = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=num_steps))
    (_, state), history = train((params, tx.init(params)))
    return history, state


def test_frozen_parameters_stay_as_they_are_and_weight_decay_is_masked():
    """Neither an optimizer nor a masked weight decay moves parameters that are not trainable."""
    params = {"w": jnp.ones(4), "frozen": jnp.ones(4)}
    trainable = {"w": True, "frozen": False}

    def loss(params, x):
        return quadratic(params["w"] * params["frozen"], x)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, trainable=trainable)
    adamw = optax.adamw(1e-2, weight_decay=0.1, mask=trainable)
    decayed = optax.chain(gdpjax.privatize(grad_fn, **PRIVATE), adamw)
    for tx in (gdpjax.dpadam(1e-2, clip=grad_fn, **PRIVATE), decayed):
        history, _ = trained(tx, grad_fn, params, (X,), 3)
        assert (np.asarray(history["frozen"]) == 1).all()
        assert (np.asarray(history["w"])[-1] != 1).all()


def test_bfloat16_parameters_are_accumulated_in_float32():
    """The sum of eight microbatches has bits that bfloat16 does not hold, and the parameters stay bfloat16."""
    params = jnp.ones(4, jnp.bfloat16)
    options = {**PRIVATE, "noise_multiplier": 1e-20, "batches": PoissonNumbers(0.25, 1.0)}
    private = gdpjax.privatize(gdpjax.Sensitivity(1.0), **options)
    tx = gdpjax.accumulate_clipped(private, 8)
    state = tx.init(params)
    update = jax.jit(tx.update)
    microbatch_sum = np.full(4, 1.0 + 2.0**-20, np.float32)
    for _ in range(8):
        released, state = update(microbatch_sum, state, params)
    np.testing.assert_array_equal(released, np.full(4, 8 + 2.0**-17, np.float32))
    assert optax.apply_updates(params, released).dtype == jnp.bfloat16


def test_inject_hyperparams_with_a_schedule_and_a_hand_set_value():
    grad_fn = gdpjax.clipped_grad(quadratic, 1.0)
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
