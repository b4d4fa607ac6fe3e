"""Batches that are drawn are padded: a sum of all their rows, padding included, is refused."""

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
MESSAGE = r"Give the mask that comes with the indices, grad_fn\(params, x, y, is_padding=is_padding\)"

grad_fn = gdpjax.clipped_grad(jnp.dot, 1.0)


def private(**options):
    return gdpjax.privatize(grad_fn, noise_multiplier=1.0, key=jax.random.key(0), **options)


def released(tx, **mask):
    """One compiled step, as a training loop takes it."""

    @jax.jit
    def step(params, rows):
        update, _ = tx.update(grad_fn(params, rows, **mask), tx.init(params), params)
        return update

    return step(PARAMS, ROWS)


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
    tx = gdpjax.privatize_adaptive(
        initial_l2_clip_norm=1.0,
        noise_multiplier=1.0,
        count_stddev=2.0,
        batches=BATCHES,
        key=jax.random.key(1),
    )
    state = tx.init(PARAMS)
    with_norms = gdpjax.clipped_grad(jnp.dot, gdpjax.clip_norm_of(state), return_info=True)
    total, info = with_norms(PARAMS, ROWS)
    with pytest.raises(ValueError, match=MESSAGE):
        tx.update(total, state, PARAMS, clipped_by=with_norms, norms=info.norms)

    total, info = with_norms(PARAMS, ROWS, is_padding=PADDING)
    update, _ = tx.update(total, state, PARAMS, clipped_by=with_norms, norms=info.norms)
    assert update.shape == (3,)


@pytest.mark.parametrize("num_rows", [3, 5, 100])
def test_a_drawn_batch_has_all_its_rows(num_rows):
    """A batch of another size was not drawn by ``batches``, whatever its mask says."""
    tx = private(batches=BATCHES)
    rows = jnp.ones((num_rows, 3))
    total = grad_fn(PARAMS, rows, is_padding=jnp.zeros(num_rows, bool))
    with pytest.raises(ValueError, match=f"batches of 4 rows.* this sum is of {num_rows}: give all rows"):
        tx.update(total, tx.init(PARAMS), PARAMS)


def test_microbatches_have_all_rows_together():
    """Two microbatches of four rows are no batch of four."""
    tx = gdpjax.accumulate_clipped(private(batches=BATCHES), 2)
    total = grad_fn(PARAMS, ROWS, is_padding=PADDING)
    with pytest.raises(ValueError, match="this sum is of 8"):
        tx.update(total, tx.init(PARAMS), PARAMS)


def test_each_microbatch_needs_it():
    """A microbatch is a part of a drawn batch, padding included."""
    batches = Poisson(num_examples=100, expected_batch_size=2, num_steps=5, capacity=8)
    tx = gdpjax.accumulate_clipped(private(batches=batches), 2)
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match=MESSAGE):
        tx.update(grad_fn(PARAMS, ROWS), state, PARAMS)
    _, state = tx.update(grad_fn(PARAMS, ROWS, is_padding=PADDING), state, PARAMS)
    update, _ = tx.update(grad_fn(PARAMS, ROWS, is_padding=PADDING), state, PARAMS)
    assert update.shape == (3,)
