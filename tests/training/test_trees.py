"""Data, batches and users whose examples are pytrees of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import gdpjax
from gdpjax.training import batch_source, group_by_user, make_plan, private_training, resume_run, start_run

KEY = jax.random.key(5)
PLAN = make_plan(
    clip=1.0,
    max_examples=40,
    expected_batch_size=10,
    num_steps=6,
    delta=1e-5,
    noise_multiplier=2.0,
)
IMAGES = np.random.default_rng(0).normal(size=(35, 4)).astype(np.float32)
AGES = np.arange(35, dtype=np.float32) / 35
LABELS = (IMAGES[:, 0] > 0).astype(np.float32)
TREE = ({"image": IMAGES, "age": AGES}, (LABELS,))
PARAMS = {"w": jnp.zeros(4), "v": jnp.zeros(())}


def loss_of_arrays(params, image, age, label):
    return jnp.square(jnp.tanh(image @ params["w"] + age * params["v"]) - label)


def loss_of_tree(params, x, y):
    return loss_of_arrays(params, x["image"], x["age"], y[0])


FLAT = private_training(PLAN, loss_of_arrays, optax.adam(0.1), num_arrays=3)
DEEP = private_training(PLAN, loss_of_tree, optax.adam(0.1))


def assert_same(first, second):
    ours, theirs = jax.tree.leaves(first.params), jax.tree.leaves(second.params)
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def of_arrays():
    """The final state of a training whose examples are three arrays."""
    state, _ = FLAT.run_steps(FLAT.init(PARAMS, KEY), FLAT.place(IMAGES, AGES, LABELS), 6)
    return state


def test_a_tree_trains_as_its_arrays(of_arrays):
    """One compiled scan, steps on batches of a loader, and what they release: bit for bit."""
    state, _ = DEEP.run_steps(DEEP.init(PARAMS, KEY), DEEP.place(*TREE), 6)
    assert_same(state, of_arrays)

    stepped = DEEP.init(PARAMS, KEY)
    source = batch_source(PLAN, stepped, 35)
    for step in range(6):
        *batch, is_padding = source.take(step, *TREE)
        stepped, _ = DEEP.step_on(stepped, *batch, is_padding=is_padding)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), stepped.params, state.params)


def test_a_module_trains_on_trees():
    """`gdpjax.nnx` passes them on."""
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))

    def of_arrays(model, image, age, label):
        return jnp.square(model(image)[0] + age - label)

    def of_tree(model, x, y):
        return of_arrays(model, x["image"], x["age"], y[0])

    states = []
    for loss, data in [(of_arrays, (IMAGES, AGES, LABELS)), (of_tree, TREE)]:
        training = gdpjax.nnx.private_training(PLAN, model, loss, optax.sgd(0.1), num_arrays=len(data))
        state, _ = training.run_steps(training.init(model, KEY), training.place(*data), 2)
        states.append(state)
    assert_same(*states)


def test_a_run_in_a_folder_resumes(of_arrays, tmp_path):
    data = DEEP.place(*TREE)
    start_run(tmp_path / "run", DEEP, PARAMS, data, key=KEY).advance(4)
    run = resume_run(tmp_path / "run", DEEP, PARAMS, data)
    run.advance(2)
    assert (run.finished, run.num_lost) == (True, 0)
    assert_same(run.state, of_arrays)


def test_every_leaf_is_in_the_fingerprint(tmp_path):
    """A run that goes on with other data takes new keys."""
    x, y = TREE
    changed = [TREE, (x, (1 - LABELS,))]
    for leaf in ("age", "image"):
        changed.append((x | {leaf: np.flip(x[leaf])}, y))
    digests = set()
    for number, tree in enumerate(changed):
        folder = tmp_path / str(number)
        run = start_run(folder, DEEP, PARAMS, DEEP.place(*tree), key=gdpjax.fresh_key())
        digests.add(run.fingerprint["data"])
    assert len(digests) == 4


@pytest.mark.parametrize("change", ["array", "dict", "data of the run"])
def test_a_run_owns_its_data(change, tmp_path):
    """A chunk that is interrupted and repeated meets the same rows, whatever the caller did to them in between."""
    placed = DEEP.place(*TREE)
    images = np.array(placed.arrays[0]["image"])
    data = placed._replace(arrays=(placed.arrays[0] | {"image": images}, placed.arrays[1]))
    run = start_run(tmp_path / "run", DEEP, PARAMS, data, key=KEY, scan=False)

    def interrupt(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.advance(1, on_step=interrupt)
    if change == "array":
        images[:] = 0
    else:
        owned = data if change == "dict" else run.data
        owned.arrays[0]["image"] = jnp.zeros((40, 4))
    (info,) = run.advance(1)
    expected, _ = DEEP.step(DEEP.init(PARAMS, KEY), placed)
    np.testing.assert_allclose(run.state.params["w"], expected.params["w"], rtol=1e-5)
    assert info.norms.shape == (PLAN.capacity,)


def test_users_have_trees():
    ids = np.arange(35) % 7
    (x, (label,)), is_padding = group_by_user(ids, *TREE, max_per_user=6, key=KEY)
    (image, age, same_label), _ = group_by_user(ids, IMAGES, AGES, LABELS, max_per_user=6, key=KEY)
    np.testing.assert_array_equal(x["image"], image)
    np.testing.assert_array_equal(x["age"], age)
    np.testing.assert_array_equal(label, same_label)
    assert is_padding.shape == age.shape == (7, 6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (({"a": IMAGES, "b": AGES[1:]}, LABELS), r"one row per example, got leading axes \[35, 34, 35\]"),
        (({"a": IMAGES, "b": "text"}, LABELS), r"array 0 of the data\['b'\] must be an array of numbers"),
        (({"a": IMAGES, 1: AGES}, LABELS), "array 0 of the data must be a pytree that JAX can flatten"),
        (({"a": np.full(35, 2**40)}, LABELS), r"^array 0 of the data\['a'\] is an array of .* does not hold"),
    ],
)
def test_other_trees_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        DEEP.place(*data)


def test_lists_of_numbers_are_arrays():
    """As in versions that took arrays only."""
    placed = FLAT.place(IMAGES.tolist(), AGES.tolist(), tuple(LABELS.tolist()))
    for array, expected in zip(placed.arrays, (IMAGES, AGES, LABELS), strict=True):
        np.testing.assert_array_equal(array[:35], expected)
