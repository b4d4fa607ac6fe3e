"""The paper's experiments have its settings, are resumed, and have partial tables and figures of result files."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from experiments import cli, data, models
from experiments.config import identity
from experiments.data import Dataset
from experiments.models.scores import make_scores
from experiments.paper import accountant_grid, command, figures, imdb_clipping, runs, settings, tables
from experiments.paper.settings import EXPERIMENTS, FIGURE4_EPSILON, Row
from experiments.train.tasks import numbers_of
from gdpjax import accounting
from gdpjax.sweeps import RunInterrupted, plan_of, records


def test_the_settings_are_the_papers():
    """The CLT's mu of each setting is what the paper printed, to two digits."""
    for rows in EXPERIMENTS.values():
        for row in rows:
            if "mu_clt" not in row.published:
                continue
            num_examples = {"mnist": 60_000, "adult": 29_305, "imdb": 25_000, "movielens": 800_167}
            plan = plan_of(numbers_of(row.config), row.config.privacy.delta, num_examples[row.config.data.dataset])
            mu = accounting.clt_mu_poisson(plan.noise_multiplier, plan.sampling_prob, plan.num_steps)
            assert abs(float(mu) - row.published["mu_clt"]) < 0.015, row.name


def test_the_certified_noise_of_figure_4_is_the_smallest_that_keeps_the_promise():
    """The noise of each row meets its epsilon, and 0.001 less would not."""
    epochs = np.array(list(FIGURE4_EPSILON))
    noise = np.array([settings.CERTIFIED_NOISE[e] for e in FIGURE4_EPSILON])
    run = (256 / 60_000, np.round(epochs * 60_000 / 256).astype(int), 1e-5)
    both = np.asarray(accounting.epsilon_bounds(np.stack([noise, noise - 0.001]), *run).upper)
    said = np.array(list(FIGURE4_EPSILON.values()))
    assert (both[0] <= said).all()
    assert (both[1] > said).all()


@pytest.fixture
def tiny(monkeypatch, small_config, small_digits):
    """Return one experiment of two rows, two seeds and one, on a few digits."""
    longer = dataclasses.replace(small_config.optimizer, epochs=3)
    rows = (
        Row("short", small_config, {"test_accuracy": 0.5, "mu_clt": 1.0}, seeds=2),
        Row("long", dataclasses.replace(small_config, optimizer=longer), {}, chosen="all chosen by us"),
    )
    monkeypatch.setitem(EXPERIMENTS, "adult", rows)
    monkeypatch.setitem(data.LOADERS, "digits", lambda: small_digits)
    return rows


def reproduce(folder, *options):
    """Run the command line on the tiny experiment."""
    where = ["--runs", str(folder / "runs"), "--results", str(folder / "results")]
    return cli.main(["reproduce", "adult", *where, *options])


class Trainer:
    """A stand-in for training that writes what a run leaves behind, and is interrupted where it is told to be."""

    def __init__(self):
        self.asked, self.interrupt_at = [], None

    def __call__(self, config, console, name):
        folder = config.run.out
        self.asked.append((folder.name, config.run.resume))
        folder.mkdir(parents=True, exist_ok=True)
        records.write_json(folder / "config.json", {"config": identity(config)})
        if len(self.asked) == self.interrupt_at:
            raise RunInterrupted("interrupted")
        score = {"test_accuracy": 0.9 + 0.02 * config.run.seed}
        cost = {"noise_multiplier": 4.0, "sampling_prob": 0.1, "num_steps": 20, "delta": 1e-5, "mu_clt": 0.125}
        cost |= {
            "epsilon_clt": 0.4,
            "epsilon_moments_accountant": 0.5,
            "epsilon_lower": 0.4504,
            "epsilon_upper": 0.4596,
        }
        result = score | {"privacy": cost, "config": identity(config)}
        epochs = [{"step": e, "epoch": e, "steps_per_second": 5.0, "epsilon_upper": 0.1 * e} | score for e in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ({}, *epochs)))
        records.write_json(folder / "result.json", result)


def test_interrupted_it_goes_on_and_the_table_says_it_is_partial(tiny, tmp_path, capsys, monkeypatch):
    """An interrupted experiment goes on with what is missing, and its table is marked as partial until then."""
    trainer = Trainer()
    monkeypatch.setattr(runs, "run_quietly", trainer)
    table = tmp_path / "results" / "reproduce_adult.md"
    assert reproduce(tmp_path, "--report") == 0
    assert "Partial: 0 of 3 runs" in table.read_text()
    trainer.interrupt_at = 2
    assert reproduce(tmp_path) == 130
    assert "give the same command again" in capsys.readouterr().err
    assert reproduce(tmp_path, "--report") == 0
    assert "**Partial: 1 of 3 runs are finished.**" in table.read_text()
    assert reproduce(tmp_path) == 0
    assert reproduce(tmp_path) == 0
    # First seeds first; what is finished is not done again, and what was interrupted goes on.
    first, second, third = ("short-seed0", "long-seed0", "short-seed1")
    assert trainer.asked == [(first, False), (second, False), (second, True), (third, False)]
    result = json.loads((tmp_path / "results" / "reproduce_adult.json").read_text())
    assert not result["partial"]
    short, long = result["rows"]
    assert short["found"]["test_accuracy"]["mean"] == pytest.approx(0.91)
    assert short["found"]["test_accuracy"]["stdev"] == pytest.approx(np.std([0.9, 0.92], ddof=1))
    assert long["found"]["test_accuracy"] == {"mean": 0.9, "stdev": None}
    classic = accounting.moments_accountant_epsilon(4.0, 0.1, 20, 1e-5, conversion="classic")
    assert short["privacy"]["epsilon_classic"] == pytest.approx(float(classic))
    text = table.read_text()
    assert "Partial" not in text
    assert "50.0 / 91.0 ± 1.41 %" in text
    assert "[0.450, 0.460]" in text
    assert "long: all chosen by us." in text


def test_nothing_recorded_is_lost(tiny, tmp_path, capsys, monkeypatch):
    """A new clone, which has the result files but no folders of runs, keeps the runs that are on record."""
    trainer = Trainer()
    monkeypatch.setattr(runs, "run_quietly", trainer)
    path, folder = tmp_path / "results" / "reproduce_adult.json", tmp_path / "runs"
    assert reproduce(tmp_path, "--rows", "short") == 0
    assert [name for name, _ in trainer.asked] == ["short-seed0", "short-seed1"]
    before = path.read_bytes()
    shutil.rmtree(folder)
    capsys.readouterr()
    assert reproduce(tmp_path, "--report") == 0
    assert f"2 of the runs are as {path} had them, not from {folder}" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert reproduce(tmp_path, "--rows", "long") == 0
    assert trainer.asked[2:] == [("long-seed0", False)], "what is recorded is no reason to train it"
    result = json.loads(path.read_text())
    assert result["rows"][0] == json.loads(before)["rows"][0]
    assert [row["seeds"] for row in result["rows"]] == [{"finished": n, "planned": n} for n in (2, 1)]
    # What was recorded with other settings is not kept, and what is done again takes the place of what was.
    result["rows"][0]["runs"][1]["result"]["config"]["learning_rate"] = 9.0
    result["rows"][1]["runs"][0]["steps_per_second"] = 9.0
    path.write_text(json.dumps(result))
    assert reproduce(tmp_path, "--report") == 0
    short, long = json.loads(path.read_text())["rows"]
    assert short["seeds"] == {"finished": 1, "planned": 2}
    assert long["runs"][0]["steps_per_second"] == 5.0


def test_a_folder_with_another_configuration_is_refused_before_anything_runs(tiny, tmp_path, capsys, monkeypatch):
    """A run's folder with another configuration is refused, and nothing is trained."""
    planned = runs.plan_runs(tiny, tmp_path / "runs" / "adult", None)
    other = planned[-1]
    other.folder.mkdir(parents=True)
    (other.folder / "config.json").write_text(json.dumps({"config": identity(other.config) | {"learning_rate": 9.0}}))
    monkeypatch.setattr(command.runs, "train_missing", lambda *args: pytest.fail("trained"))
    assert reproduce(tmp_path) == 2
    assert "learning_rate: 9.0 then, 0.5 now" in capsys.readouterr().err


def test_scores_of_grades():
    """The error of grades is that of the expected grade, and other labels have their accuracy only."""
    inputs, labels = np.zeros((7, 2), np.int32), np.array([0, 1, 2, 3, 4, 4, 4], np.int32)

    class Fixed:
        @staticmethod
        def apply(variables, pairs):
            return jnp.broadcast_to(variables["params"], (len(pairs), 5))

    dataset = Dataset(inputs, labels, inputs, labels, graded=True)
    logits = jnp.array([0.0, 1.0, 0.0, 2.0, -1.0])
    expected = float(jax.nn.softmax(logits) @ jnp.arange(5.0))
    scores = make_scores(Fixed, dataset)(logits)  # type: ignore[arg-type]
    np.testing.assert_allclose(scores["test_rmse"], np.sqrt(np.mean((expected - labels) ** 2)), rtol=1e-6)
    assert scores["test_accuracy"] == pytest.approx(1 / 7)
    assert set(make_scores(Fixed, dataclasses.replace(dataset, graded=False))(logits)) == {"test_accuracy"}


def made_up(name):
    """Return a result file with a finished run of every row."""
    rows = []
    for row in EXPERIMENTS[name]:
        optimizer, privacy = row.config.optimizer, row.config.privacy
        num_epochs = optimizer.epochs
        epochs = [
            {"step": e, "epoch": e, "test_accuracy": 0.97 - 0.3 / e, "epsilon_upper": 0.1 * e, "epsilon_lower": 0.1 * e}
            for e in range(1, num_epochs + 1)
        ]
        cost = {"noise_multiplier": privacy.noise_multiplier, "sampling_prob": 0.01, "num_steps": 100, "mu_clt": 1.0}
        cost |= {"delta": 1e-5, "epsilon_clt": 1.0, "epsilon_moments_accountant": 1.0, "epsilon_lower": 1.0}
        found = {"test_accuracy": {"mean": 0.9, "stdev": None}}
        result = {"test_accuracy": 0.9, "config": {}, "privacy": cost | {"epsilon_upper": 1.0}}
        run = {"seed": 0, "result": result, "epochs": epochs, "steps_per_second": None}
        rows.append({"name": row.name, "found": found, "runs": [run]})
    return {"rows": rows}


@pytest.mark.slow
def test_figures_are_drawn_from_result_files_alone(tmp_path, capsys, monkeypatch):
    """All figures are drawn from result files, and one whose file is missing is left out with a word."""
    monkeypatch.setattr(accountant_grid, "NOISE", (0.8, 2.0))
    monkeypatch.setattr(accountant_grid, "EPOCHS", (1, 5))
    options = ["--results", str(tmp_path), "--figures", str(tmp_path / "figures")]
    assert cli.main(["reproduce", "figures", *options]) == 0  # the grid needs no training
    said = capsys.readouterr().out
    assert "figure4.png is left out: it needs" in said
    assert "which comes from: python -m experiments reproduce figure4" in said
    for name in EXPERIMENTS:
        (tmp_path / f"reproduce_{name}.json").write_text(json.dumps(made_up(name)))
    assert cli.main(["reproduce", "figures", *options]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(figures.FIGURES)
    lines = (tmp_path / accountant_grid.FILE).read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * len(accountant_grid.PROB)


def test_intervals_are_rounded_outwards():
    """Rounded to the nearest, [5.637995, 5.641118] would become [5.638, 5.641], which is not true."""
    assert records.interval({"epsilon_lower": 5.637995, "epsilon_upper": 5.641118}) == "[5.637, 5.642]"
    above = float(np.nextafter(2.5, 3))  # 1000 times it is 2500 in floats
    assert records.upper(above, 3) == "2.501"


def test_every_committed_result_is_of_these_settings():
    """A table beside other settings would be a claim that does not reproduce."""
    from pathlib import Path

    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    for name, rows in EXPERIMENTS.items():
        path = folder / f"reproduce_{name}.json"
        if not path.is_file():
            continue
        result = json.loads(path.read_text())
        assert path.with_suffix(".md").read_text() == tables.markdown(result)
        for row, written in zip(rows, result["rows"], strict=True):
            assert written["name"] == row.name
            for run in written["runs"]:
                assert run["result"]["config"] == identity(row.run(run["seed"]))


@pytest.mark.parametrize("added", [True, False])
def test_clipping_before_equal_words_are_added_leaves_too_long_gradients(added):
    """One way of clipping is `clipped_grad`, and the other exceeds the clip norm."""
    model = models.build("paper_text", 2)
    drawn = np.random.default_rng(1).integers(1, 9_999, (5, 256))
    words = np.where(np.arange(256) < 200, 0, drawn).astype(np.int32)
    labels, padding = np.array([0, 1, 1, 0, 1]), np.arange(5) == 4
    params = jax.tree.map(lambda x: 8 * np.asarray(x), jax.jit(model.init)(jax.random.key(0), words[0])["params"])
    clipped_sum = jax.jit(imdb_clipping.clipped_sum, static_argnums=5)
    total = clipped_sum(params, words, labels, padding, 0.01, added)
    if added:
        clipped = jax.jit(gdpjax.clipped_grad(models.example_loss(model), 0.01, batch_argnums=(1, 2)))
        expected = clipped(params, words, labels, is_padding=padding)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), total, expected)
    else:
        is_other = np.arange(5) > 0
        alone = clipped_sum(params, words, labels, is_other, 0.01, added)
        assert float(optax.tree.norm(alone)) > 0.03
