"""Private training with what people use: schedules, averages, sweeps, equinox, frozen and tied parameters, bfloat16."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax

pytestmark = pytest.mark.usefixtures("cheap_noise")
PRIVATE = {"noise_multiplier": 1.0, "sampling_prob": 0.25, "expected_batch_size": 8.0, "key": jax.random.key(0)}
X = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
Y = np.arange(8) % 3


def cross_entropy(logits, label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def quadratic(w, x):
    return jnp.vdot(w, x) ** 2


def trained(tx, grad_fn, params, batch, num_steps):
    """Parameters after every step, and the last state; the same batch in every step."""

    def one(carry, _):
        params, state = carry
        updates, state = tx.update(grad_fn(params, *batch), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    scan = jax.jit(lambda carry: jax.lax.scan(one, carry, None, length=num_steps))
    (_, state), history = scan((params, tx.init(params)))
    return history, state


def test_an_optax_schedule_scales_what_is_released():
    grad_fn = gdpjax.clipped_grad(quadratic, 1.0)
    schedule = optax.warmup_cosine_decay_schedule(0.1, 0.5, 2, 6)
    params = jnp.ones(4)
    private = gdpjax.privatize(grad_fn, **PRIVATE)
    tx = gdpjax.dpsgd(schedule, clipped_by=grad_fn, **PRIVATE)
    alone, state = private.init(params), tx.init(params)

    @jax.jit
    def step(alone, state):
        total = grad_fn(params, X)
        return private.update(total, alone, params), tx.update(total, state, params)

    rates = jax.jit(jax.vmap(schedule))(np.arange(6))
    for rate in np.asarray(rates):
        (released, alone), (updates, state) = step(alone, state)
        np.testing.assert_allclose(updates, -rate * np.asarray(released), rtol=1e-5)


def test_an_average_of_the_parameters_is_postprocessing():
    """An exponential moving average beside the parameters: its value, and that the ledger does not know of it."""
    grad_fn = gdpjax.clipped_grad(quadratic, 1.0)
    tx = gdpjax.dpsgd(0.1, clipped_by=grad_fn, **PRIVATE)
    history, state = trained(tx, grad_fn, jnp.ones(4), (X,), 5)
    average = np.ones(4, np.float32)
    for params in np.asarray(history):
        average = optax.incremental_update(params, average, step_size=0.1)
    weights = 0.1 * 0.9 ** np.arange(4, -1, -1)
    np.testing.assert_allclose(average, 0.9**5 + weights @ np.asarray(history), rtol=1e-5)
    assert gdpjax.ledger_of(state).num_steps == 5


def test_a_sweep_over_an_injected_noise_multiplier():
    """One program for all configurations, each with its key; every ledger says what its configuration ran."""
    static = ("clipped_by", "key", "ledger_capacity", "nesterov")
    factory = optax.inject_hyperparams(gdpjax.dpsgd, static_args=static)

    def train(noise_multiplier, key):
        options = {**PRIVATE, "noise_multiplier": noise_multiplier, "key": key}
        tx = factory(0.1, clipped_by=gdpjax.Sensitivity(1.0), **options)
        params = jnp.ones(4)
        first, state = tx.update(total, tx.init(params), params)
        # A hyperparameter is set by hand between the steps.
        state.hyperparams["noise_multiplier"] = 2 * noise_multiplier
        second, state = tx.update(total, state, params)
        return first + second, state

    total = X.sum(0)
    multipliers, keys = np.float32([0.5, 1.0, 2.0]), jax.random.split(jax.random.key(5), 3)
    swept, states = jax.jit(jax.vmap(train))(multipliers, keys)
    alone = jax.jit(train)
    for i in range(3):
        moved, state = alone(multipliers[i], keys[i])
        np.testing.assert_allclose(swept[i], moved, rtol=1e-5, atol=1e-6)
        ledger = gdpjax.ledger_of(jax.tree.map(lambda leaf, i=i: leaf[i], states))
        assert ledger == gdpjax.ledger_of(state)
        first, second = ledger.events
        assert (first.noise_multiplier, first.num_steps) == (multipliers[i], 1)
        assert (second.noise_multiplier, second.num_steps) == (2 * multipliers[i], 1)
    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(train, in_axes=(0, None))(multipliers, keys[0])


def test_equinox_model():
    model = eqx.nn.MLP(4, 3, 5, 1, use_bias=False, use_final_bias=False, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, x, y):
        return cross_entropy(eqx.combine(params, static)(x), y)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))
    tx = gdpjax.dpadam(1e-2, clipped_by=grad_fn, **PRIVATE)
    history, state = trained(tx, grad_fn, params, (X, Y), 3)
    trained_params = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], history)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(trained_params), strict=True):
        assert (before != after).all()
    last = eqx.combine(trained_params, static)
    assert jax.eval_shape(jax.vmap(last), X).shape == (8, 3)
    assert gdpjax.ledger_of(state).num_steps == 3


def tied_loss(params, token, label):
    """One table as the embedding and as the classifier."""
    hidden = jnp.tanh(params["table"][token] @ params["mix"]) + params["frozen"]
    return cross_entropy(params["table"] @ hidden, label)


RANDOM = np.random.default_rng(2)
TIED = {
    "table": jnp.asarray(RANDOM.normal(size=(6, 4)) * 2, jnp.float32),
    "mix": jnp.asarray(RANDOM.normal(size=(4, 4)), jnp.float32),
    "frozen": jnp.ones(4),
}
TRAINABLE = {"table": True, "mix": True, "frozen": False}
TOKENS, LABELS = np.arange(12) % 6, np.arange(12) % 5


def rows_of(function, params):
    """The gradients of each example, its leaves side by side, [12, coordinates]."""
    gradients = jax.vmap(jax.grad(function), in_axes=(None, 0, 0))
    grads = jax.jit(gradients)(params, TOKENS, LABELS)
    return np.concatenate([np.asarray(leaf, np.float64).reshape(12, -1) for leaf in grads], axis=1)


@functools.cache
def tied_rows():
    """Gradients of the trainable leaves."""

    def loss(pair, token, label):
        table, mix = pair
        return tied_loss({"table": table, "mix": mix, "frozen": TIED["frozen"]}, token, label)

    return rows_of(loss, (TIED["table"], TIED["mix"]))


@functools.cache
def norms_of_separate_uses():
    """Norms of gradients as if the two uses of the table were two parameters."""

    def untied(uses, token, label):
        embedding, classifier, mix = uses
        return cross_entropy(classifier @ (jnp.tanh(embedding[token] @ mix) + TIED["frozen"]), label)

    rows = rows_of(untied, (TIED["table"], TIED["table"], TIED["mix"]))
    return np.linalg.norm(rows, axis=1)


@pytest.mark.parametrize("strategy", ["auto", "ghost", "vmap"])
def test_a_tied_leaf_is_clipped_once_with_its_true_norm(strategy):
    """Trap 24: the gradient of a leaf used twice is the sum of both uses, in one norm, beside the other leaves."""
    rows = tied_rows()
    norms = np.linalg.norm(rows, axis=1)
    bound = float(np.median(norms))
    grad_fn = gdpjax.clipped_grad(
        tied_loss,
        bound,
        batch_argnums=(1, 2),
        trainable=TRAINABLE,
        strategy=strategy,
        return_info=True,
    )
    total, info = jax.jit(grad_fn)(TIED, TOKENS, LABELS)
    flat = np.concatenate([np.ravel(total[name]) for name in ("table", "mix")])
    np.testing.assert_allclose(info.norms, norms, rtol=1e-5)
    np.testing.assert_allclose(flat, np.minimum(1, bound / norms) @ rows, rtol=2e-4, atol=1e-5)

    # Norms added up by use are other norms.
    assert (np.abs(norms_of_separate_uses() / norms - 1) > 0.01).any()


def test_frozen_parameters_stay_as_they_are_and_weight_decay_is_masked():
    params, trainable = {"w": jnp.ones(4), "frozen": jnp.ones(4)}, {"w": True, "frozen": False}

    def loss(params, x):
        return quadratic(params["w"] * params["frozen"], x)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, trainable=trainable)
    adamw = optax.adamw(1e-2, weight_decay=0.1, mask=trainable)
    decayed = optax.chain(gdpjax.privatize(grad_fn, **PRIVATE), adamw)
    for tx in (gdpjax.dpadam(1e-2, clipped_by=grad_fn, **PRIVATE), decayed):
        history, _ = trained(tx, grad_fn, params, (X,), 3)
        assert (np.asarray(history["frozen"]) == 1).all()
        assert (np.asarray(history["w"])[-1] != 1).all()


def test_bfloat16_model_with_float32_parameters():
    """Trap 7: half precision inside the loss, and nowhere after it: sums, noise and parameters are float32."""

    def loss(params, x, y):
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        hidden = jnp.tanh(x.astype(jnp.bfloat16) @ half["in"])
        logits = hidden @ half["out"]
        return cross_entropy(logits.astype(jnp.float32), y)

    params = {"in": jnp.ones((4, 5)) / 2, "out": jnp.eye(5, 3)}
    grad_fn = gdpjax.clipped_grad(loss, 0.1, batch_argnums=(1, 2))
    tx = gdpjax.accumulate_clipped(gdpjax.dpsgd(1e-4, clipped_by=grad_fn, **PRIVATE), 2)
    clipped_sum = jax.jit(grad_fn)
    larger = clipped_sum(params, X, Y, is_padding=np.zeros(8, bool))
    smaller = clipped_sum(params, X, Y, is_padding=np.arange(8) == 3)
    moved = np.concatenate([np.ravel(larger[name] - smaller[name]) for name in params])
    assert 0.09 < np.linalg.norm(moved) <= 0.1
    history, state = trained(tx, grad_fn, params, (X, Y), 4)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((history, state.total, state.error)))
    # A step of 1e-4 is below half a unit in the last place of a bfloat16 one, and must not be lost.
    assert all((leaf[1] != leaf[3]).any() for leaf in map(np.asarray, jax.tree.leaves(history)))
    assert gdpjax.ledger_of(state).num_steps == 2


def test_bfloat16_parameters_are_accumulated_in_float32():
    params = jnp.ones(4, jnp.bfloat16)
    tx = gdpjax.accumulate_clipped(
        gdpjax.privatize(gdpjax.Sensitivity(1.0), **{**PRIVATE, "noise_multiplier": 1e-20, "expected_batch_size": 1.0}),
        8,
    )
    state = tx.init(params)
    update = jax.jit(tx.update)
    for _ in range(8):
        released, state = update(np.full(4, 1.0 + 2.0**-20, np.float32), state, params)
    np.testing.assert_array_equal(released, np.full(4, 8 + 2.0**-17, np.float32))
    assert optax.apply_updates(params, released).dtype == jnp.bfloat16
