"""A run refuses what would let a repeated chunk meet other data, or be taken twice."""

import pytest

import gdpjax
from gdpjax.training import start_run
from tests.training import killed


def test_a_callback_cannot_advance_the_run_that_calls_it(tmp_path):
    """The steps of the inner call would be taken in the middle of a chunk that is on record."""
    run = start_run(tmp_path / "run", *killed.build(), key=gdpjax.fresh_key(), scan=False)
    with pytest.raises(ValueError, match="called by a callback"):
        run.advance(3, on_step=lambda done: run.advance(1))

    # The chunk is repeated then, and the run goes on.
    run.advance(3)
    assert run.step == 3
    assert run.ledger.num_steps == 3


def test_training_and_data_of_a_run_cannot_be_replaced(tmp_path):
    """A chunk that is repeated meets the same data."""
    training, params, data = killed.build()
    run = start_run(tmp_path / "run", training, params, data, key=gdpjax.fresh_key(), scan=False)
    assert run.training is training
    assert run.data.arrays[0] is data.arrays[0]
    for name in ("training", "data"):
        with pytest.raises(AttributeError):
            setattr(run, name, None)
