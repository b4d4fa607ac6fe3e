"""Random words are those of jax.random; Gaussian noise: distribution, tail, independence, nothing shortens it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gdpjax
from gdpjax._core import keys, noise, threefry

SMALL = (128, 128)
"""The shape of the largest array that is drawn as small ones are."""
LARGE = (5, 3277)
"""The shape of an array of one entry more."""


def draw(key, shape):
    """Return float32 noise, as float64."""
    values = noise.standard_normal(key, shape, jnp.float32)
    return np.asarray(values, np.float64)


def from_jax(key):
    """Return the normal values of a key's first 257 rows, with all words from `jax.random`."""
    num_rows = 257
    first, second = jax.random.split(key)
    words = jax.random.bits(first, (num_rows, 64))

    def second_words_of(row):
        return jax.random.bits(jax.random.fold_in(second, row), (64,))

    second_words = jax.vmap(second_words_of)(jnp.arange(num_rows))
    values = noise._refined(words, second_words, noise._from_one_word(words))
    return values.reshape(-1)


KEYS = jax.random.split(jax.random.key(8), 8)


@functools.cache
def expected():
    """Return what each of `KEYS` draws, [8, entries]: arrays of fewer entries begin with the same values."""
    return np.asarray(jax.jit(jax.vmap(from_jax))(KEYS))


def assert_close(values, truth):
    """Assert that values are equal but for the rounding of another compiled program."""
    np.testing.assert_allclose(values, truth, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(0,), (), (1,), (7,), (3, 5, 7), (130, 127), (threefry.FEWEST_ENTRIES + 1,)])
def test_our_words_are_those_of_jax(shape):
    """Our own words and those of `keys.bits` are JAX's, for arrays of any size."""

    @jax.jit
    def draw_words(key):
        own = threefry.threefry_words(jax.random.key_data(key), shape)
        return own, keys.bits(key, shape), jax.random.bits(key, shape)

    own, bits, expected = draw_words(KEYS[0])
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(bits, expected)


def test_known_answers_of_threefry():
    """The words are those of the reference: Random123's kat_vectors for Threefry-2x32 with 20 rounds."""
    answers = [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    encrypted = jax.jit(lambda key, counter: threefry._encrypted(list(key), *counter))
    for key, counter, expected in answers:
        found = encrypted(np.uint32(key), np.uint32(counter))
        assert [int(word) for word in found] == list(expected)


def test_inversion_is_accurate_over_the_whole_range():
    """Values of one word and of two are quantiles of the normal distribution."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    second_words = rng.integers(0, 2**32, 100_000, dtype=np.uint32)

    # One word, where the tail is not extreme.
    k = (words & 0x7FFFFFFF).astype(np.float64)
    is_central = k >= 2**19
    sign = np.where(words >> 31, -1, 1)
    exact = -stats.norm.ppf((k + 0.5) / 2**32) * sign
    values = np.asarray(jax.jit(noise._from_one_word)(words))
    error = np.abs(values - exact)
    assert error[is_central].max() < 1e-6

    # Two words, of tails down to 2^-63.
    small = (words & 0x7FFFF) >> (second_words % 20).astype(np.uint32)
    tail = (small + (second_words + 0.5) / 2**32) / 2**31
    exact = -stats.norm.ppf(tail / 2)
    values = jax.jit(noise._from_two_words)(small, second_words)
    np.testing.assert_allclose(values, exact, rtol=1e-6)
    assert exact.max() > 7


FEW_MANY_AND_WIDE = [((3, 17), "float32"), ((64 * 300,), "float32"), ((5,), "float64")]


@pytest.mark.parametrize(("shape", "dtype"), FEW_MANY_AND_WIDE)
def test_noise_of_extreme_words_is_beyond_nine_standard_deviations(shape, dtype, monkeypatch):
    """Trap 31: the whole of `standard_normal` uses the words to their last bit, in few rows, in many and in float64."""

    def zero_bits(key, shape):
        return jnp.zeros(shape, jnp.uint32)

    def zero_words(keys, numbers):
        return jnp.zeros_like(numbers), jnp.zeros_like(numbers)

    monkeypatch.setattr(noise, "bits", zero_bits)
    monkeypatch.setattr(noise, "encrypted", zero_words)
    with jax.enable_x64(dtype == "float64"):
        # The function is traced anew: programs that are compiled already draw other words.
        draw_anew = jax.jit(lambda key: noise.standard_normal.__wrapped__(key, shape, jnp.dtype(dtype)))
        values = np.asarray(draw_anew(jax.random.key(0)))
    assert values.shape == shape
    np.testing.assert_allclose(np.abs(values), -stats.norm.ppf(2.0**-65), rtol=1e-6)


def test_distribution():
    """A Kolmogorov-Smirnov test finds no other distribution."""
    values = np.concatenate([draw(key, LARGE).ravel() for key in KEYS])
    assert stats.kstest(values, "norm").pvalue > 1e-4


def test_tail_frequencies_of_sixteen_million_draws():
    """The numbers of values far out are right within five standard errors."""
    thresholds = np.array([3.5, 4.5, 5.0])  # two-sided; 3.49 is where refinement begins
    num_draws = 2**21
    counts = np.zeros(3)
    for seed in range(8):
        sizes = np.abs(draw(jax.random.key(seed), (num_draws,)))
        counts += (sizes[:, None] > thresholds).sum(0)
    expected = 2 * stats.norm.sf(thresholds) * 8 * num_draws
    error = np.abs(counts - expected)
    assert (error < 5 * np.sqrt(expected)).all(), (counts, expected)


@pytest.mark.slow
def test_values_beyond_the_reach_of_float32_uniforms_occur():
    """Trap 31: jax.random.normal in float32 never passes about 5.42; here P(|Z| > 5.5) has its right frequency."""
    num_draws = 2**32
    num_each = 2**23

    @jax.jit
    def count_beyond(key):
        values = noise.standard_normal(key, (num_each,), jnp.float32)
        return (jnp.abs(values) > 5.5).sum()

    count = 0
    for seed in range(num_draws // num_each):
        count += int(count_beyond(jax.random.key(seed)))
    expected = num_draws * 2 * stats.norm.sf(5.5)
    assert abs(count - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("shape", [(), SMALL, LARGE], ids=str)
def test_the_words_are_those_of_jax_random(shape):
    """Each entry has a word of `jax.random`, and one more, of its row's own key, where the first is extreme."""
    values = draw(KEYS[0], shape)
    assert values.shape == shape
    assert_close(values.ravel(), expected()[0, : values.size])


def test_second_words_are_of_a_key_for_each_row():
    """The second words are those of `jax.random` with a key for each row.

    They only show in values far out, so the words themselves are compared.
    """
    rows = np.array([0, 1, 5], np.uint32)

    def of_the_library(key):
        first, second = noise._first_and_second(jax.random.key_data(key))
        return jnp.stack([*first, *second]), noise._second_words(second, rows)

    def of_jax_random(key):
        halves = jax.random.split(key)
        row_keys = jax.vmap(lambda row: jax.random.fold_in(halves[1], row))(rows)
        second_words = jax.vmap(lambda row_key: jax.random.bits(row_key, (64,)))(row_keys)
        return jax.random.key_data(halves).reshape(-1), second_words

    both = jax.jit(lambda key: (of_the_library(key), of_jax_random(key)))
    (halves, words), (expected_keys, expected_words) = both(jax.random.key(9))
    np.testing.assert_array_equal(halves, expected_keys)
    np.testing.assert_array_equal(words, expected_words)


def test_arrays_drawn_together_are_as_drawn_alone():
    """Each of several arrays has the values that its key alone draws."""
    shapes = [(3,), (70, 5), (), (0, 4), SMALL, LARGE, (3,), (64,)]
    each = [*KEYS[:-1], jax.random.key(4, impl="rbg")]
    dtypes = [jnp.dtype("float32")] * len(shapes)
    together = noise.standard_normals(each, shapes, dtypes)
    alone = [*expected()[:-1], draw(each[-1], shapes[-1])]
    for values, shape, values_alone in zip(together, shapes, alone, strict=True):
        assert values.shape == shape
        assert_close(np.ravel(values), values_alone[: values.size])
    # Two arrays of one shape, with different keys.
    assert not np.allclose(together[0], together[6])


@pytest.mark.parametrize("shape", [(), (65,), (3, 5, 7), (64 * 300,), (130, 129)])
def test_noise_by_entry_is_that_of_rows(shape):
    """What accelerators draw, in the shape of the array, has the bits of what a CPU draws in rows of 64."""
    draw_by_entry = jax.jit(noise._normal_by_entry, static_argnums=1)
    for key in KEYS[:3]:
        by_entry = draw_by_entry(jax.random.key_data(key), shape)
        np.testing.assert_array_equal(by_entry, noise.standard_normal(key, shape, jnp.dtype("float32")))
    data = jax.random.key_data(KEYS[:3])
    mapped = jax.vmap(lambda one: draw_by_entry(one, shape))(data)
    np.testing.assert_array_equal(mapped[2], draw_by_entry(data[2], shape))


def test_accelerators_draw_in_place():
    """Their program has no loop and no row: each entry is drawn where it is, by the device that holds it."""
    add = gdpjax.add_gaussian_noise(1.0, key=jax.random.key(0))
    grads = {"w": np.ones((300, 100), np.float32), "b": np.ones(100, np.float32)}
    state = add.init(grads)

    def text(platform):
        return jax.jit(add.update).trace(grads, state).lower(lowering_platforms=(platform,)).as_text()

    assert "stablehlo.while" in text("cpu")
    for platform in ("tpu", "cuda"):
        for word in ("stablehlo.while", "stablehlo.gather", "64xui32>"):
            assert word not in text(platform)


def test_float64_noise_has_float64_resolution():
    """Values in float64 are normal, hardly ever float32 numbers, and all different."""
    with jax.enable_x64(True):
        values = np.asarray(noise.standard_normal(jax.random.key(0), (50_000,), jnp.float64))
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert (values != values.astype(np.float32)).mean() > 0.99
    assert len(np.unique(values)) == len(values)


def test_add_gaussian_noise_is_float32_and_differs_by_step_and_leaf():
    """The noise of every leaf and step is normal, in float32, and uncorrelated with the others."""
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


@pytest.mark.parametrize(("impl", "size"), [(None, 8), ("rbg", 16)])
def test_every_bit_of_a_fresh_key_is_from_the_systems_entropy(impl, size, monkeypatch):
    """Trap 11: the bits of a fresh key are the system's, not a seed of 31 or 32 bits that a generator stretches."""
    entropy = bytes(range(101, 101 + size))
    monkeypatch.setattr("os.urandom", lambda count: entropy[:count])
    words = np.asarray(jax.random.key_data(gdpjax.fresh_key(impl)))
    assert words.tobytes() == entropy


def test_fresh_keys_differ():
    """Ten fresh keys are all different, and have bits in the upper half of each word."""
    words = np.stack([jax.random.key_data(gdpjax.fresh_key()) for _ in range(10)])
    assert len(np.unique(words, axis=0)) == 10
    bits_of_any = np.bitwise_or.reduce(words, axis=0)
    assert (bits_of_any >> 16 > 0).all()
