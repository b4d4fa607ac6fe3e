"""`sampling.Poisson`: its numbers follow from each other, and it draws the batches that they are of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gdpjax import sampling
from gdpjax.sampling import Poisson

KEY = jax.random.key(7)
BATCHES = Poisson(num_examples=500, expected_batch_size=40, num_steps=6)


draw = jax.jit(BATCHES.sample)


@settings(max_examples=30)
@given(st.integers(1, 10**6), st.floats(1e-4, 1.0), st.integers(1, 10**5))
def test_the_numbers_follow_from_three(num_examples, share, num_steps):
    """The probability, the capacity and what an overflow costs."""
    batch_size = max(share * num_examples, 1.0)
    batches = Poisson(num_examples, batch_size, num_steps)
    sampling_prob = sampling.dyadic_probability(batch_size / num_examples)
    assert batches.sampling_prob == sampling_prob
    least = sampling.choose_capacity(num_examples, sampling_prob, num_steps, 1e-12)
    assert batches.capacity == -(-least // 8) * 8
    # The probabilities of an overflow, from another library's tail of the binomial.
    tail = stats.binom.sf(batches.capacity - 1, num_examples, sampling_prob)
    np.testing.assert_allclose(batches.overflow_per_step, tail, rtol=1e-7, atol=1e-300)
    np.testing.assert_allclose(batches.overflow, num_steps * tail, rtol=1e-7, atol=1e-300)
    assert batches.overflow <= 1e-12


def test_the_capacity_is_chosen_or_given():
    """A longer run needs a larger one; a small one is charged for."""
    assert Poisson(1000, 64, 100).capacity < Poisson(1000, 64, 10**8).capacity
    given_one = Poisson(1000, 64, 100, capacity=100)
    assert given_one.capacity == 100
    tail = sampling.overflow_probability(1000, given_one.sampling_prob, 1, 100)
    assert given_one.overflow_per_step == pytest.approx(tail, rel=1e-14)
    assert tail > 1e-6


def test_a_traced_step_out_of_range_never_fits():
    """It gives padding, and a count above all rows."""
    sample = draw(KEY, -1)
    assert np.all(sample.is_padding)
    assert not np.any(sample.indices)
    assert int(sample.count) > BATCHES.num_examples


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int16, jnp.uint8])
def test_small_integer_types_count_steps_and_rows_too(dtype):
    few = Poisson(200, 40, 6)
    for found, count in zip(
        few.sample(KEY, dtype(3), num_valid=dtype(100)), few.sample(KEY, 3, num_valid=100), strict=True
    ):
        np.testing.assert_array_equal(found, count)


@pytest.mark.parametrize("step", [-1, 1.5, True, 2**31, jnp.bfloat16(3), 2.0**31])
def test_a_step_that_is_none_is_refused(step):
    """Nothing but a whole number is a step."""
    with pytest.raises(ValueError, match="step must be"):
        BATCHES.sample(KEY, step)


SCHEMES = {
    "poisson": BATCHES,
    "allocation": sampling.RandomAllocation(100, 100 / 7, epochs=2, capacity=101),
    "shuffled": sampling.Shuffled(100, 100 / 7, epochs=2),
    "cyclic": sampling.CyclicPoisson(100, 10, 9, num_groups=5, capacity=21),
    "truncated": sampling.TruncatedPoisson(100, 10, 9, capacity=10),
    "without replacement": sampling.WithoutReplacement(100, 10, 9),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_step_of_a_floating_type_is_refused(name):
    """2^24 and 2^24 + 1 are one number in float32, so that two steps of the run would have one batch."""
    sample = SCHEMES[name].sample
    for function in (sample, jax.jit(sample)):
        with pytest.raises(ValueError, match=r"step must be a whole number, got .*float32"):
            function(KEY, np.float32(2**24 + 1))


def test_a_step_too_large_for_its_type_repeats_no_batch():
    """2^32 is 0 in 32 bits: the batch of the first step would come again."""
    with jax.enable_x64(True):
        sample = draw(KEY, jnp.int64(2**32))
        assert int(sample.count) > BATCHES.num_examples
        allocated = jax.jit(SCHEMES["allocation"].sample)(KEY, jnp.int64(2**32))
        assert int(allocated.count) > 100


def test_a_batch_that_a_loop_would_repeat_is_refused():
    """The step or the key is to change with the loop."""

    def same_batch_each_time(carry, _):
        return carry, BATCHES.sample(KEY, 3).count

    def same_batch_within_a_step(t, _):
        counts = jax.lax.map(lambda i: BATCHES.sample(KEY, t).count + i, jnp.arange(2))
        return t + 1, counts

    for body in (same_batch_each_time, same_batch_within_a_step):
        with pytest.raises(ValueError, match="constant of a compiled loop"):
            jax.lax.scan(body, 0, length=2)
    keys = jax.random.split(KEY, 2)
    counts = jax.lax.map(lambda key: BATCHES.sample(key, 3).count, keys)
    np.testing.assert_array_equal(counts, [draw(key, 3).count for key in keys])


REFUSALS = {
    "fraction": (dict(num_examples=1.5), "num_examples must be"),
    "too many": (dict(num_examples=2**31), "at most 2147483647"),
    "NaN batch": (dict(expected_batch_size=float("nan")), "expected_batch_size must be a finite number > 0"),
    "batch above all": (dict(expected_batch_size=500.5), "at most num_examples=500, got 500.5"),
    "capacity": (dict(capacity=0), "capacity must be a whole number >= 1"),
    "capacity of text": (dict(capacity="large"), "capacity must be"),
    "small capacity": (dict(capacity=40), "capacity=40 is too small .* Leave capacity out"),
    "steps and epochs": (dict(epochs=2), "exactly one of num_steps and epochs"),
    "no length": (dict(num_steps=None), "exactly one of num_steps and epochs"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused(case):
    """The message says what was expected."""
    options, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        Poisson(**(dict(num_examples=500, expected_batch_size=40, num_steps=6) | options))


@pytest.mark.parametrize("name", ["num_examples", "expected_batch_size", "num_steps", "capacity"])
def test_traced_numbers_are_refused_with_what_to_do(name):
    """The numbers of a scheme decide shapes."""
    options = dict(num_examples=500, expected_batch_size=40.0, num_steps=6)
    with pytest.raises(ValueError, match="known before compiling"):
        jax.jit(lambda value: Poisson(**(options | {name: value})).sampling_prob)(options.get(name, 0.5))
