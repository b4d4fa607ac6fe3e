"""Runs on batches of whole epochs: no example takes part twice in an epoch, wherever the run goes on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.sampling import RandomAllocation, Shuffled
from gdpjax.training import Info, batch_source, make_plan, private_training, resume_run, start_run
from tests.training.interrupted import committed, finished, interrupted

N = 60
ROWS = np.outer(np.arange(1, N + 1), [1, 0, 0]).astype(np.float32)
"""The norm of a gradient is the number of its row, from 1."""
PARAMS = {"w": jnp.zeros(3)}
KEY = jax.random.key(21)
SCHEMES = {"allocation": RandomAllocation(N, 9, epochs=4), "shuffled": Shuffled(N, 9, epochs=4)}


@pytest.fixture(scope="module", params=SCHEMES)
def training(request):
    """A training of four epochs of seven steps, whose gradients do not depend on the parameters."""
    relation = gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE
    batches = SCHEMES[request.param]
    plan = make_plan(batches, clip=1.0, delta=1e-5, noise_multiplier=2.0, neighboring_relation=relation)
    return private_training(plan, lambda params, x, y: params["w"] @ x, optax.sgd(0.1))


def times_taken(infos):
    """Return how often each row took part in each epoch, [epochs, rows], by the `Info` of the steps."""
    taken = np.zeros((len(infos), N), int)
    for step, info in enumerate(infos):
        rows = np.rint(np.asarray(info.norms)[~np.asarray(info.is_padding)]).astype(int) - 1
        np.add.at(taken[step], rows, 1)
    return taken.reshape(4, 7, N).sum(axis=1)


def lost_batches(training, steps):
    """Return the batches of some steps of the run, drawn once more on the host."""
    source = batch_source(training.plan, training.init(PARAMS, KEY), N)
    return [Info(None, np.linalg.norm(ROWS[source[t].indices], axis=1), source[t].is_padding, None) for t in steps]


def test_on_another_machine_no_example_takes_part_twice_in_an_epoch(training, tmp_path, moved_to):
    """The lost steps are charged and left out, the noise has a new key, and the steps of the examples stay."""
    parts = training, PARAMS, training.place(ROWS, np.zeros(N))
    kept = interrupted(parts, tmp_path / "run", 12, 5, KEY)
    moved_to(cpu="another")
    run = resume_run(tmp_path / "run", *parts, scan=False)
    assert (run.step, run.num_lost) == (15, 5)
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps, event.num_steps) == (3, 6, 15)
    before = training.init(PARAMS, KEY)
    sampling_keys = [jax.random.key_data(state.sampling_key) for state in (run.state, before)]
    np.testing.assert_array_equal(*sampling_keys)
    assert not np.array_equal(run.state.opt_state[0].key_data, before.opt_state[0].key_data)

    # The lost steps take the place of what was not kept.
    rest = finished(run)
    assert (times_taken(kept + lost_batches(training, range(10, 15)) + rest) == 1).all()
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps) == (4, 0)


def test_with_rows_that_moved_it_does_not_go_on(training, tmp_path):
    """An example at another row might take part twice in an epoch."""
    parts = training, PARAMS, training.place(ROWS, np.zeros(N))
    committed(start_run(tmp_path / "run", *parts, key=jax.random.key(22), scan=False)).advance(5)
    moved = training.place(ROWS[::-1], np.zeros(N))
    with pytest.raises(ValueError, match="the step of an example belongs to its row"):
        resume_run(tmp_path / "run", training, PARAMS, moved, scan=False)
    assert resume_run(tmp_path / "run", *parts, scan=False).step == 5
