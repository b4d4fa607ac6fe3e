"""A whole small run: what it leaves behind, and that an interrupted one continues bit for bit."""

import dataclasses
import json
import shutil
import sys

import jax
import numpy as np
import pytest

import gdpjax
from experiments.config import RunConfig
from experiments.train.command import spec_of
from experiments.train.tasks import make_task
from gdpjax.sweeps import Blueprint, RunInterrupted, UserError, _training, as_spec, make_keys, records
from gdpjax.training import Info
from tests.experiments.conftest import Silent
from tests.sweeps.sweeps import examples_of, made_once


def train(config, dataset, out, observer):
    """Train these data as ``train`` of the experiments does, with an observer."""
    task = make_task(config.data.dataset, config.model.model, config.optimizer.optimizer)
    spec = as_spec(task, spec_of(config))
    recorder = _training.Recorder(spec, _training.only_trial(spec), examples_of(dataset), out, config.run.diagnostics)
    return recorder.run(config.run.resume, observer)


def with_run(config, **changes):
    """The configuration with another RunConfig."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))


def lines(folder, name):
    """The records of a JSONL file; the first is its notice."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def bits(state):
    """The state's bits."""
    found = []
    for leaf in jax.tree.leaves(state):
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = jax.random.key_data(leaf) if is_key else leaf
        found.append(np.asarray(array).tobytes())
    return found


@pytest.fixture(scope="module", autouse=True)
def trainings():
    """Let runs with the same settings share a training, whose steps are compiled once, and the scores."""
    make, made = Blueprint.training, {}

    def training(blueprint, numbers):
        settings = blueprint.plan, tuple(sorted(numbers.items()))
        if settings not in made:
            made[settings] = make(blueprint, numbers)
        return made[settings]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blueprint, "training", training)
        patch.setattr(_training, "make_scores", made_once(_training.make_scores))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_config, small_digits):
    """An uninterrupted seeded run and what its observer saw."""
    observer = Silent()
    return train(small_config, small_digits, tmp_path_factory.mktemp("whole"), observer), observer


def test_public_records(whole):
    result, observer = whole
    notice, *rows = lines(result.out, records.METRICS)
    assert "public" in notice["notice"]
    assert [row["step"] for row in rows] == [8, 16]
    assert rows == result.history == observer.epochs
    private = ("loss", "norm", "clipped", "batch_size")
    assert not any(word in name for row in rows for name in row for word in private)
    epsilons = [row["epsilon_moments_accountant"] for row in rows]
    assert epsilons == sorted(epsilons)


def test_result_is_what_the_ledger_says(whole):
    result, _ = whole
    (event,) = gdpjax.ledger_of(result.state.opt_state).events
    written = json.loads((result.out / records.RESULT).read_text())
    assert written["privacy"]["num_steps"] == event.num_steps == 16
    assert written["privacy"]["sampling_prob"] == event.sampling_prob == 0.125
    assert written["privacy"]["epsilon_moments_accountant"] == result.cost.epsilon_moments_accountant
    assert result.plan.overflow <= written["privacy"]["overflow"] == event.overflow < 1.01 * result.plan.overflow
    assert written["seeded"]
    assert written["test_accuracy"] == result.scores["test_accuracy"]
    described = json.loads((result.out / records.CONFIG).read_text())
    assert described["plan"] == json.loads(result.plan.to_json())
    assert described["fingerprint"]["jax"] == jax.__version__
    assert "data_sha256" not in json.dumps(described) + json.dumps(written)


def test_no_score_may_be_called_like_a_field_of_the_records(whole):
    result, _ = whole
    written = json.loads((result.out / records.RESULT).read_text())
    for record in (written, *result.history):
        others = {name for name in record.keys() - result.scores.keys() if not name.startswith(("mu_", "epsilon_"))}
        assert others <= set(records.NOT_SCORES)


def test_private_diagnostics_are_apart_and_marked(whole):
    result, _ = whole
    notice, *rows = lines(result.out, records.DIAGNOSTICS)
    assert "NOT FOR RELEASE" in notice["notice"]
    assert [row["step"] for row in rows] == list(range(1, 17))
    for row in rows:
        assert 0 <= row["batch_size"] <= result.plan.capacity
        assert 0 <= row["fraction_clipped"] <= 1
        assert row["norm_quantiles"]["0.1"] <= row["norm_quantiles"]["0.9"]


@pytest.mark.filterwarnings("ignore:.* have a NaN or an infinity in the data")
def test_the_owner_is_told_that_most_gradients_were_dropped(whole, tmp_path, small_config, small_digits):
    """Only the owner, by a warning: the public records do not say it."""
    without_numbers = np.full_like(small_digits.train_inputs, np.nan)
    broken = dataclasses.replace(small_digits, train_inputs=without_numbers)
    config = dataclasses.replace(small_config, run=RunConfig())
    with pytest.warns(UserWarning, match="PRIVATE: .* Epsilon does not cover") as warned:
        train(config, broken, tmp_path / "run", Silent())
    _, *rows = lines(tmp_path / "run", records.DIAGNOSTICS)
    num_examples = sum(row["batch_size"] for row in rows)
    assert sum(row["num_not_finite"] for row in rows) == num_examples > 0
    assert f"of {num_examples} of {num_examples} examples were not finite" in str(warned[-1].message)
    for name in (records.RESULT, records.METRICS, records.CONFIG):
        text = (tmp_path / "run" / name).read_text()
        assert "finite" not in text
        assert "dropped" not in text

    # A loss may be NaN under a gradient of zeros, which is finite.
    nothing = np.zeros(2)
    finite = Info(losses=nothing, norms=nothing, is_padding=nothing == 1, is_dropped=nothing == 1)
    assert _training.summarize(finite, 1, 1.0)["num_not_finite"] == 0
    nan = finite._replace(losses=np.array([np.nan, 1.0]))
    assert _training.summarize(nan, 1, 1.0)["num_not_finite"] == 1
    with pytest.warns(UserWarning, match=f"PRIVATE: .* of {num_examples} examples"):
        train(with_run(config, resume=True), broken, tmp_path / "run", Silent())


def test_model_file_holds_the_final_parameters(whole):
    result, _ = whole
    with np.load(result.out / records.MODEL) as model:
        np.testing.assert_array_equal(model["Dense_0/kernel"], result.state.params["Dense_0"]["kernel"])


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, small_config, small_digits):
    """The same run, interrupted in the middle of its second epoch."""
    out = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(RunInterrupted, match=r"8 of 16 steps are kept(.|\n)*--resume"):
        train(small_config, small_digits, out, Silent(interrupt_at=11))
    return out


def test_interrupted_and_resumed_equals_uninterrupted(whole, interrupted, tmp_path, small_config, small_digits):
    uninterrupted, _ = whole
    out = tmp_path / "resumed"
    shutil.copytree(interrupted, out)
    # a crash can also leave records after the checkpoint, and half a line
    records.append(out, records.METRICS, [{"step": 16, "epoch": 2, "test_accuracy": 0.5}])
    with (out / records.METRICS).open("a") as file:
        file.write('{"step": 24, "ep')
    observer = Silent()
    resumed = train(with_run(small_config, resume=True), small_digits, out, observer)
    assert observer.first_step == 8
    assert bits(resumed.state) == bits(uninterrupted.state)
    timeless = [[{**row, "steps_per_second": 0} for row in result.history] for result in (resumed, uninterrupted)]
    assert timeless[0] == timeless[1]
    assert lines(out, records.DIAGNOSTICS) == lines(uninterrupted.out, records.DIAGNOSTICS)
    assert resumed.cost == uninterrupted.cost


def test_a_run_killed_before_its_first_checkpoint_is_resumed(whole, tmp_path, small_config, small_digits, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(_training, "start_run", lambda *args, **kwargs: sys.exit("killed"))
        with pytest.raises(SystemExit):
            train(small_config, small_digits, out, Silent())
    with pytest.raises(UserError, match="already holds a run: add --resume"):
        train(small_config, small_digits, out, Silent())
    resumed = train(with_run(small_config, resume=True), small_digits, out, Silent())
    assert bits(resumed.state) == bits(whole[0].state)


def test_resuming_something_else_is_refused(interrupted, small_config, small_digits):
    optimizer = dataclasses.replace(small_config.optimizer, learning_rate=0.25)
    other = dataclasses.replace(with_run(small_config, resume=True), optimizer=optimizer)
    with pytest.raises(UserError, match=r"learning_rate: 0.5 then, 0.25 now"):
        train(other, small_digits, interrupted, Silent())


def test_on_other_data_the_lost_epoch_is_charged_and_has_no_record(interrupted, tmp_path, small_config, small_digits):
    out = shutil.copytree(interrupted, tmp_path / "run")
    changed = dataclasses.replace(small_digits, train_labels=small_digits.train_labels[::-1])
    observer = Silent()
    result = train(with_run(small_config, resume=True), changed, out, observer)
    assert observer.lost == 8
    assert [row["step"] for row in result.history] == [8]
    (event,) = gdpjax.ledger_of(result.state.opt_state).events
    assert event.num_steps == 16


def test_a_finished_run_that_was_made_otherwise_says_so(whole, tmp_path, small_config, small_digits):
    """Its parameters stay, but its scores are computed here."""
    out = shutil.copytree(whole[0].out, tmp_path / "run")
    same = Silent()
    train(with_run(small_config, resume=True), small_digits, out, same)
    assert same.changes == ()
    changed = dataclasses.replace(small_digits, train_labels=small_digits.train_labels[::-1])
    observer = Silent()
    result = train(with_run(small_config, resume=True), changed, out, observer)
    assert (observer.changes, observer.was_finished) == (("data",), True)
    np.testing.assert_array_equal(jax.tree.leaves(result.params)[0], jax.tree.leaves(whole[0].params)[0])


def test_unseeded_keys_differ_in_every_stream():
    keys = [jax.random.key_data(key).tobytes() for _ in range(2) for key in make_keys(None, {})]
    assert len(set(keys)) == 4
    assert bits(make_keys(1, {"rate": 1})) == bits(make_keys(1, {"rate": 1}))
    other = {*bits(make_keys(1, {"rate": 1})), *bits(make_keys(1, {"rate": 2})), *bits(make_keys(2, {"rate": 1}))}
    assert len(other) == 6


def test_an_unseeded_run_resumes_from_its_own_keys(tmp_path, small_config, small_digits):
    config = dataclasses.replace(small_config, run=RunConfig(diagnostics=False))
    with pytest.raises(RunInterrupted):
        train(config, small_digits, tmp_path / "0", Silent(interrupt_at=2))
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    again = with_run(config, resume=True)
    states = [train(again, small_digits, tmp_path / name, Silent()).state for name in ("0", "1")]
    assert bits(states[0]) == bits(states[1])
    assert not (tmp_path / "0" / records.DIAGNOSTICS).exists()
