"""The recipes: their features, models and files, what their records say, and a small one from search to table."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import data, models
from experiments.config import PRESETS
from experiments.data import files, imdb, mnist
from experiments.data.class_whitening import ClassWhitening
from experiments.errors import UserError
from experiments.models.networks import Factors
from experiments.recipes import command, outcome, tables
from experiments.recipes.catalogue import RECIPES
from experiments.sweeps.command import read as read_spec
from gdpjax.sweeps.parts import list_trials
from tests.sweeps.sweeps import small, spec_of

SEARCH = """
dataset = "digits"
hold_out = 0.25
[hyperparameters]
learning_rate = [0.01, 0.5]
noise_multiplier = 1.0
batch_size = 8
epochs = 1
seeds = [0]
"""


@pytest.mark.parametrize("name", RECIPES)
def test_the_winner_is_one_of_the_search_on_all_training_data(name):
    search, winner = read_spec(RECIPES[name].search), read_spec(RECIPES[name].winner)
    assert search.hold_out == 0.1
    assert winner.hold_out is None
    assert (search.task.names, search.delta) == (winner.task.names, winner.delta)
    searched, trained = ([trial.settings for trial in list_trials(spec)] for spec in (search, winner))
    assert len(searched) > 1
    assert all(settings == trained[0] for settings in trained)
    assert trained[0] in searched


def test_hold_out_is_a_fixed_part_of_the_training_data():
    full = data.load("digits")
    held, again = full.hold_out(0.25), full.hold_out(0.25)
    np.testing.assert_array_equal(held.train_labels, again.train_labels)
    assert len(held.test_labels) == round(0.25 * full.num_examples)
    rows = [np.unique(part.reshape(len(part), -1), axis=0) for part in (held.train_inputs, held.test_inputs)]
    both = np.unique(np.concatenate(rows), axis=0)
    assert len(both) == full.num_examples  # nothing twice, nothing lost, nothing from the test data
    np.testing.assert_array_equal(both, np.unique(full.train_inputs.reshape(full.num_examples, -1), axis=0))


@pytest.mark.parametrize("value", ["0", "1.0", "nan", "true", '"a tenth"'])
def test_hold_out_that_is_no_part_is_refused(value):
    with pytest.raises(UserError, match="line 2: hold_out: expected"):
        spec_of(f'dataset = "digits"\nhold_out = {value}\n')


def test_words_are_marked_by_rank_once_whatever_their_order():
    found = imdb.words([[1, 4, 5, 4, 2, 2003, 2004], [2004, 0, 1, 2, 3]], 2)
    assert found.shape == (2, 2000)
    assert np.flatnonzero(found[0]).tolist() == [0, 1, 1999]
    np.testing.assert_allclose(found[0][[0, 1, 1999]], np.sqrt([1, 2, 2000]) / np.sqrt(2003), rtol=1e-6)
    assert not found[1].any()
    np.testing.assert_array_equal(found[:1], imdb.words([[2003, 5, 4, 5]], 1))


@pytest.fixture
def whitening(monkeypatch):
    """Coordinates that no digits were drawn for."""
    matrix = np.random.default_rng(0).normal(size=(3969, 500)).astype(np.float32)
    found = ClassWhitening(np.zeros(3969, np.float32), matrix)
    monkeypatch.setattr(mnist, "_public_whitening", lambda: found)
    return found


def test_scattering_features_are_cached_for_the_images_they_are_of(whitening, tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "cache_folder", lambda: tmp_path)
    images = np.random.default_rng(0).uniform(size=(3, 28, 28, 1)).astype(np.float32)
    found = mnist._features(images)
    assert found.shape == (3, 500)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 3, rtol=1e-6)
    monkeypatch.setattr(mnist, "_vectors", lambda images, whitening: np.zeros((len(images), 500), np.float32))
    np.testing.assert_array_equal(mnist._features(images), found)
    assert not mnist._features(images[:2]).any()  # other images: not those of the cache


def test_features_of_an_image_do_not_depend_on_the_others(whitening):
    images = np.random.default_rng(0).uniform(size=(4, 28, 28)).astype(np.float32)
    together, alone = mnist._vectors(images, whitening), mnist._vectors(images[2:3], whitening)
    np.testing.assert_allclose(together[2:3], alone, rtol=1e-3, atol=1e-4)


def test_the_coordinates_are_those_of_public_digits(monkeypatch):
    generator = np.random.default_rng(0)
    public = generator.uniform(size=(40, 28, 28)).astype(np.float32), np.arange(40) % 4
    monkeypatch.setattr(mnist.public_digits, "load_public_digits", lambda: public)
    monkeypatch.setattr(mnist, "NUM_COMPONENTS", 5)
    monkeypatch.setattr(mnist, "NUM_BLOCKS", 1)
    monkeypatch.setattr(mnist, "load_mnist", lambda: pytest.fail("the coordinates were fitted on MNIST"))
    found = mnist._public_whitening.__wrapped__()
    assert found.matrix.shape == (81, 5)
    np.testing.assert_allclose(found.mean, mnist._coefficients(public[0]).mean(axis=0), rtol=1e-5)


def test_the_cache_is_where_downloads_are(tmp_path, monkeypatch):
    import pooch

    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    assert files.cache_folder() == tmp_path / "gdpjax"


def test_linear_is_logistic_regression():
    model = models.build("linear", jax.ShapeDtypeStruct((5,), jnp.float32), 3)
    x, y = jnp.arange(5.0), jnp.int32(1)
    params = jax.jit(model.init)(jax.random.key(0), x)["params"]
    assert {leaf.shape for leaf in jax.tree.leaves(params)} == {(5, 3), (3,)}
    gradient = jax.jit(jax.grad(models.example_loss(model)))(params, x, y)["Dense_0"]
    residual = np.array([1 / 3, -2 / 3, 1 / 3])
    np.testing.assert_allclose(gradient["kernel"], np.outer(x, residual), rtol=1e-6)
    np.testing.assert_allclose(gradient["bias"], residual, rtol=1e-6)


def test_the_factors_gradient_is_the_expected_grade_less_the_one_given():
    model = Factors(5, num_users=4, num_movies=3)
    pair, grade = np.array([2, 1], np.int32), np.int32(4)
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0), pair)["params"])
    apply = jax.jit(model.apply)
    logits = np.asarray(apply({"params": params}, pair))
    user, movie = params["user"]["embedding"][2], params["movie"]["embedding"][1]
    shift = user[0] + movie[0] + user[1:] @ movie[1:]
    np.testing.assert_allclose(logits, np.arange(5) * shift, rtol=1e-5)
    gradient = jax.jit(jax.grad(models.example_loss(model)))(params, pair, grade)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    difference = probabilities @ np.arange(5.0) - 4
    expected = np.zeros((4, 3))
    expected[2] = difference * np.concatenate([[1], movie[1:]])
    np.testing.assert_allclose(gradient["user"]["embedding"], expected, rtol=1e-5, atol=1e-7)
    batched = apply({"params": params}, np.stack([pair, pair[::-1]]))
    np.testing.assert_allclose(batched[0], logits, rtol=1e-6)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A recipe for a few digits, whose winner is to be written by the test."""
    full = small(data.load("digits"))
    monkeypatch.setattr(data, "load", lambda name: full)
    folder = tmp_path / "recipes"
    folder.mkdir()

    class Here(type(RECIPES["adult"])):
        search, winner = folder / "tiny.toml", folder / "winner.toml"

    recipe = Here(**dataclasses.asdict(RECIPES["adult"]) | {"name": "tiny", "tried_before": 3})
    recipe.search.write_text(SEARCH)
    monkeypatch.setattr(command, "RECIPES", {"tiny": recipe})
    return recipe


@pytest.mark.slow
def test_a_small_recipe_from_search_to_table(tiny, tmp_path):
    from rich.console import Console

    rows = command._rows_of_sweep(tiny.search, tmp_path / "runs" / "tiny-search")
    best = max(rows, key=lambda row: row["test_accuracy"])["learning_rate"]
    text = (
        SEARCH.replace("hold_out = 0.25\n", "")
        .replace("[0.01, 0.5]", str(best))
        .replace("seeds = [0]", "seeds = [0, 1]")
    )
    tiny.winner.write_text(text)
    path = command.reproduce(["tiny"], tmp_path / "runs", tmp_path, Console(quiet=True))
    record = json.loads(path.read_text())["recipes"]["tiny"]
    assert record["settings"]["learning_rate"] == best
    assert record["seeds"] == [0, 1]
    assert record["tuning"]["mean_num_runs"] == 5
    assert record["cost"]["epsilon_lower"] < record["cost"]["epsilon_upper"] < record["tuning"]["epsilon"]
    assert path.with_suffix(".md").read_text() == tables.markdown(tables.read(tmp_path))


def test_a_winner_that_is_not_the_best_is_refused():
    recipe = RECIPES["adult"]
    row = {"error": None, "l2_clip_norm": 1.0, "epsilon": 1.0, "batch_size": 8, "epochs": 1}
    searched = [row | {"learning_rate": rate, "test_accuracy": rate} for rate in (0.1, 0.3, 0.2)]
    specs = read_spec(recipe.search), read_spec(recipe.winner)
    with pytest.raises(
        UserError, match=r"winners/adult\.toml is not the best .* learning_rate = 0\.3, l2_clip_norm = 1"
    ):
        outcome.outcome(recipe, specs, searched, [searched[0]])
    with pytest.raises(UserError, match=r"every trial of .* failed: diverged"):
        outcome.outcome(recipe, specs, [row | {"error": "diverged"}], searched)


def test_the_price_of_choosing_grows_with_what_was_tried():
    row = {"noise_multiplier": 2.0, "sampling_prob": 0.1, "num_steps": 100, "delta": 1e-5, "overflow": 1e-12}
    few, many = (outcome._tuning(row, tried)["epsilon"] for tried in (2, 100))
    assert few < many


def test_the_documentation_shows_the_result_file():
    root = Path(__file__).parents[2]
    rows = lambda path: [line for line in path.read_text().splitlines() if line.startswith("|")]  # noqa: E731
    shown, found = rows(root / "docs" / "recipes.md"), rows(root / "benchmarks" / "results" / "recipes.md")
    assert shown[: len(found)] == found
    result = tables.read(root / "benchmarks" / "results")
    assert [line for line in tables.markdown(result).splitlines() if line.startswith("|")] == found
    assert list(result["recipes"]) == list(RECIPES)


@pytest.mark.parametrize("name", ["mnist", "imdb"])
def test_presets_of_features_are_the_winners(name):
    winner = read_spec(RECIPES[name].winner)
    settings = list_trials(winner)[0].settings
    preset = PRESETS[winner.task.names["dataset"]]
    used = dataclasses.asdict(preset.optimizer) | dataclasses.asdict(preset.privacy)
    assert all(used[each] == settings[each] for each in settings if each != "epsilon")
    noise = tables.read(Path(__file__).parents[2] / "benchmarks" / "results")["recipes"][name]["settings"]
    assert noise["noise_multiplier"] <= used["noise_multiplier"] <= 1.001 * noise["noise_multiplier"]
