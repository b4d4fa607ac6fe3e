"""The recipes have the features, models and files that they state, and a small one goes from search to table."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import data
from experiments.data import imdb, mnist
from experiments.data.class_whitening import ClassWhitening
from experiments.recipes import command, outcome, tables
from experiments.recipes.catalogue import RECIPES
from experiments.sweeps.command import read as read_spec
from gdpjax.sweeps import UserError, list_trials
from tests.sweeps.sweeps import small

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
    """The winner has settings that were searched, and is trained without holding data out."""
    search = read_spec(RECIPES[name].search)
    winner = read_spec(RECIPES[name].winner)
    assert search.content.hold_out == 0.1
    assert winner.content.hold_out is None
    assert search.task.names == winner.task.names
    assert search.delta == winner.delta

    searched = [trial.settings for trial in list_trials(search)]
    trained = [trial.settings for trial in list_trials(winner)]
    assert len(searched) > 1
    assert trained[0] in searched
    for settings in trained:
        assert settings == trained[0]


def test_words_are_marked_by_rank_once_whatever_their_order():
    """A review is a unit vector with an entry for each frequent word in it, the larger the rarer the word is."""
    features = imdb.words([[1, 4, 5, 4, 2, 2003, 2004], [2004, 0, 1, 2, 3]], 2)
    assert features.shape == (2, 2000)

    # The words 4, 5 and 2003 have the ranks 1, 2 and 2000; the others are no words, or too rare.
    places = [0, 1, 1999]
    assert np.flatnonzero(features[0]).tolist() == places
    expected = np.sqrt([1, 2, 2000]) / np.sqrt(2003)
    np.testing.assert_allclose(features[0][places], expected, rtol=1e-6)
    assert not features[1].any()

    in_another_order = imdb.words([[2003, 5, 4, 5]], 1)
    np.testing.assert_array_equal(features[:1], in_another_order)


@pytest.fixture
def whitening(monkeypatch):
    """Return coordinates that no digits were drawn for, which take the place of the public ones."""
    matrix = np.random.default_rng(0).normal(size=(3969, 500)).astype(np.float32)
    whitening = ClassWhitening(np.zeros(3969, np.float32), matrix)
    monkeypatch.setattr(mnist, "_public_whitening", lambda: whitening)
    return whitening


def test_features_of_an_image_do_not_depend_on_the_others(whitening):
    """An image has the same features among others as alone."""
    images = np.random.default_rng(0).uniform(size=(4, 28, 28)).astype(np.float32)
    together = mnist._vectors(images, whitening)
    alone = mnist._vectors(images[2:3], whitening)
    np.testing.assert_allclose(together[2:3], alone, rtol=1e-3, atol=1e-4)


def test_the_coordinates_are_those_of_public_digits(monkeypatch):
    """The coordinates are fitted to public digits, and MNIST is not read for them."""
    generator = np.random.default_rng(0)
    images = generator.uniform(size=(40, 28, 28)).astype(np.float32)
    labels = np.arange(40) % 4
    monkeypatch.setattr(mnist.public_digits, "load_public_digits", lambda: (images, labels))
    monkeypatch.setattr(mnist, "NUM_COMPONENTS", 5)
    monkeypatch.setattr(mnist, "NUM_BLOCKS", 1)
    monkeypatch.setattr(mnist, "load_mnist", lambda: pytest.fail("the coordinates were fitted on MNIST"))

    whitening = mnist._public_whitening.__wrapped__()
    assert whitening.matrix.shape == (81, 5)
    np.testing.assert_allclose(whitening.mean, mnist._coefficients(images).mean(axis=0), rtol=1e-5)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Return a recipe for a few digits, whose winner is to be written by the test."""
    full = small(data.load("digits"))
    monkeypatch.setattr(data, "load", lambda name: full)
    folder = tmp_path / "recipes"
    folder.mkdir()

    class Here(type(RECIPES["adult"])):
        search = folder / "tiny.toml"
        winner = folder / "winner.toml"

    fields = dataclasses.asdict(RECIPES["adult"])
    recipe = Here(**fields | {"name": "tiny", "tried_before": 3})
    recipe.search.write_text(SEARCH)
    monkeypatch.setattr(command, "RECIPES", {"tiny": recipe})
    return recipe


@pytest.mark.slow
def test_a_small_recipe_from_search_to_table(tiny, tmp_path):
    """The best trial of the search is trained with two seeds, recorded with its price, and shown in the table."""
    from rich.console import Console

    rows = command._rows_of_sweep(tiny.search, tmp_path / "runs" / "tiny-search")
    best_learning_rate = max(rows, key=lambda row: row["test_accuracy"])["learning_rate"]

    # The winner is the search with the best learning rate, on all data and with two seeds.
    winner = SEARCH.replace("hold_out = 0.25\n", "").replace("[0.01, 0.5]", str(best_learning_rate))
    tiny.winner.write_text(winner.replace("seeds = [0]", "seeds = [0, 1]"))

    path = command.reproduce(["tiny"], tmp_path / "runs", tmp_path, Console(quiet=True))
    record = json.loads(path.read_text())["recipes"]["tiny"]
    assert record["settings"]["learning_rate"] == best_learning_rate
    assert record["seeds"] == [0, 1]
    assert record["tuning"]["mean_num_runs"] == 5
    assert record["cost"]["epsilon_lower"] < record["cost"]["epsilon_upper"] < record["tuning"]["epsilon"]
    assert path.with_suffix(".md").read_text() == tables.markdown(tables.read(tmp_path))


def test_a_winner_that_is_not_the_best_is_refused():
    """A winner that another trial of the search beats is refused, and so is a search without a successful trial."""
    recipe = RECIPES["adult"]
    row = {"error": None, "l2_clip_norm": 1.0, "epsilon": 1.0, "batch_size": 8, "epochs": 1}
    searched = [row | {"learning_rate": rate, "test_accuracy": rate} for rate in (0.1, 0.3, 0.2)]
    specs = (read_spec(recipe.search), read_spec(recipe.winner))

    names_the_best = r"winners/adult\.toml is not the best .* learning_rate = 0\.3, l2_clip_norm = 1"
    with pytest.raises(UserError, match=names_the_best):
        outcome.outcome(recipe, specs, searched, [searched[0]])
    with pytest.raises(UserError, match=r"every trial of .* failed: diverged"):
        outcome.outcome(recipe, specs, [row | {"error": "diverged"}], searched)


def table_rows(text):
    """Return the lines of the Markdown tables in a text."""
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_documentation_shows_the_result_file():
    """The page on recipes and the results show the table that is made from the result file."""
    root = Path(__file__).parents[2]
    of_page = table_rows((root / "docs" / "recipes.md").read_text())
    of_results = table_rows((root / "benchmarks" / "results" / "recipes.md").read_text())
    assert of_page[: len(of_results)] == of_results

    result = tables.read(root / "benchmarks" / "results")
    assert table_rows(tables.markdown(result)) == of_results
    assert list(result["recipes"]) == list(RECIPES)
