"""`privatize` noises the sums of its own clip: what is anything else, or was changed on the way, is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.sampling import PoissonNumbers

pytestmark = pytest.mark.usefixtures("cheap_noise")
PRIVATE = {"noise_multiplier": 1.0, "batches": PoissonNumbers(0.25, 8.0), "key": jax.random.key(0)}
PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
ROWS = jnp.asarray(np.random.default_rng(1).normal(size=(8, 3)), jnp.float32)


def loss(params, row):
    return jnp.sum((row @ params["w"] + params["b"]) ** 2)


def mean_gradient(params, rows):
    def mean_loss(params):
        return jax.vmap(loss, (None, 0))(params, rows).mean()

    return jax.grad(mean_loss)(params)


def clipped(**options):
    return gdpjax.clipped_grad(loss, 1.0, **options)


def private(clip, **changes):
    return gdpjax.privatize(clip, **{**PRIVATE, **changes})


def refused(what="Something changed it before the noise"):
    return pytest.raises(ValueError, match=what)


BETWEEN = {
    "scale": lambda: optax.scale(2.0),
    "adam": lambda: optax.adam(0.1),
    "trace": lambda: optax.trace(0.9),
    "centralize": lambda: optax.centralize(),
    "scale_by_schedule": lambda: optax.scale_by_schedule(lambda count: 2.0),
    "flatten": lambda: optax.flatten(optax.scale(2.0)),
}


@pytest.mark.parametrize(("name", "compiled"), [*[(name, True) for name in BETWEEN], ("scale", False)])
def test_a_transformation_between_clip_and_noise_is_refused(name, compiled):
    """Each of them was seen to pass, with the ledger of an unchanged sum."""
    grad_fn = clipped()
    tx = optax.chain(BETWEEN[name](), private(grad_fn), optax.sgd(0.1))

    def step(state):
        return tx.update(grad_fn(PARAMS, ROWS), state, PARAMS)

    step = jax.jit(step).trace if compiled else step
    for _ in range(2):  # what the refused program made must not let it in
        with refused():
            step(tx.init(PARAMS))


@pytest.mark.parametrize("name", ["scale", "centralize"])
def test_between_clip_and_sum_and_noise_it_is_refused_too(name):
    clip = gdpjax.clip_and_sum(1.0)
    tx = optax.chain(clip, BETWEEN[name](), private(clip))
    rows = jax.tree.map(lambda leaf: jnp.ones((4, *leaf.shape)), PARAMS)
    with refused():
        jax.jit(tx.update).trace(rows, tx.init(PARAMS), PARAMS)


def test_the_gradient_of_a_mean_loss_is_refused():
    grad_fn = clipped()
    tx = private(grad_fn)
    with refused("has made none; jax.grad of a mean loss is not clipped"):
        tx.update(mean_gradient(PARAMS, ROWS), tx.init(PARAMS), PARAMS)
    with refused("has made none"):
        jax.jit(lambda state: tx.update(mean_gradient(PARAMS, ROWS), state, PARAMS)).trace(tx.init(PARAMS))
    # That the clip is called beside it, or was called before, changes nothing.
    grad_fn(PARAMS, ROWS)
    with refused():
        tx.update(mean_gradient(PARAMS, ROWS), tx.init(PARAMS), PARAMS)

    def both(state):
        grad_fn(PARAMS, ROWS)
        return tx.update(mean_gradient(PARAMS, ROWS), state, PARAMS)

    with refused():
        jax.jit(both).trace(tx.init(PARAMS))


def test_the_sum_of_another_clip_is_refused():
    mine, other = clipped(), gdpjax.clipped_grad(loss, 5.0)
    tx = private(mine)
    with refused("has made none"):
        tx.update(other(PARAMS, ROWS), tx.init(PARAMS), PARAMS)

    def step(state):
        mine(PARAMS, ROWS)
        return tx.update(other(PARAMS, ROWS), state, PARAMS)

    with refused("another clip made it"):
        jax.jit(step).trace(tx.init(PARAMS))


def test_leaves_of_several_sums_are_no_sum():
    grad_fn = clipped()
    tx = private(grad_fn)
    one, other = grad_fn(PARAMS, ROWS), grad_fn(PARAMS, ROWS)
    with refused():
        tx.update({"w": one["w"], "b": other["b"]}, tx.init(PARAMS), PARAMS)
    tx.update(one, tx.init(PARAMS), PARAMS)


def test_leaves_that_changed_places_are_no_sum():
    params = {"a": jnp.ones(3), "b": jnp.ones(3)}
    linear = gdpjax.clipped_grad(lambda p, x: p["a"] @ x + 2 * p["b"] @ x, 1.0)
    tx = private(linear)

    def step(state):
        total = linear(params, ROWS)
        return tx.update({"a": total["b"], "b": total["a"]}, state, params)

    with refused():
        jax.jit(step).trace(tx.init(params))


def test_one_correct_jitted_step_does_not_open_the_door():
    grad_fn = clipped()
    tx = private(grad_fn)
    step = jax.jit(lambda rows, state: tx.update(grad_fn(PARAMS, rows), state, PARAMS))
    _, state = step(ROWS, tx.init(PARAMS))
    _, state = step(ROWS, state)  # compiled: nothing is traced again
    with refused():
        tx.update(mean_gradient(PARAMS, ROWS), state, PARAMS)
    with refused():
        tx.update(jax.tree.map(lambda leaf: 2 * leaf, grad_fn(PARAMS, ROWS)), state, PARAMS)
    with refused():
        jax.jit(lambda state: tx.update(mean_gradient(PARAMS, ROWS), state, PARAMS)).trace(state)
    assert gdpjax.ledger_of(state).num_steps == 2


def test_sums_that_cross_the_boundary_of_a_compiled_function_are_taken():
    grad_fn = clipped()
    tx = private(grad_fn)
    state = tx.init(PARAMS)
    expected, _ = tx.update(grad_fn(PARAMS, ROWS), state, PARAMS)
    gradients = jax.jit(lambda rows: grad_fn(PARAMS, rows))
    outside, _ = tx.update(gradients(ROWS), state, PARAMS)
    again, _ = tx.update(gradients(ROWS), state, PARAMS)
    inside, _ = jax.jit(tx.update)(grad_fn(PARAMS, ROWS), state, PARAMS)
    nested, _ = jax.jit(lambda state: tx.update(gradients(ROWS), state, PARAMS))(state)
    for found in (outside, again, inside, nested):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_adaptive_clipping_takes_the_sum_of_its_clip_alone():
    tx = gdpjax.privatize_adaptive(initial_l2_clip_norm=1.0, count_stddev=1.0, **PRIVATE)
    grad_fn = clipped(return_info=True)

    @functools.partial(jax.jit, static_argnums=1)
    def step(state, divisor):
        total, info = grad_fn(PARAMS, ROWS)
        if divisor > 1:
            total = jax.tree.map(lambda leaf: leaf / divisor, total)
        return tx.update(total, state, PARAMS, clipped_by=grad_fn, norms=info.norms)

    step.trace(tx.init(PARAMS), 1)
    with refused():
        step.trace(tx.init(PARAMS), 2)


def test_what_is_stated_is_believed():
    tx = optax.chain(optax.scale(2.0), private(gdpjax.Sensitivity(2.0)))
    tx.update(mean_gradient(PARAMS, ROWS), tx.init(PARAMS), PARAMS)


def test_sums_that_leave_an_inner_trace_are_taken():
    grad_fn = clipped()
    tx = private(grad_fn)

    def mapped(state):
        totals = jax.vmap(grad_fn, (None, 0))(PARAMS, ROWS.reshape(2, 4, 3))
        first = jax.tree.map(lambda leaf: leaf[0], totals)
        return jax.lax.cond(state.count > 3, lambda t: tx.update(t, state, PARAMS)[0], lambda t: PARAMS, first)

    jax.jit(mapped).trace(tx.init(PARAMS))

    def branched(state):
        total = grad_fn(PARAMS, ROWS)
        return jax.lax.cond(state.count > 3, lambda t: tx.update(t, state, PARAMS)[0], lambda t: PARAMS, total)

    jax.jit(branched).trace(tx.init(PARAMS))
