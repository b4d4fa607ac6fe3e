"""Augmentation multiplicity: the copies of an example are averaged before clipping, and count as one example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax

SLOW = pytest.mark.slow
STRATEGIES = {
    "vmap": {},
    "microbatch": {"strategy": "microbatch", "microbatch_size": 2},
}


def loss(params, x, y):
    return (jnp.tanh(x @ params["w"]).sum() + params["b"] - y) ** 2


def jitter(params, x, y, key):
    """A loss that augments its example with the key it is given."""
    return loss(params, x + jax.random.normal(key, x.shape), y)


def fast(function):
    """Compiled as a whole without optimisation: compiling is nearly all the time that these tests take."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(3, 2)).astype(np.float32), "b": np.float32(0)}
X = 2 * RNG.normal(size=(5, 4, 3)).astype(np.float32)
Y = np.arange(5, dtype=np.float32)


def gradients_of_copies(params, x, y):
    """The gradients [B, K, ...] of all copies of all examples."""
    of_example = jax.vmap(jax.grad(loss), (None, 0, None))
    return jax.vmap(of_example, (None, 0, 0))(params, x, y)


def clipped_by_hand(grads, bound):
    """Sum over examples of the clipped gradients [B, ...], in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grads)]
    squares = sum((leaf.reshape(len(leaf), -1) ** 2).sum(axis=1) for leaf in leaves)
    scale = np.minimum(1, bound / np.sqrt(squares))
    return [np.tensordot(scale, leaf, 1) for leaf in leaves]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_averaged_over_copies_before_clipping(strategy):
    """Whether rows are clipped or not."""
    averaged = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)

    @fast
    def sum_and_gradients(bound):
        grad_fn = gdpjax.clipped_grad(averaged, bound, batch_argnums=(1, 2), **STRATEGIES[strategy])
        return grad_fn(PARAMS, X, Y), gradients_of_copies(PARAMS, X, Y)

    for bound in (0.7, 1e6):
        found, of_copies = sum_and_gradients(bound)
        means = {name: np.asarray(leaf).mean(axis=1) for name, leaf in of_copies.items()}
        expected = clipped_by_hand(means, bound)
        for leaf, value in zip(jax.tree.leaves(found), expected, strict=True):
            np.testing.assert_allclose(leaf, value, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("multiplicity", [pytest.param(1, marks=SLOW), 3, pytest.param(32, marks=SLOW)])
def test_one_example_moves_the_sum_by_at_most_the_clip_norm_whatever_the_multiplicity(
    multiplicity,
):
    """Trap 26. The same copies as rows of their own would move it by K clip norms."""
    averaged = gdpjax.average_augmentations(jnp.vdot, multiplicity, augmented_argnums=1)
    grad_fn = gdpjax.clipped_grad(averaged, 1.5)
    assert grad_fn.sensitivity(gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE) == 1.5
    rng = np.random.default_rng(multiplicity)
    w = np.zeros(3, np.float32)
    call = fast(grad_fn)
    for scale in [100.0, 1.0, 0.1]:
        copies = rng.normal(size=(6, multiplicity, 3)) * scale + [50.0, 0, 0]
        copies = copies.astype(np.float32)
        whole = np.float64(call(w, copies, is_padding=np.zeros(6, bool)))
        without = np.float64(call(w, copies, is_padding=np.arange(6) == 2))
        assert 1.49 < np.linalg.norm(whole - without) <= 1.5
    as_rows = fast(gdpjax.clipped_grad(jnp.vdot, 1.5))(w, copies[2])
    assert np.linalg.norm(as_rows) > 1.4 * multiplicity


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_copies_made_from_a_key_have_distinct_keys(strategy):
    """Copy k of row i has the key that is folded with i and with k."""

    def loss_and_key(w, x, key):
        return jnp.vdot(w, x), jax.random.key_data(key)

    averaged = gdpjax.average_augmentations(loss_and_key, 4, key_argnums=2, has_aux=True)
    options = {
        "key_argnums": 2,
        "has_aux": True,
        "return_info": True,
        **STRATEGIES[strategy],
    }
    grad_fn = gdpjax.clipped_grad(averaged, 1.0, **options)
    key = jax.random.key(3)
    _, info = fast(grad_fn)(np.zeros(3, np.float32), X[:, 0], key)
    assert info.aux.shape == (5, 4, 2)
    assert len(np.unique(np.asarray(info.aux).reshape(20, 2), axis=0)) == 20
    first_of_second = jax.random.fold_in(jax.random.fold_in(key, 1), 0)
    np.testing.assert_array_equal(info.aux[1, 0], jax.random.key_data(first_of_second))


def test_copies_made_from_a_key_are_averaged_too():
    """The gradients of a loss that augments its example itself."""
    averaged = gdpjax.average_augmentations(jitter, 4, key_argnums=3)
    grad_fn = gdpjax.clipped_grad(averaged, 0.7, batch_argnums=(1, 2), key_argnums=3)
    key = jax.random.key(7)
    x = X[:, 0]

    def gradient(i, k):
        key_of_copy = jax.random.fold_in(jax.random.fold_in(key, i), k)
        return jax.grad(jitter)(PARAMS, jnp.asarray(x)[i], jnp.asarray(Y)[i], key_of_copy)

    @fast
    def sum_and_gradients():
        of_example = jax.vmap(gradient, (None, 0))
        of_all = jax.vmap(of_example, (0, None))
        return grad_fn(PARAMS, x, Y, key), of_all(np.arange(5), np.arange(4))

    found, of_copies = sum_and_gradients()
    means = {name: np.asarray(leaf).mean(axis=1) for name, leaf in of_copies.items()}
    expected = clipped_by_hand(means, 0.7)
    for leaf, value in zip(jax.tree.leaves(found), expected, strict=True):
        np.testing.assert_allclose(leaf, value, rtol=2e-5, atol=1e-6)


def test_both_ways_at_once_and_keyword_arguments_are_shared():
    """Copies that are given and have keys of their own, of a loss with another argument."""

    def scaled(w, x, key, power=1):
        return jnp.vdot(w, x["image"]) ** power * jax.random.uniform(key)

    averaged = gdpjax.average_augmentations(scaled, 4, augmented_argnums=1, key_argnums=2)
    w = np.ones(3, np.float32)
    key = jax.random.key(0)

    @jax.jit
    def value_and_factors(image):
        factors = [jax.random.uniform(jax.random.fold_in(key, k)) for k in range(4)]
        return averaged(w, {"image": image}, key, power=2), factors

    value, factors = value_and_factors(X[0])
    by_hand = X[0].sum(axis=1) ** 2 * np.asarray(factors)
    np.testing.assert_allclose(value, by_hand.mean(), rtol=1e-5)
    np.testing.assert_allclose(averaged(w, {"image": X[0]}, key, power=2), value, rtol=1e-5)


def test_one_copy_is_the_loss_itself():
    """A single copy is clipped as the example is."""
    averaged = gdpjax.average_augmentations(loss, 1, augmented_argnums=1)

    @fast
    def both(x):
        one = gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2))(PARAMS, x[:, :1], Y)
        plain = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))(PARAMS, x[:, 0], Y)
        return one, plain

    one, plain = both(X)
    for name in PARAMS:
        np.testing.assert_allclose(one[name], plain[name], rtol=1e-5)


def test_a_bad_copy_removes_its_example():
    """To the bit, whatever its other copies are."""
    averaged = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)
    grad_fn = gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2))
    padded = fast(lambda x, is_padding: grad_fn(PARAMS, x, Y, is_padding=is_padding))
    spoiled = X.copy()
    spoiled[2, 3, 0] = np.nan
    poisoned = padded(spoiled, np.zeros(5, bool))
    removed = padded(X, np.arange(5) == 2)
    for name in PARAMS:
        np.testing.assert_array_equal(poisoned[name], removed[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "each once"),
        ({"augmented_argnums": 1, "key_argnums": 1}, "each once"),
        ({"augmented_argnums": (1, 1)}, "each once"),
        ({"augmented_argnums": -1}, "a whole number >= 0"),
        ({"augmented_argnums": 1, "multiplicity": 0}, "multiplicity must be"),
        ({"augmented_argnums": 1, "multiplicity": 2.5}, "multiplicity must be"),
        ({"augmented_argnums": 1, "multiplicity": None}, "multiplicity must be"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(options, message):
    """Numbers of arguments, and the number of copies, which is static."""
    with pytest.raises(ValueError, match=message):
        gdpjax.average_augmentations(**{"loss_fn": loss, "multiplicity": 4, **options})
    with pytest.raises(ValueError, match="known before compiling"):
        jax.jit(lambda k: gdpjax.average_augmentations(loss, k, augmented_argnums=1))(4)


def test_shapes_without_the_axis_of_copies_are_refused():
    """With the number of the argument, and what its shape should be."""
    averaged = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)
    both_augmented = gdpjax.average_augmentations(loss, 4, augmented_argnums=(1, 2))
    grad_fn = gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2))
    with pytest.raises(
        ValueError,
        match=r"argument 1 of one example .* 4 augmented copies, got shape \(3,\)",
    ):
        grad_fn(PARAMS, X[:, 0], Y)
    with pytest.raises(ValueError, match="keep_batch_dim"):
        gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2), keep_batch_dim=True)(PARAMS, X, Y)
    with pytest.raises(ValueError, match=r"argument 2 of one example .* got shape \(\)"):
        both_augmented(PARAMS, X[0], Y[0])


def test_what_is_no_key_and_no_loss_is_refused():
    """A number is no key; a vector, a whole number and a pair without has_aux are no loss."""
    with pytest.raises(ValueError, match="one typed PRNG key"):
        gdpjax.average_augmentations(jitter, 4, key_argnums=3)(PARAMS, X[0, 0], Y[0], 0)
    for result in (lambda w, x: x, lambda w, x: x.size, lambda w, x: (w.sum(), x)):
        with pytest.raises(ValueError, match="loss_fn"):
            gdpjax.average_augmentations(result, 4, augmented_argnums=1)(PARAMS["w"], X[0])
