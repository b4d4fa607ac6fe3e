"""The public constants of a run."""

import dataclasses

import jax
import pytest

import gdpjax
from experiments.config import PRESETS
from experiments.engine import _make_draw
from experiments.errors import CapacityExceededError
from experiments.plan import make_plan


@pytest.fixture(scope="module")
def mnist_plan():
    """The plan of the paper's first row."""
    return make_plan(PRESETS["mnist"], 60_000)


def test_the_papers_number_of_steps(mnist_plan):
    assert mnist_plan.num_steps == 3516
    assert mnist_plan.epoch_end(15) == 3516
    assert mnist_plan.expected_batch_size == 256
    assert mnist_plan.sampling_prob == gdpjax.sampling.dyadic_probability(256 / 60_000)


def test_overflow_is_paid_from_delta(mnist_plan):
    plan = mnist_plan
    assert 0 < plan.overflow <= 1e-12
    overflow = gdpjax.sampling.overflow_probability(
        plan.num_examples, plan.sampling_prob, plan.num_steps, plan.capacity
    )
    assert plan.overflow == overflow
    small = dataclasses.replace(PRESETS["mnist"].privacy, delta=1e-13)
    assert make_plan(dataclasses.replace(PRESETS["mnist"], privacy=small), 60_000).overflow <= 1e-16


def test_whole_data_set_as_batch():
    optimizer = dataclasses.replace(PRESETS["digits"].optimizer, batch_size=50)
    plan = make_plan(dataclasses.replace(PRESETS["digits"], optimizer=optimizer), 50)
    assert plan.num_steps == optimizer.epochs
    assert plan.capacity >= 50


def test_a_batch_above_capacity_stops_the_run(mnist_plan):
    draw = _make_draw(dataclasses.replace(mnist_plan, capacity=100))
    with pytest.raises(CapacityExceededError, match="capacity of 100"):
        draw(jax.random.key(0), 0)


def test_draws_depend_on_the_step_and_the_key_only(mnist_plan):
    draw = _make_draw(mnist_plan)

    def members(key, step):
        indices, is_padding = draw(jax.random.key(key), step)
        return set(indices[~is_padding].tolist())

    assert members(0, 5) == members(0, 5)
    assert len(members(0, 5) & members(0, 6)) < 30
    assert len(members(0, 5) & members(1, 5)) < 30
    assert 150 < len(members(0, 5)) < 370
