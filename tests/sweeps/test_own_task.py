"""A user's own data, model and optimizer are one program, with their own hyperparameters and scores."""

import contextlib
import dataclasses
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax.sweeps as sweeps
from gdpjax.sweeps import (
    Blueprint,
    Model,
    Task,
    UserError,
    _ray,
    _sweep,
    _trials,
    _worker,
    as_spec,
    load_examples,
    plan_of,
)
from tests.sweeps import own_task

TASK = Task(own_task.load, own_task.build, own_task.optimizer)
NUMBERS = {"learning_rate": 0.1, "l2_clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 8, "epochs": 1}
SPEC = {"delta": 1e-5, "minimize": True, "hyperparameters": NUMBERS}


pytestmark = pytest.mark.usefixtures("shared_programs")


def spec_with(**changes):
    """The spec with other hyperparameters."""
    return SPEC | {"hyperparameters": NUMBERS | changes}


@contextlib.contextmanager
def programs_noted():
    """Note the whole hyperparameters of every program that sweeps ask for."""
    constants, make = [], _worker.make_program

    def noted(blueprint, *arguments, **limits):
        constants.append(blueprint.constants)
        return make(blueprint, *arguments, **limits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_worker, "make_program", noted)
        yield constants


def blueprint_of(task, **changes):
    """The blueprint of one training of a task."""
    settings, examples = NUMBERS | changes, load_examples(task.load)
    return Blueprint(task, examples, plan_of(settings, 1e-5, examples.num_examples), settings)


@pytest.fixture(scope="module")
def searched(shared_programs, tmp_path_factory):
    """16 trials over five hyperparameters, two of them the user's own, four side by side."""
    spec = spec_with(
        learning_rate=[0.05, 0.1],
        l2_clip_norm=[0.5, 1.0],
        penalty=[0.0, 10.0],
        momentum=[0.0, 0.5],
        seeds=[7],
    )
    with pytest.MonkeyPatch.context() as patch, programs_noted() as programs:
        patch.setattr(_sweep, "num_slots", lambda: 1)
        result = sweeps.run_sweep(TASK, spec, tmp_path_factory.mktemp("own") / "sweep", width=4)
    assert len(programs) == 1
    return result


def test_every_hyperparameter_is_an_argument_of_one_program(searched):
    """Sixteen settings of five real hyperparameters share one program, and each of them changes the score."""
    assert len(searched.rows) == 16
    assert [row["error"] for row in searched.rows] == [None] * 16
    assert len({row["rmse"] for row in searched.rows}) == 16, "each of them matters"
    penalised = [row["size"] for row in searched.rows if row["penalty"] == 10.0]
    free = [row["size"] for row in searched.rows if row["penalty"] == 0.0]
    assert np.mean(penalised) < np.mean(free)


def test_a_trial_is_the_training_of_its_settings(searched, tmp_path):
    """The public training API, with the settings and keys of a trial, gives its score and its ledger."""
    row = searched.rows[11]
    numbers = {name: row[name] for name in (*NUMBERS, "penalty", "momentum")}
    result = sweeps.train(TASK, spec_with(**numbers, seeds=[7]), tmp_path / "run")
    assert result.scores["rmse"] == pytest.approx(row["rmse"], rel=1e-4)
    assert (result.cost.num_steps, result.cost.sampling_prob) == (row["num_steps"], row["sampling_prob"])
    assert result.cost.epsilon_upper == pytest.approx(row["epsilon_upper"], rel=1e-6)
    assert result.plan.epsilon_bounds().upper == pytest.approx(row["epsilon_upper"], rel=1e-6)


def test_a_chunk_that_is_not_full_loses_no_trial(tmp_path, monkeypatch):
    """Lanes that fill the width have keys of their own: with those of a trial the chunk's noise is refused."""
    monkeypatch.setattr(_sweep, "num_slots", lambda: 2)
    sweep = sweeps.run_sweep(TASK, spec_with(learning_rate=[0.05, 0.1, 0.2]), tmp_path / "sweep")
    assert [row["error"] for row in sweep.rows] == [None] * 3
    assert len({row["rmse"] for row in sweep.rows}) == 3


def test_the_best_is_the_smallest_where_the_spec_says_so(searched):
    """With minimize the best trial has the smallest score, and the report says so."""
    assert searched.best()["rmse"] == min(row["rmse"] for row in searched.rows)
    text = searched.report.read_text()
    assert "The smallest rmse is the best" in text
    with pytest.raises(UserError, match=r"no trial is within epsilon 0\.01: the least"):
        searched.best(epsilon=0.01)


def test_a_whole_hyperparameter_has_a_program_for_each_value(tmp_path):
    """A hyperparameter that is a whole number is a constant of its program, so one_program refuses several."""
    with programs_noted() as programs:
        result = sweeps.run_sweep(TASK, spec_with(width=[1, 2], penalty=[0.0, 0.1]), tmp_path / "sweep")
    assert programs == [{"width": 1}, {"width": 2}]
    assert len({row["rmse"] for row in result.rows}) == 4

    # The user's own width is a column of that name.
    assert "<th>width</th>" in result.report.read_text()
    with pytest.raises(UserError, match="one_program = true promises one compiled program, but each value of width"):
        sweeps.run_sweep(TASK, spec_with(width=[1, 2]) | {"one_program": True}, tmp_path / "other")


def test_the_epsilon_of_a_row_is_that_of_the_plan_that_ran(searched):
    """The epsilon of a row follows from nothing but its public numbers."""
    from gdpjax import accounting

    for row in searched.rows[:2]:
        run = (row["noise_multiplier"], row["sampling_prob"], row["num_steps"])
        left = (row["delta"] - row["overflow"]) / (1 - row["overflow"])
        _, upper = accounting.epsilon_bounds(*run, left)
        assert row["epsilon_upper"] == pytest.approx(float(upper), rel=1e-6)
        assert row["noise_multiplier"] == 2.0
        assert row["sampling_prob"] == pytest.approx(8 / 64)
        assert row["neighboring_relation"] == "replace_special"


@pytest.fixture(scope="module")
def unusual(shared_programs, tmp_path_factory):
    """A sweep with data held out, an optimizer that asks for the number of steps, and scores of several kinds."""

    def build(example, penalty=0.0):
        assert [(type(part), part.shape) for part in example] == [
            (jax.ShapeDtypeStruct, (3,)),
            (jax.ShapeDtypeStruct, ()),
        ], "build sees shapes, and no values"
        model = own_task.build(example, penalty)

        def scores(params, x, y):
            return {
                "rmse": model.scores(params, x, y)["rmse"],
                "rows": jnp.int32(x.shape[0]),
                "mean": jnp.mean(x),
                "any": jnp.any(y > 0),
                "short": jnp.float32(0.836),
                "of_no_penalty": jnp.where(penalty > 0, jnp.nan, 0.0),
            }

        return Model(model.init, model.loss, scores)

    def optimizer(learning_rate, num_steps):
        assert num_steps in (6, 100), "the plan's, and a made-up one while the functions are checked"
        return optax.sgd(optax.cosine_decay_schedule(learning_rate, num_steps))

    task = Task(own_task.load, build, optimizer)
    assert "num_steps" not in task.hyperparameters
    spec = spec_with(learning_rate=[0.1, 0.2], penalty=[0.0, 1.0])
    spec |= {"hold_out": 0.25, "score": "rmse", "unit": "patient"}
    return sweeps.run_sweep(task, spec, tmp_path_factory.mktemp("unusual") / "sweep")


def test_hold_out_scores_on_training_data_that_nothing_is_trained_on(unusual):
    """A quarter of the data is scored on, and the plan is for the rest."""
    row = unusual.rows[0]
    (x, _), _ = own_task.load()
    held = load_examples(TASK.load, hold_out=0.25)
    assert row["rows"] == 16
    assert row["mean"] == pytest.approx(held.evaluation[0].mean(), rel=1e-5)
    both = np.concatenate([held.train[0], held.evaluation[0]])
    np.testing.assert_array_equal(np.unique(both, axis=0), np.unique(x, axis=0))
    assert row["sampling_prob"] == pytest.approx(8 / 48), "the plan is for what is trained on"
    page = re.sub(r"\s+", " ", unusual.report.read_text())
    assert "held out; they are private" in page
    assert "differ by replacing one patient by a null one" in page
    assert unusual.folder.stat().st_mode & 0o077 == 0, "for the owner alone"
    assert "Scores are private" in unusual.best_in_words()
    assert "neither number covers publishing a score, or choosing by one" in page


def test_numbers_of_any_kind_are_scores_and_a_factory_may_ask_for_the_number_of_steps(unusual):
    """A score that is a number in Python stays one, in its shortest form; the learning rate matters as any other."""
    row = unusual.rows[0]
    assert (row["rows"], row["any"], row["short"]) == (16, 1.0, 0.836)
    free = [row["rmse"] for row in unusual.rows if row["penalty"] == 0.0]
    assert len(set(free)) == 2


def test_a_score_that_is_not_a_number_is_a_failure_of_its_trial(unusual):
    """The other trials are as they would have been."""
    for row in unusual.rows:
        if row["penalty"] > 0:
            assert row["error"] == "the score of_no_penalty is nan"
            assert row["rmse"] is None
        else:
            assert row["error"] is None


def test_how_numbers_were_chosen_is_in_the_statement(tmp_path):
    """A spec says it for the statement of the training, as it says what one row is."""
    result = sweeps.train(TASK, spec_with() | {"tuned": "on public data", "unit": "patient"}, tmp_path / "run")
    assert "Tuned: on public data." in result.plan.statement()
    assert "replacing one patient by a null one" in result.plan.statement()


MISTAKES = {
    "learning_rate is missing": {"hyperparameters": {"l2_clip_norm": 1.0}},
    "give epsilon, a target, or noise_multiplier": {
        "hyperparameters": {name: value for name, value in NUMBERS.items() if name != "noise_multiplier"}
    },
    "delta is missing": {"delta": None},
    "unknown field 'momentun'; did you mean 'momentum'?": {"hyperparameters": NUMBERS | {"momentun": 0.1}},
    "width must be a whole number": {"hyperparameters": NUMBERS | {"width": 1.5}},
    "penalty must be a number from -3.40282e+38": {"hyperparameters": NUMBERS | {"penalty": float("nan")}},
    "momentum must be a number from -3.40282e+38": {
        "hyperparameters": NUMBERS | {"momentum": {"min": -1e308, "max": 1e308, "count": 3}}
    },
    "learning_rate must be a number from 1.17549e-38": {"hyperparameters": NUMBERS | {"learning_rate": float("inf")}},
    "unknown field '7'": {7: 1},
    "score must be one of rmse, size, got 'accuracy'": {"score": "accuracy"},
    "a spec has texts, numbers, lists and tables, got": {"hyperparameters": NUMBERS | {"learning_rate": optax.sgd}},
    "0 < min if it is logarithmic": {
        "hyperparameters": NUMBERS | {"penalty": {"min": 0.0, "max": 1.0, "count": 3, "log": True}}
    },
}


@pytest.mark.parametrize("message", MISTAKES)
def test_wrong_specs_are_refused_before_anything_is_made(message, tmp_path):
    """A spec with a mistake is refused in words, and no folder is made."""
    with pytest.raises(UserError, match=re.escape(message)):
        sweeps.run_sweep(TASK, SPEC | MISTAKES[message], tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def with_model(**changes):
    """The task with other functions in its model."""

    def build(example):
        return own_task.build(example)._replace(**changes)

    return Task(own_task.load, build, own_task.optimizer)


def stepping_with(update):
    """The task with an optimizer of such an update."""
    return dataclasses.replace(TASK, optimizer=lambda learning_rate: optax.GradientTransformation(lambda _: (), update))


REFUSED = {
    "scores must return numbers by name": with_model(scores=lambda params, x, y: jnp.mean(y)),
    "a score needs a name of its own": with_model(scores=lambda params, x, y: {"epsilon_upper": y.mean()}),
    "got 'privacy'": with_model(scores=lambda params, x, y: {"privacy": y.mean()}),
    "must return a scalar for ONE example": with_model(loss=lambda params, x, y: params @ x),
    "a training failed: ZeroDivisionError": with_model(loss=lambda params, x, y: 1 / 0),
    "no two arrays of the parameters can be called a/b/w": with_model(
        init=lambda key: {"a": {"b": {"w": jnp.zeros(3)}}, "a/b": {"w": jnp.ones(3)}},
        loss=lambda params, x, y: x @ (params["a"]["b"]["w"] + params["a/b"]["w"]),
        scores=lambda params, x, y: {"mean": jnp.mean(y)},
    ),
    "a training failed: TypeError": stepping_with(lambda updates, state, params: ({"a": updates}, state)),
    "scores must return real numbers, got an array of complex64[]": with_model(
        scores=lambda params, x, y: {"mean": jnp.mean(y) * 1j}
    ),
    "scores must return real numbers, got an array of float32[16]": with_model(scores=lambda params, x, y: {"mean": y}),
    "side effects (debug_print)": with_model(
        loss=lambda params, x, y: (jax.debug.print("x"), jnp.sum(params @ x) - y)[1]
    ),
    "closes over an array": with_model(loss=lambda params, x, y: jnp.sum(own_task.load()[0][0] @ params.T) - y),
    "lax.while_loop": with_model(
        loss=lambda params, x, y: jax.lax.while_loop(lambda c: c < 9, lambda c: 2 * c + 1, jnp.sum(params @ x))
    ),
    "no trainable floating-point leaf": with_model(init=lambda key: jnp.zeros((1, 3), int)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_training_would_refuse_is_refused_before_a_folder_is_made(message, tmp_path):
    """Updates, scores and losses that only fail while a step is made are found by tracing one, before anything runs."""
    with pytest.raises(UserError, match=re.escape(message.strip(", "))):
        sweeps.train(REFUSED[message], SPEC, tmp_path / "run")
    with pytest.raises(UserError, match=re.escape(message.strip(", "))):
        sweeps.run_sweep(REFUSED[message], SPEC, tmp_path / "sweep")
    assert not any(tmp_path.iterdir())


def test_wrong_loaders_are_refused():
    """Data that is no pair of equally long numeric arrays is refused."""
    x = np.zeros((4, 2), np.float32)
    for loaded, message in (
        ((x, x, x, x), "load must return a pair"),
        (((x, x[:2]), x), "one row per example"),
        ((np.array(["a"]), x), "every array of the training data"),
        ((x, x[:0]), "the evaluation data have no rows"),
    ):
        task = dataclasses.replace(TASK, load=lambda loaded=loaded: loaded)
        with pytest.raises(UserError, match=message):
            load_examples(task.load)


@pytest.mark.parametrize(("part", "value"), [("training", np.nan), ("evaluation", np.inf)])
def test_numbers_that_are_not_finite_are_refused(part, value):
    """Examples without a finite gradient train nothing, and nobody would see it."""
    train, evaluation = own_task.load()
    changed = (train if part == "training" else evaluation)[1]
    changed[3] = value
    task = dataclasses.replace(TASK, load=lambda: (train, evaluation))
    with pytest.raises(UserError, match=f"the {part} data have NaN or an infinity"):
        load_examples(task.load)


def test_a_file_that_is_not_there_is_named_with_the_line_that_wanted_it():
    def load():
        return np.loadtxt("no_such_file.csv")

    with pytest.raises(
        UserError, match=r"load failed: FileNotFoundError: no_such_file.csv.*_own_task.py, line \d+, in load"
    ):
        load_examples(load)


def test_a_loss_that_expects_a_batch_is_told_of_one_example():
    def loss(params, x, y):
        return jnp.sum(params) * x.mean(axis=1) * y

    with pytest.raises(UserError, match=r"a training failed: .*ONE example.*float32\[3\].*, in loss"):
        _trials.check_task(blueprint_of(with_model(loss=loss)))


def test_a_branch_on_a_traced_hyperparameter_says_what_to_do():
    def optimizer(learning_rate, momentum=0.0):
        return optax.sgd(learning_rate, momentum) if momentum > 0.5 else optax.sgd(learning_rate)

    task = Task(own_task.load, own_task.build, optimizer)
    message = r"a training failed: momentum is an argument of the compiled program.*jnp\.where.*int.*, in optimizer"
    with pytest.raises(UserError, match=message):
        _trials.check_task(blueprint_of(task, momentum=0.3))


def optimizer_of_many_kinds(lr, kind="sgd", momentum=0.0):
    """Stochastic gradient descent, with a text among its parameters."""
    return optax.sgd(lr, momentum)


ONLY_NUMBERS = {
    "unknown field 'kind'; the fields are l2_clip_norm": {"kind": ["sgd", "adam"]},
    "unknown field 'learning_rate'; the fields are l2_clip_norm": {"learning_rate": 0.1},
    "momentum must be a number from -3.40282e+38 to 3.40282e+38, got 'high'": {"momentum": [0.1, "high"]},
}


@pytest.mark.parametrize("message", ONLY_NUMBERS)
def test_what_cannot_be_searched_is_explained(message):
    task = Task(own_task.load, own_task.build, optimizer_of_many_kinds)
    numbers = {name: value for name, value in NUMBERS.items() if name != "learning_rate"}
    with pytest.raises(UserError, match=re.escape(message)):
        as_spec(task, SPEC | {"hyperparameters": numbers | {"lr": 0.1} | ONLY_NUMBERS[message]})


def test_another_model_under_the_same_names_is_not_resumed(searched, tmp_path):
    """A sweep is resumed with the model it was begun with, whatever the names are, and then repeats nothing."""
    folder = tmp_path / "sweep"
    spec = spec_with(penalty=[0.0, 0.1], width=1, seeds=[7])
    sweeps.run_sweep(TASK, spec, folder)
    before = (folder / "results.parquet").read_bytes()
    other = dataclasses.replace(with_model(loss=lambda params, x, y: jnp.sum(params) * y), names=TASK.names)
    with pytest.raises(UserError, match="unknown field 'penalty'"):
        sweeps.run_sweep(other, spec, folder, resume=True)

    def build(example, penalty=0.0, width: int = 1):
        return own_task.build(example, penalty)._replace(loss=lambda params, x, y: penalty * jnp.sum(params) * y)

    with pytest.raises(UserError, match=r"are not those that the sweep in .* was begun with"):
        sweeps.run_sweep(Task(own_task.load, build, own_task.optimizer, names=TASK.names), spec, folder, resume=True)
    again = sweeps.run_sweep(TASK, spec, folder, resume=True)
    assert (folder / "results.parquet").read_bytes() == before
    assert len(again.rows) == 2


def test_other_defaults_of_the_task_are_not_resumed(tmp_path):
    """Defaults of a task decide what is trained where a spec leaves them out, so that others are refused."""
    defaults = {**NUMBERS, "delta": 1e-5}
    task = dataclasses.replace(TASK, defaults=defaults)
    spec = {"minimize": True, "hyperparameters": {"penalty": 0.1}}
    sweeps.run_sweep(task, spec, tmp_path / "sweep")
    for name, value in {"noise_multiplier": 1.0, "l2_clip_norm": 0.5, "learning_rate": 0.2}.items():
        other = dataclasses.replace(TASK, defaults=defaults | {name: value})
        with pytest.raises(UserError, match=rf"{name}: \[{NUMBERS[name]}\] then, \[{value}\] now"):
            sweeps.run_sweep(other, spec, tmp_path / "sweep", resume=True)

    # A default that something else takes the place of has no part in it.
    target = {**spec, "hyperparameters": {"epsilon": 3.0}}
    described = [
        as_spec(dataclasses.replace(TASK, defaults=defaults | {"noise_multiplier": value}), target).described()
        for value in (1.0, np.float64(2.0), np.int32(3))
    ]
    assert described[0] == described[1] == described[2]
    assert "noise_multiplier" not in described[0]


def test_a_trial_with_other_settings_has_other_noise():
    """Settings have keys of their own also without a seed: equal noise on two settings would cancel in a difference."""
    root = jax.random.key(0)

    def key_data_of(**changes):
        spec = as_spec(TASK, spec_with(**changes))
        (trial,) = sweeps.plan_trials(spec, sweeps.list_trials(spec), 32)
        return [jax.random.key_data(key).tolist() for key in trial.keys(root)]

    base = key_data_of()
    assert key_data_of() == base
    for changes in ({"noise_multiplier": 3.0}, {"l2_clip_norm": 2.0}, {"epochs": 2}, {"penalty": 0.5}):
        other = key_data_of(**changes)
        assert all(a != b for a, b in zip(other, base, strict=True)), changes


def test_unlabelled_data(tmp_path):
    """Data may be one array, and a batch may be all of it."""

    def load():
        x = np.linspace(0, 1, 32, dtype=np.float32)
        return x, x

    def build(example):
        (x,) = example

        def loss(mean, x):
            return (mean - x) ** 2

        return Model(lambda key: jnp.zeros(x.shape), loss, lambda mean, x: {"distance": jnp.abs(mean - x.mean())})

    result = sweeps.run_sweep(Task(load, build, optax.sgd), spec_with(batch_size=32), tmp_path / "sweep")
    assert np.isfinite(result.rows[0]["distance"])
    assert result.rows[0]["sampling_prob"] == 1.0


def test_the_code_of_a_task_travels_to_a_cluster(tmp_path, monkeypatch):
    """A package as a folder, single files with what they import from beside them; installed packages stay."""
    (tmp_path / "travelling_helper.py").write_text("RATE = 0.1\n")
    (tmp_path / "travelling_task.py").write_text(
        "import travelling_helper\n\ndef load():\n    pass\n\ndef build(example):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import travelling_task  # type: ignore[import-not-found]  # noqa: F401

    root = Path(__file__).parents[2]
    code = _ray.own_code()
    assert {str(tmp_path / f"travelling_{name}.py") for name in ("helper", "task")} < set(code)
    assert {str(root / "gdpjax"), str(root / "tests")} < set(code)
    assert not any("packages" in place or place.startswith(sys.base_prefix) for place in code)


def with_table(table):
    """A task whose loss looks numbers up in an array that an inner jitted function closes over."""

    def build(example, width: int = 4):
        weighted = jax.jit(lambda x: x * table[:width])

        def loss(weights, x, y):
            return jnp.sum((weighted(x[:width]) @ weights - y) ** 2)

        def scores(weights, x, y):
            return {"mse": jnp.mean((x[:, :width] @ weights - y) ** 2)}

        return Model(lambda key: jnp.zeros(width), loss, scores)

    def load():
        x = np.linspace(-1, 1, 64 * 8, dtype=np.float32).reshape(64, 8)
        return (x, x[:, 0]), (x, x[:, 0])

    return Task(load, build, optax.sgd)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_constants_of_inner_functions_are_part_of_a_program(kind):
    """The digest of a program sees an array that an inner jitted function closes over."""
    table = np.ones(8, np.float32)
    other = table.copy()
    other[1] = 9
    digests = []
    for values in (table, other, table):
        task = with_table(kind(values))
        digests.append(_trials.digest_of_program(blueprint_of(task, width=4)))
    assert digests[0] == digests[2] != digests[1]


def test_two_names_of_one_seeded_training_are_refused(tmp_path):
    """Targets so close that both get one noise multiplier would be trained with one key."""
    numbers = {name: value for name, value in NUMBERS.items() if name != "noise_multiplier"}
    spec = SPEC | {"hyperparameters": numbers | {"epsilon": [2.0, 2.0 + 1e-9], "seeds": [0]}}
    with pytest.raises(UserError, match="one and the same training"):
        sweeps.run_sweep(TASK, spec, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
