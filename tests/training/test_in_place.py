"""A chunk's steps are written in place: two states at most, nothing of the user's deleted, the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.training import private_training, start_run
from tests.compilations import Compilations
from tests.training.interrupted import committed, stopped

pytestmark = pytest.mark.usefixtures("cheap_noise")
KEY = jax.random.key(5)
NUM_STEPS = 4
# Shapes that nothing else has, to be found among all arrays of the process.
TRAINED, FROZEN = (37, 3), (41, 37)


PLAN = gdpjax.make_plan(
    clip=1.0,
    max_examples=50,
    expected_batch_size=8,
    num_steps=NUM_STEPS,
    delta=1e-5,
    noise_multiplier=1.0,
)


@pytest.fixture(scope="module")
def small():
    """Training, parameters and data: a frozen base and a head that is trained, by Adam."""

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["base"] @ params["head"], y)

    trainable = {"base": False, "head": True}
    # No moments are kept of the base.
    optimizer = optax.masked(optax.adam(0.1), trainable)
    training = private_training(PLAN, loss, optimizer, trainable=trainable)
    data = training.place(jax.random.normal(KEY, (50, 41)), jnp.arange(50) % 3)
    params = {"base": jax.random.normal(KEY, FROZEN), "head": jnp.zeros(TRAINED)}
    return training, params, data


@pytest.fixture(scope="module")
def stepped(small):
    """The state after all steps, taken by the training itself."""
    training, params, data = small
    state = training.init(params, KEY)
    for _ in range(NUM_STEPS):
        state, _ = training.step(state, data)
    return state


def begun(folder, parts, key=KEY, scan=False):
    return start_run(folder, *parts, key=key, scan=scan)


def buffers(shape):
    """The different arrays of this shape that any device holds."""
    pointers = set()
    for array in jax.live_arrays():
        if array.shape == shape:
            pointers |= {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
    return pointers


def equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("scan", [True, False], ids=["scan", "one by one"])
def test_the_bits_are_those_of_the_steps(small, stepped, tmp_path, scan):
    """Parameters and optimizer state are those of the training's own steps."""
    run = begun(tmp_path / "run", small, scan=scan)
    run.advance(2)
    run.advance(2)
    if not scan:
        equal((run.state.params, run.state.opt_state), (stepped.params, stepped.opt_state))
        return

    # A scan is compiled apart: the same up to rounding.
    ours, theirs = jax.tree.leaves(run.state.params), jax.tree.leaves(stepped.params)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scan", [True, False], ids=["scan", "one by one"])
def test_what_the_user_holds_stays(small, tmp_path, scan):
    """The parameters given, and the states of earlier chunks."""
    _, params, _ = small
    given = jax.tree.map(np.array, params)
    run = begun(tmp_path / "run", small, scan=scan)
    initial = run.state
    run.advance(2)
    held = run.state
    copied = jax.tree.map(np.array, (held.params, held.opt_state))
    run.advance(2)
    equal(params, given)
    equal(initial.params, given)
    equal((held.params, held.opt_state), copied)


def test_a_step_has_two_states_at_most(small, tmp_path):
    """A leaf that is trained, with two moments of Adam: those kept and those in work; one frozen base."""
    run = begun(tmp_path / "run", small)
    before_trained = buffers(TRAINED)
    before_frozen = buffers(FROZEN)
    most = []

    def look(done):
        jax.block_until_ready(jax.live_arrays())
        new_trained = buffers(TRAINED) - before_trained
        new_frozen = buffers(FROZEN) - before_frozen
        most.append((len(new_trained), len(new_frozen)))

    run.advance(NUM_STEPS, on_step=look)
    assert most == [(3, 0)] * NUM_STEPS


def test_the_loop_writes_the_new_state_over_the_old_one(small, tmp_path):
    """All leaves that change are donated to it, too."""
    run = begun(tmp_path / "run", small, key=jax.random.key(66), scan=True)
    changing, fixed = run._steps._apart(run.state)
    memory = run._steps._loop.lower(changing, fixed, small[2], np.int32(1)).compile().memory_analysis()
    assert memory.alias_size_in_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(changing))


def test_an_interrupted_chunk_is_repeated_from_the_state_that_was_kept(small, stepped, tmp_path):
    """The steps that were taken have left no trace in it."""
    run = begun(tmp_path / "run", small)
    stopped(run, NUM_STEPS, at=3, by=KeyboardInterrupt)
    assert run.step == 0
    equal(run.state.params, small[1])
    run.advance(1)
    assert run.finished
    equal((run.state.params, run.state.opt_state), (stepped.params, stepped.opt_state))


def test_an_interrupt_while_the_loop_compiles_costs_nothing(tmp_path):
    """A chunk that is on record is charged if the run goes on with another program."""
    training = private_training(PLAN, lambda w, x, y: (x @ w - y) ** 2, optax.sgd(0.1))
    data = training.place(jnp.ones((50, 3)), jnp.zeros(50))
    run = start_run(tmp_path / "run", training, jnp.zeros(3), data, key=jax.random.key(67))

    class Interrupted(Compilations):
        def _listen(self, event, duration, **kwargs):
            if event == "/jax/core/compile/backend_compile_duration":
                raise KeyboardInterrupt

    with Interrupted(), pytest.raises(KeyboardInterrupt):
        run.advance(3)
    assert not run.journal.exists()
    run.advance(3)
    assert run.step == 3


def test_leaves_that_share_their_memory(tmp_path):
    """One array twice among the parameters is two leaves, each trained by its own gradient."""
    shared = jnp.full((2,), 0.5)

    def loss(params, x):
        return jnp.sum((params["a"] - 2 * params["b"]) ** 2) * x

    training = private_training(PLAN, loss, optax.sgd(0.1), num_arrays=1)
    data = training.place(jnp.ones(50))
    run = committed(begun(tmp_path / "run", (training, {"a": shared, "b": shared}, data), key=jax.random.key(6)))
    run.advance(NUM_STEPS)
    assert not np.array_equal(run.state.params["a"], run.state.params["b"])
    equal(shared, jnp.full((2,), 0.5))
