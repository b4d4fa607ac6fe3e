"""Batches that are drawn are padded: a sum of all their rows, padding included, is refused."""

import functools

import jax
import jax.numpy as jnp
import pytest

import gdpjax
from gdpjax.sampling import Poisson, PoissonNumbers

BATCHES = Poisson(num_examples=100, expected_batch_size=2, num_steps=5, capacity=4)
NUMBERS = PoissonNumbers(sampling_prob=0.02, expected_batch_size=2.0)
PARAMS = jnp.zeros(3)
ROWS = jnp.ones((4, 3))
PADDING = jnp.array([False, False, True, True])
ADAPTIVE = dict(initial_l2_clip_norm=1.0, count_stddev=2.0)
MESSAGE = r"Give the mask that comes with the indices, grad_fn\(params, x, y, is_padding=is_padding\)"

grad_fn = gdpjax.clipped_grad(jnp.dot, 1.0)


def private(**options):
    return gdpjax.privatize(grad_fn, noise_multiplier=1.0, key=jax.random.key(0), **options)


def released(tx, rows=ROWS, num_sums=1, **mask):
    """The release of a step on so many sums. All that is refused is refused when it is traced; nothing is compiled."""

    def step(params, rows):
        state = tx.init(params)
        for _ in range(num_sums):
            update, state = tx.update(grad_fn(params, rows, **mask), state, params)
        return update

    return jax.eval_shape(step, PARAMS, rows)


def test_a_drawn_batch_needs_its_mask():
    with pytest.raises(ValueError, match=MESSAGE):
        released(private(batches=BATCHES))


@pytest.mark.parametrize("mask", [PADDING, jnp.zeros(4, bool)], ids=["padded", "full"])
def test_a_mask_is_enough(mask):
    assert released(private(batches=BATCHES), is_padding=mask).shape == (3,)


def test_batches_that_the_user_draws_need_none():
    """Of the numbers alone nothing is known of their padding."""
    assert released(private(batches=NUMBERS)).shape == (3,)


def test_adaptive_clipping_needs_it_too():
    tx = gdpjax.privatize_adaptive(**ADAPTIVE, noise_multiplier=1.0, batches=BATCHES, key=jax.random.key(1))

    def step(params, rows, **mask):
        state = tx.init(params)
        with_norms = gdpjax.clipped_grad(jnp.dot, gdpjax.clip_norm_of(state), return_info=True)
        total, info = with_norms(params, rows, **mask)
        return tx.update(total, state, params, clipped_by=with_norms, norms=info.norms)[0]

    with pytest.raises(ValueError, match=MESSAGE):
        jax.eval_shape(step, PARAMS, ROWS)
    assert jax.eval_shape(step, PARAMS, ROWS, is_padding=PADDING).shape == (3,)


@pytest.mark.parametrize(
    "make", [functools.partial(gdpjax.dpsgd, 0.1, 1.0), functools.partial(gdpjax.privatize_adaptive, **ADAPTIVE)]
)
def test_gradients_of_each_example_need_it_too(make):
    tx = make(noise_multiplier=1.0, batches=BATCHES, key=jax.random.key(2))

    def step(params, rows, **mask):
        per_example = gdpjax.per_example_grad(jnp.dot)(params, rows, **mask)
        return tx.update(per_example, tx.init(params), params)[0]

    with pytest.raises(ValueError, match=MESSAGE):
        jax.eval_shape(step, PARAMS, ROWS)
    assert jax.eval_shape(step, PARAMS, ROWS, is_padding=PADDING).shape == (3,)


@pytest.mark.parametrize("num_rows", [3, 5, 100])
def test_a_drawn_batch_has_all_its_rows(num_rows):
    """A batch of another size was not drawn by ``batches``, whatever its mask says."""
    mask = {"is_padding": jnp.zeros(num_rows, bool)}
    with pytest.raises(ValueError, match=f"batches of 4 rows.* this sum is of {num_rows}: give all rows"):
        released(private(batches=BATCHES), jnp.ones((num_rows, 3)), **mask)


def test_microbatches_have_all_rows_together():
    """Two microbatches of four rows are no batch of four."""
    tx = gdpjax.accumulate_clipped(private(batches=BATCHES), 2)
    with pytest.raises(ValueError, match="this sum is of 8"):
        released(tx, is_padding=PADDING)


def test_each_microbatch_needs_it():
    """A microbatch is a part of a drawn batch, padding included."""
    batches = Poisson(num_examples=100, expected_batch_size=2, num_steps=5, capacity=8)
    tx = gdpjax.accumulate_clipped(private(batches=batches), 2)
    with pytest.raises(ValueError, match=MESSAGE):
        released(tx)
    assert released(tx, num_sums=2, is_padding=PADDING).shape == (3,)
