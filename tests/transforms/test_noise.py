"""The noise: distribution, tail, independence, and that nothing shortens it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gdpjax
from gdpjax._core import noise

SMALL, LARGE = (128, 128), (5, 3277)
"""The largest array that is drawn as small ones are, and one of an entry more."""


def draw(key, shape):
    return np.asarray(noise.standard_normal(key, shape, jnp.float32), np.float64)


def from_jax(key):
    """Return the normal values of a key's first 257 rows, with all words from `jax.random`."""
    num_rows = 257
    first, second = jax.random.split(key)
    words = jax.random.bits(first, (num_rows, 64))
    row_keys = jax.vmap(lambda row: jax.random.fold_in(second, row))(jnp.arange(num_rows))
    more = jax.vmap(lambda row_key: jax.random.bits(row_key, (64,)))(row_keys)
    return noise._refined(words, more, noise._from_one_word(words)).reshape(-1)


KEYS = jax.random.split(jax.random.key(8), 8)


@functools.cache
def expected():
    """Return what each of `KEYS` draws, [8, entries]: arrays of fewer entries begin with the same values."""
    return np.asarray(jax.jit(jax.vmap(from_jax))(KEYS))


def assert_close(values, truth):
    np.testing.assert_allclose(values, truth, rtol=2e-6, atol=1e-7)


def test_inversion_is_accurate_over_the_whole_range():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    more = rng.integers(0, 2**32, 100_000, dtype=np.uint32)

    # One word, where the tail is not extreme.
    k = (words & 0x7FFFFFFF).astype(np.float64)
    central = k >= 2**19
    sign = np.where(words >> 31, -1, 1)
    exact = -stats.norm.ppf((k + 0.5) / 2**32) * sign
    error = np.abs(np.asarray(jax.jit(noise._from_one_word)(words)) - exact)
    assert error[central].max() < 1e-6

    # Two words, of tails down to 2^-63.
    small = (words & 0x7FFFF) >> (more % 20).astype(np.uint32)
    tail = (small + (more + 0.5) / 2**32) / 2**31
    exact = -stats.norm.ppf(tail / 2)
    np.testing.assert_allclose(jax.jit(noise._from_two_words)(small, more), exact, rtol=1e-6)
    assert exact.max() > 7


def test_the_largest_value_is_beyond_nine_standard_deviations():
    extreme = jax.jit(noise._from_two_words)(np.zeros(1, np.uint32), np.zeros(1, np.uint32))
    np.testing.assert_allclose(extreme, [-stats.norm.ppf(2.0**-65)], rtol=1e-6)


FEW_MANY_AND_WIDE = [((3, 17), "float32"), ((64 * 300,), "float32"), ((5,), "float64")]


@pytest.mark.parametrize(("shape", "dtype"), FEW_MANY_AND_WIDE)
def test_noise_of_extreme_words_is_beyond_nine_standard_deviations(shape, dtype, monkeypatch):
    """Trap 31: the whole of `standard_normal` uses the words to their last bit, in few rows, in many and in float64."""

    def no_bits(key, shape):
        return jnp.zeros(shape, jnp.uint32)

    def no_words(keys, numbers):
        return jnp.zeros_like(numbers), jnp.zeros_like(numbers)

    monkeypatch.setattr(noise, "bits", no_bits)
    monkeypatch.setattr(noise, "encrypted", no_words)
    with jax.enable_x64(dtype == "float64"):
        extreme = jax.jit(lambda key: noise.standard_normal.__wrapped__(key, shape, jnp.dtype(dtype)))
        values = np.asarray(extreme(jax.random.key(0)))
    assert values.shape == shape
    np.testing.assert_allclose(np.abs(values), -stats.norm.ppf(2.0**-65), rtol=1e-6)


def test_distribution():
    values = np.concatenate([draw(key, LARGE).ravel() for key in KEYS])
    assert stats.kstest(values, "norm").pvalue > 1e-4


@pytest.mark.slow
def test_distribution_of_a_large_array():
    assert stats.kstest(draw(jax.random.key(1), (2**21,)), "norm").pvalue > 1e-4


def test_tail_frequencies_of_sixteen_million_draws():
    counts = np.zeros(3)
    thresholds = np.array([3.5, 4.5, 5.0])  # two-sided; 3.49 is where refinement begins
    for seed in range(8):
        size = np.abs(draw(jax.random.key(seed), (2**21,)))
        counts += (size[:, None] > thresholds).sum(0)
    expected = 2 * stats.norm.sf(thresholds) * 8 * 2**21
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all(), (counts, expected)


@pytest.mark.slow
def test_values_beyond_the_reach_of_float32_uniforms_occur():
    """Trap 31: jax.random.normal in float32 never passes about 5.42; here P(|Z| > 5.5) has its right frequency."""
    total, beyond = 2**32, 0

    @jax.jit
    def step(key):
        values = noise.standard_normal(key, (2**23,), jnp.float32)
        return (jnp.abs(values) > 5.5).sum()

    for seed in range(total // 2**23):
        beyond += int(step(jax.random.key(seed)))
    expected = total * 2 * stats.norm.sf(5.5)
    assert abs(beyond - expected) < 5 * np.sqrt(expected)


def test_large_and_small_arrays_are_drawn_alike():
    """Large arrays draw second words for a few rows at a time; the result is the same function of the key."""
    large = draw(KEYS[0], LARGE).ravel()
    small = draw(KEYS[0], SMALL).ravel()
    assert small.size == noise._LARGEST_SMALL == large.size - 1
    np.testing.assert_array_equal(large[:-1], small)


@pytest.mark.parametrize("shape", [(), SMALL, LARGE], ids=str)
def test_the_words_are_those_of_jax_random(shape):
    """A word for each entry, and one more, of its row's own key, where the first is extreme."""
    values = draw(KEYS[0], shape)
    assert values.shape == shape
    assert_close(values.ravel(), expected()[0, : values.size])


def test_second_words_are_of_a_key_for_each_row():
    """They only show in values far out, so the words themselves are compared."""
    rows = np.array([0, 1, 5], np.uint32)

    @jax.jit
    def words_and_those_of_jax_random(key):
        first, second = noise._first_and_second(jax.random.key_data(key))
        ours = jnp.stack([*first, *second]), noise._second_words(second, rows)

        halves = jax.random.split(key)
        row_keys = jax.vmap(lambda row: jax.random.fold_in(halves[1], row))(rows)
        theirs = jax.vmap(lambda row_key: jax.random.bits(row_key, (64,)))(row_keys)
        return ours, (jax.random.key_data(halves).reshape(-1), theirs)

    ours, theirs = words_and_those_of_jax_random(jax.random.key(9))
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_arrays_drawn_together_are_as_drawn_alone():
    shapes = [(3,), (70, 5), (), (0, 4), SMALL, LARGE, (3,), (64,)]
    keys = [*KEYS[:-1], jax.random.key(4, impl="rbg")]
    together = noise.standard_normals(keys, shapes, [jnp.dtype("float32")] * len(shapes))
    alone = [*expected()[:-1], draw(keys[-1], shapes[-1])]
    for values, shape, of_one in zip(together, shapes, alone, strict=True):
        assert values.shape == shape
        assert_close(np.ravel(values), of_one[: values.size])
    assert not np.allclose(together[0], together[6])


def test_the_program_does_not_grow_with_the_number_of_small_arrays():
    def num_lines(num_arrays):
        shapes = [(5,)] * num_arrays
        dtypes = [jnp.dtype("float32")] * num_arrays
        keys = jax.random.split(jax.random.key(4), num_arrays)
        program = jax.jit(lambda keys: noise.standard_normals(list(keys), shapes, dtypes)).lower(keys)
        return program.compile().as_text().count("xor(")

    assert num_lines(8) <= num_lines(2)


def test_same_values_under_vmap_and_jit():
    @jax.jit
    @jax.vmap
    def draw_of_each(key):
        return noise.standard_normal(key, LARGE, jnp.float32)

    many = draw_of_each(KEYS)
    assert many.shape == (8, *LARGE)
    assert_close(np.reshape(many, (8, -1)), expected()[:, : 5 * 3277])


def test_float64_noise_has_float64_resolution():
    with jax.enable_x64(True):
        values = np.asarray(noise.standard_normal(jax.random.key(0), (50_000,), jnp.float64))
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert (values != values.astype(np.float32)).mean() > 0.99
    assert len(np.unique(values)) == len(values)


def test_add_gaussian_noise_is_float32_and_differs_by_step_and_leaf():
    size = 16_000
    params = {"a": jnp.zeros(size, jnp.bfloat16), "b": jnp.zeros(size, jnp.float16), "n": jnp.arange(3)}
    tx = gdpjax.add_gaussian_noise(2.0, jax.random.key(0))
    update = jax.jit(tx.update)
    first, state = update(params, tx.init(params))
    second, _ = update(params, state)
    assert first["a"].dtype == first["b"].dtype == jnp.float32
    np.testing.assert_array_equal(first["n"], params["n"])
    released = np.stack([first["a"], first["b"], second["a"], second["b"]])
    draws = np.asarray(released, np.float64) / 2
    for values in draws:
        assert stats.kstest(values, "norm").pvalue > 1e-4
        assert len(np.unique(values)) > 0.995 * size  # bf16 noise has about a hundred distinct values
    correlations = np.corrcoef(draws) - np.eye(4)
    assert np.abs(correlations).max() < 5 / np.sqrt(size)


@pytest.mark.parametrize("stddev", [-1.0, float("nan"), float("inf")])
def test_bad_stddev(stddev):
    with pytest.raises(ValueError, match="stddev must be"):
        gdpjax.add_gaussian_noise(stddev, jax.random.key(0))


@pytest.mark.parametrize(("impl", "size"), [(None, 8), ("rbg", 16)])
def test_every_bit_of_a_fresh_key_is_from_the_systems_entropy(impl, size, monkeypatch):
    """Trap 11: not a seed of 31 or 32 bits that a generator stretches."""
    drawn = bytes(range(101, 101 + size))
    monkeypatch.setattr("os.urandom", lambda count: drawn[:count])
    assert np.asarray(jax.random.key_data(gdpjax.fresh_key(impl))).tobytes() == drawn


def test_fresh_keys_differ():
    words = np.stack([jax.random.key_data(gdpjax.fresh_key()) for _ in range(10)])
    assert len(np.unique(words, axis=0)) == 10
    assert (np.bitwise_or.reduce(words, axis=0) >> 16 > 0).all()
