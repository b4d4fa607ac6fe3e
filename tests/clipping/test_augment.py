"""Augmentation multiplicity: the copies of an example are averaged before clipping, and count as one example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax

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


PARAMS = {"w": jax.random.normal(jax.random.key(0), (3, 2)), "b": jnp.zeros(())}
X = jax.random.normal(jax.random.key(1), (5, 4, 3)) * 2
Y = jnp.arange(5.0)


gradients_of_copies = fast(jax.vmap(jax.vmap(jax.grad(loss), (None, 0, None)), (None, 0, 0)))


def clipped_by_hand(grads, bound):
    """Sum over examples of the clipped gradients [B, ...], in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grads)]
    norms = np.sqrt(sum((leaf.reshape(len(leaf), -1) ** 2).sum(1) for leaf in leaves))
    scale = np.minimum(1, bound / norms)
    return [np.tensordot(scale, leaf, 1) for leaf in leaves]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bound", [0.7, 1e6])
def test_gradients_are_averaged_over_copies_before_clipping(strategy, bound):
    averaged = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)
    grad_fn = gdpjax.clipped_grad(averaged, bound, batch_argnums=(1, 2), **STRATEGIES[strategy])
    of_copies = gradients_of_copies(PARAMS, X, Y)
    expected = clipped_by_hand(jax.tree.map(lambda g: g.mean(1), of_copies), bound)
    for leaf, value in zip(jax.tree.leaves(fast(grad_fn)(PARAMS, X, Y)), expected, strict=True):
        np.testing.assert_allclose(leaf, value, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "multiplicity",
    [
        pytest.param(1, marks=pytest.mark.slow),
        3,
        pytest.param(32, marks=pytest.mark.slow),
    ],
)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm_whatever_the_multiplicity(
    multiplicity,
):
    """Trap 26. The same copies as rows of their own would move it by K clip norms."""

    def dot(w, x):
        return jnp.vdot(w, x)

    grad_fn = gdpjax.clipped_grad(gdpjax.average_augmentations(dot, multiplicity, augmented_argnums=1), 1.5)
    assert grad_fn.sensitivity(gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE) == 1.5
    rng = np.random.default_rng(multiplicity)
    w = np.zeros(3, np.float32)
    is_padding = np.arange(6) == 2
    call = fast(grad_fn)
    for scale in [100.0, 1.0, 0.1]:
        copies = rng.normal(size=(6, multiplicity, 3)) * scale + [50.0, 0, 0]
        copies = np.asarray(copies, np.float32)
        moved = np.asarray(call(w, copies), np.float64) - np.asarray(call(w, copies, is_padding=is_padding))
        assert 1.49 < np.linalg.norm(moved) <= 1.5
    as_rows = fast(gdpjax.clipped_grad(dot, 1.5))(w, copies[2])
    assert np.linalg.norm(as_rows) > 1.4 * multiplicity


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_copies_made_from_a_key_have_distinct_keys(strategy):
    averaged = gdpjax.average_augmentations(
        lambda w, x, key: (jnp.vdot(w, x), jax.random.key_data(key)),
        4,
        key_argnums=2,
        has_aux=True,
    )
    grad_fn = gdpjax.clipped_grad(
        averaged,
        1.0,
        key_argnums=2,
        has_aux=True,
        return_info=True,
        **STRATEGIES[strategy],
    )
    _, info = fast(grad_fn)(jnp.zeros(3), X[:, 0], jax.random.key(3))
    assert info.aux.shape == (5, 4, 2)
    assert len(np.unique(np.asarray(info.aux).reshape(20, 2), axis=0)) == 20
    first_of_second = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 1), 0)
    np.testing.assert_array_equal(info.aux[1, 0], jax.random.key_data(first_of_second))


def test_copies_made_from_a_key_are_averaged_too():
    averaged = gdpjax.average_augmentations(jitter, 4, key_argnums=3)
    grad_fn = gdpjax.clipped_grad(averaged, 0.7, batch_argnums=(1, 2), key_argnums=3)
    key, x = jax.random.key(7), X[:, 0]
    grad = fast(lambda x, y, i, k: jax.grad(jitter)(PARAMS, x, y, jax.random.fold_in(jax.random.fold_in(key, i), k)))
    rows = [[grad(x[i], Y[i], i, k) for k in range(4)] for i in range(5)]
    means = [jax.tree.map(lambda *g: np.stack(g).mean(0), *row) for row in rows]
    expected = clipped_by_hand(jax.tree.map(lambda *g: np.stack(g), *means), 0.7)
    for leaf, value in zip(jax.tree.leaves(fast(grad_fn)(PARAMS, x, Y, key)), expected, strict=True):
        np.testing.assert_allclose(leaf, value, rtol=2e-5, atol=1e-6)


def test_both_ways_at_once_and_keyword_arguments_are_shared():
    averaged = gdpjax.average_augmentations(
        lambda w, x, key, power=1: jnp.vdot(w, x["image"]) ** power * jax.random.uniform(key),
        4,
        augmented_argnums=1,
        key_argnums=2,
    )
    w = jnp.ones(3)
    key = jax.random.key(0)
    value = averaged(w, {"image": X[0]}, key, power=2)
    by_hand = [(X[0, k].sum()) ** 2 * jax.random.uniform(jax.random.fold_in(key, k)) for k in range(4)]
    np.testing.assert_allclose(value, np.mean(by_hand), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda: averaged(w, {"image": X[0]}, key, power=2))(), value, rtol=1e-5)


def test_one_copy_is_the_loss_itself_and_a_bad_copy_removes_its_example():
    averaged = gdpjax.average_augmentations(loss, 1, augmented_argnums=1)
    one = fast(gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2)))(PARAMS, X[:, :1], Y)
    plain = fast(gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2)))(PARAMS, X[:, 0], Y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, plain)
    four = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)
    grad_fn = gdpjax.clipped_grad(four, 1.0, batch_argnums=(1, 2))
    padded = fast(lambda x, is_padding: grad_fn(PARAMS, x, Y, is_padding=is_padding))
    poisoned = padded(X.at[2, 3, 0].set(jnp.nan), np.zeros(5, bool))
    removed = padded(X, np.arange(5) == 2)
    jax.tree.map(np.testing.assert_array_equal, poisoned, removed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "each once"),
        ({"augmented_argnums": 1, "key_argnums": 1}, "each once"),
        ({"augmented_argnums": (1, 1)}, "each once"),
        ({"augmented_argnums": -1}, "argument numbers >= 0"),
        ({"augmented_argnums": 1, "multiplicity": 0}, "multiplicity must be"),
        ({"augmented_argnums": 1, "multiplicity": 2.5}, "multiplicity must be"),
        ({"augmented_argnums": 1, "multiplicity": None}, "multiplicity must be"),
        ({"augmented_argnums": 1, "loss_fn": 3}, "function of one example"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gdpjax.average_augmentations(**{"loss_fn": loss, "multiplicity": 4, **options})
    with pytest.raises(ValueError, match="static"):
        jax.jit(lambda k: gdpjax.average_augmentations(loss, k, augmented_argnums=1)(PARAMS, X[0], Y[0]))(4)


def test_shapes_without_the_axis_of_copies_are_refused():
    averaged = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)
    grad_fn = gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2))
    with pytest.raises(
        ValueError,
        match=r"argument 1 of one example .* 4 augmented copies, got shape \(3,\)",
    ):
        grad_fn(PARAMS, X[:, 0], Y)
    with pytest.raises(ValueError, match="keep_batch_dim"):
        gdpjax.clipped_grad(averaged, 1.0, batch_argnums=(1, 2), keep_batch_dim=True)(PARAMS, X, Y)
    with pytest.raises(ValueError, match=r"argument 2 of one example .* got shape \(\)"):
        gdpjax.average_augmentations(loss, 4, augmented_argnums=(1, 2))(PARAMS, X[0], Y[0])
    with pytest.raises(ValueError, match="holds no arrays"):
        averaged(PARAMS, {}, Y[0])
    with pytest.raises(ValueError, match="expected at least 2 positional"):
        averaged(PARAMS, x=X[0], y=Y[0])
    with pytest.raises(ValueError, match="one typed PRNG key"):
        gdpjax.average_augmentations(jitter, 4, key_argnums=3)(PARAMS, X[0, 0], Y[0], 0)
    for result, options in [
        (lambda w, x: x, {}),
        (lambda w, x: x.size, {}),
        (lambda w, x: (w.sum(), x), {}),
    ]:
        with pytest.raises(ValueError, match="loss_fn"):
            gdpjax.average_augmentations(result, 4, augmented_argnums=1, **options)(PARAMS["w"], X[0])
    with pytest.raises(ValueError, match="must return"):
        gdpjax.average_augmentations(lambda w, x: w.sum(), 4, augmented_argnums=1, has_aux=True)(PARAMS["w"], X[0])
