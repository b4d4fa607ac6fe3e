"""Batches, noise and events of every scheme are those of version 0.2.0, whose files are read or refused."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import correlated
from gdpjax.ledger import Ledger
from gdpjax.sampling import CyclicPoisson, RandomAllocation, Shuffled, TruncatedPoisson, WithoutReplacement
from gdpjax.training import CheckpointError, Plan, batch_source, private_training, resume_run

FILES = pathlib.Path(__file__).parents[1] / "data" / "version_0_2_0"
RECORDED = json.loads((FILES / "drawn.json").read_text())
SIZES = {"num_examples": 101, "expected_batch_size": 10}
COMMON = {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 2.0}
SHORT = {"max_examples": 101, "expected_batch_size": 10, "num_steps": 20}
BISR = correlated.bisr(4)


def plan_of(name: str) -> Plan:
    """Return the plan that was recorded under this name."""
    batches = {
        "truncated": lambda: TruncatedPoisson(**SIZES, num_steps=20, capacity=12),
        "without replacement": lambda: WithoutReplacement(**SIZES, num_steps=20),
        "allocation fresh": lambda: RandomAllocation(**SIZES, epochs=2),
        "allocation fixed": lambda: RandomAllocation(**SIZES, epochs=2, num_selected=3, bins="fixed"),
        "shuffled": lambda: Shuffled(**SIZES, epochs=2),
        "correlated fixed order": lambda: Shuffled(**SIZES, epochs=2, order="fixed"),
        "correlated fresh order": lambda: Shuffled(**SIZES, epochs=2),
        "cyclic": lambda: CyclicPoisson(**SIZES, num_steps=20, num_groups=4),
    }
    if name == "poisson":
        return gdpjax.make_plan(**SHORT, **COMMON)
    if name == "poisson of a group":
        return gdpjax.make_plan(**SHORT, **COMMON, group_size=3)
    noise = gdpjax.IndependentGaussian()
    if name.startswith("correlated"):
        noise = BISR
    if name == "cyclic":
        noise = correlated.optimize_banded_toeplitz(20, 4)
    return gdpjax.make_plan(batches[name](), **COMMON, noise=noise)


def events_of(ledger: Ledger) -> list[dict]:
    """Return the events as JSON values."""
    return json.loads(ledger.to_json())["events"]


def as_before(event: dict) -> dict:
    """Return an event of now as version 0.2.0 wrote it."""
    if event["type"] == "subsampled_gaussian":
        return event | {"sampling": "poisson"}
    if event["type"] == "uniform":
        return event | {"type": "subsampled_gaussian", "sampling": "uniform", "announced": False}
    if event["type"] == "laplace":  # which was of all the data
        return {name: value for name, value in event.items() if name != "sampling_prob"}
    return event


@pytest.mark.parametrize("name", RECORDED)
def test_a_training_draws_adds_and_records_what_it_did(name: str):
    recorded = RECORDED[name]
    plan = plan_of(name)
    assert (plan.capacity, plan.num_steps) == (recorded["capacity"], recorded["num_steps"])
    assert as_before(events_of(Ledger([plan.event]))[0]) == recorded["event"]

    # The gradients are zero, so that the parameters move by the noise alone.
    def loss(params, x):
        return 0 * x * (params["a"].sum() + params["b"].sum())

    training = private_training(plan, loss, optax.sgd(1.0), num_arrays=1)
    state = training.init({"a": jnp.zeros(5), "b": jnp.zeros((2, 3))}, jax.random.key(7))
    num_examples = 101 if plan.num_examples_is_public else 97
    source = batch_source(plan, state, num_examples)
    for step, rows in recorded["batches"].items():
        indices, is_padding = source[int(step)]
        assert indices[~is_padding].tolist() == rows

    data = training.place(jnp.ones(num_examples))
    for noise in recorded["noise"]:
        before = state.params
        state, _ = training.step(state, data)
        moved = [state.params[leaf] - before[leaf] for leaf in ("a", "b")]
        np.testing.assert_allclose(np.concatenate([np.ravel(leaf) for leaf in moved]), noise, rtol=2e-5, atol=1e-7)

    # The overflow of single steps adds up in float32, and was enlarged for that once more.
    for event, then in zip(events_of(gdpjax.ledger_of(state.opt_state)), recorded["ledger"], strict=True):
        event = as_before(event)
        overflow, overflow_then = (record.pop("overflow", 0.0) for record in (event, then))
        assert event == then
        assert overflow == pytest.approx(overflow_then, rel=1e-5)


def test_a_ledger_of_version_0_2_0_is_read():
    text = (FILES / "ledger.json").read_text()
    ledger = Ledger.from_json(text)
    assert [as_before(event) for event in events_of(ledger)] == json.loads(text)["events"]
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_a_plan_of_version_0_2_0_is_refused():
    with pytest.raises(ValueError, match=r"version 2, made by .*: read it with the gdpjax that wrote it"):
        Plan.from_json((FILES / "plan_poisson.json").read_text())


def test_a_run_folder_of_version_0_2_0_is_refused(tmp_path):
    folder = shutil.copytree(FILES / "run", tmp_path / "run")
    training = private_training(plan_of("poisson"), lambda w, x: w.sum() * x, optax.sgd(1.0), num_arrays=1)
    with pytest.raises(CheckpointError, match="resume it with the gdpjax that wrote it"):
        resume_run(folder, training, jnp.zeros(2), training.place(jnp.ones(97)))
