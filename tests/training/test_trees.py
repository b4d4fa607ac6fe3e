"""Data, batches and users whose examples are pytrees of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.training import batch_source, make_plan, private_training, start_run
from tests.training.interrupted import stopped

pytestmark = pytest.mark.usefixtures("cheap_noise")
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


def test_every_leaf_is_in_the_fingerprint(tmp_path):
    """A run that goes on with other data takes new keys."""
    x, y = TREE
    changed = [TREE, (x, (1 - LABELS,)), *((x | {leaf: np.flip(x[leaf])}, y) for leaf in ("age", "image"))]
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
    stopped(run, 1, by=KeyboardInterrupt)
    if change == "array":
        images[:] = 0
    else:
        owned = data if change == "dict" else run.data
        owned.arrays[0]["image"] = jnp.zeros((40, 4))
    (info,) = run.advance(1)
    expected, _ = DEEP.step(DEEP.init(PARAMS, KEY), placed)
    np.testing.assert_allclose(run.state.params["w"], expected.params["w"], rtol=1e-5)
    assert info.norms.shape == (PLAN.capacity,)
