"""The comparison of correlated noise with Poisson DP-SGD, on a few made-up rows: plans, resuming, table and figure."""

import dataclasses

import numpy as np
import pytest

from experiments import cli, data
from experiments.correlated import methods, trials
from experiments.correlated.methods import METHODS, TASKS, plan_of
from experiments.data import Dataset

TASK = dataclasses.replace(TASKS["adult"], batch_size=16, epochs=(1,), learning_rates=(1.0,), epsilons=(8.0,))


@pytest.fixture(
    params=[("Poisson DP-SGD",), pytest.param(("Poisson DP-SGD", "BISR"), marks=pytest.mark.slow)],
    ids=["one method", "two methods"],
)
def tiny(request, monkeypatch):
    """One method or two on 80 rows, at one epsilon with one learning rate, trained one by one."""
    made = request.param
    monkeypatch.setattr(trials, "WIDTH", 1)
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 2, (100, 6)).astype(np.float32)
    labels = inputs[:, 0].astype(np.int32)
    dataset = Dataset(inputs[:80], labels[:80], inputs[80:], labels[80:])
    monkeypatch.setitem(data.LOADERS, "adult", lambda: dataset)
    monkeypatch.setitem(TASKS, "adult", TASK)
    for name in set(METHODS) - set(made):
        monkeypatch.delitem(methods.METHODS, name)
    compile_once(monkeypatch)
    return made


def compile_once(monkeypatch):
    """Keep the programs, so that a command that goes on need not compile again what it needs."""
    make = trials._program
    programs = {}

    def program(plan, task, dataset):
        kind = trials._shape_of(plan), len(dataset.train_inputs)
        if kind not in programs:
            programs[kind] = make(plan, task, dataset)
        return programs[kind]

    monkeypatch.setattr(trials, "_program", program)


def compare(folder):
    where = [f"--{name}={folder / name}" for name in ("runs", "results", "figures")]
    return cli.main(["correlated", "--seeds", "2", *where])


def test_it_goes_on_where_it_was(tiny, tmp_path, capsys, monkeypatch):
    """Trials on record are not trained again, and the others have the same outcome as before."""
    assert compare(tmp_path) == 0
    result = (tmp_path / "results" / "correlated_adult.json").read_bytes()
    assert (tmp_path / "figures" / "correlated_adult.png").stat().st_size > 5_000
    table = (tmp_path / "results" / "correlated_adult.md").read_text()
    for method in tiny:
        assert f"| {method} |" in table
    assert "± " in table

    # A line that was cut off is trained again, with the same outcome; what is on record is not.
    record = tmp_path / "runs" / "correlated_adult" / trials.TRIALS
    record.write_bytes(record.read_bytes()[:-9])
    assert compare(tmp_path) == 0
    assert (tmp_path / "results" / "correlated_adult.json").read_bytes() == result
    monkeypatch.setattr(trials, "_program", None)
    assert compare(tmp_path) == 0
    assert (tmp_path / "results" / "correlated_adult.json").read_bytes() == result

    # Other settings have a folder of their own, or are refused.
    monkeypatch.setitem(TASKS, "adult", dataclasses.replace(TASK, clip=2.0))
    assert compare(tmp_path) == 2
    assert "was begun with another configuration" in capsys.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_every_plan_meets_the_epsilon(method):
    plan = plan_of(method, TASK, 400, epochs=2, epsilon=2.0)
    assert plan.epsilon_bounds().upper <= 2.0
    assert plan.num_steps == 50
    assert methods.rmse_of(plan) > 0
    assert methods.describe(plan)


def test_less_noise_is_left_in_the_sums_by_correlation_where_there_is_no_amplification():
    plans = {method: plan_of(method, TASK, 400, epochs=1, epsilon=8.0) for method in METHODS}
    errors = {method: methods.rmse_of(plan) for method, plan in plans.items()}
    assert errors["cyclic BandMF"] <= errors["Poisson DP-SGD"] * (1 + 1e-6)
    assert errors["BLT"] < errors["lambda-CGD"] * 1.2
