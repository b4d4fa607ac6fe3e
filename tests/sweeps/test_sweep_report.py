"""The report of a sweep has averages, fronts and the price of choosing, on a page that needs nothing else."""

import html.parser
import io

import jax
import numpy as np
import pytest
from rich.console import Console

from gdpjax import accounting
from gdpjax.plotting import style
from gdpjax.sweeps import _folder, _report, _results, _sweep, list_trials, report_sweep
from tests.drawings import assert_nothing_is_cut, numbers_of
from tests.sweeps.sweeps import SMALL, examples_of, spec_of

GRID = f"""{SMALL}
learning_rate = {{ min = 0.01, max = 1, count = 25, log = true }}
l2_clip_norm = [0.5, 1, 2, 4]
noise_multiplier = [1.0, 2.0, 4.0, 8.0, 16.0]
seeds = 2
"""


def made_up(trial, layout):
    """Return a row with figures that look like those of a sweep; every hundredth trial has failed."""
    noise_multiplier = trial.settings["noise_multiplier"]
    row = dict.fromkeys(layout.columns) | trial.settings
    row |= {"trial": trial.number, "replicate": trial.replicate, "seconds": 0.1, "mu_clt": 1 / noise_multiplier}
    row |= {"num_steps": 8, "sampling_prob": 0.125, "overflow": 1e-14, "delta": 1e-5}
    for name in layout.columns:
        if name.startswith("epsilon_"):
            row[name] = 3 / noise_multiplier

    # Accuracy is best at the learning rate 0.1.
    distance = abs(np.log10(trial.settings["learning_rate"] / 0.1))
    noise = np.random.default_rng(trial.number).normal()
    row["test_accuracy"] = 0.9 - 0.2 * distance + 0.02 * noise
    if trial.number % 100 == 99:
        row["test_accuracy"] = None
        row["error"] = 'RuntimeError: <script>alert("no")</script>'
    return row


def begin(folder, text, dataset, num_trials=None):
    """Begin a sweep in a folder, and return its trials and its columns."""
    spec = spec_of(text)
    trials = list_trials(spec)[:num_trials]
    layout = _sweep.layout_of(spec, trials, ("test_accuracy",))
    about = _folder.Described(spec.described(), dict(spec.task.names), layout, len(trials), "of no program")
    _folder.begin(folder, jax.random.key(0), spec, examples_of(dataset), about)
    return trials, layout


@pytest.fixture(scope="module")
def large(tmp_path_factory, small_digits):
    """Return the folder of 1,000 made-up trials in parts of 16, with one part twice."""
    folder = tmp_path_factory.mktemp("large")
    trials, layout = begin(folder, GRID, small_digits)
    rows = [made_up(trial, layout) for trial in trials]
    for first in range(0, len(rows), 16):
        _folder.write_part(folder, rows[first : first + 16], layout)
    _folder.write_part(folder, rows[:16], layout)
    return folder


class Outside(html.parser.HTMLParser):
    """A parser that collects all links of a page, its rows and its images, and checks its nesting."""

    VOID = ("meta", "link", "img")
    LINKS = ("src", "href", "srcset", "action")

    def __init__(self):
        super().__init__()
        self.links = []
        self.num_rows = 0
        self.num_images = 0
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.num_rows += tag == "tr"
        self.num_images += tag == "img"
        self.links += [value for name, value in attrs if name in self.LINKS]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_thousand_trials(large):
    """A finished sweep has each trial once, in one small file, and a page that takes nothing from elsewhere."""
    _folder.finish(large, _folder.described(large).layout)
    result = report_sweep(large)
    rows = result.rows
    page = result.report
    assert [row["trial"] for row in rows] == list(range(1000)), "each once, in order"

    # The parts are not needed any more.
    for path in (large / _folder.PARTS).iterdir():
        path.unlink()
    assert _folder.read_rows(large, result.layout) == rows, "the one file holds them all"
    assert not list(large.glob("*.partial"))
    assert (large / _folder.RESULTS).stat().st_size < 200_000

    text = page.read_text()
    parser = Outside()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    for link in parser.links:
        assert link.startswith("data:")
    assert "http" not in text
    assert parser.num_images == 1
    assert parser.num_rows > 1010

    # Errors are escaped, and what choosing costs is said.
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "Choosing among trials on the same private data costs privacy" in text
    assert "evaluation data are taken as public" in text
    assert "<!--" not in text.removeprefix("<!doctype html>")
    assert (page.parent / _report.PARETO).stat().st_size > 10_000


LAYOUT = _results.Layout(
    {"learning_rate": "double", "noise_multiplier": "double", "epsilon": "double"},
    ["test_accuracy"],
    "test_accuracy",
    minimize=False,
)


def rows_of(*figures):
    """Return rows of (learning rate, epsilon, accuracy)."""
    rows = []
    for number, (learning_rate, epsilon, accuracy) in enumerate(figures):
        run = {
            "noise_multiplier": 2.0 / epsilon,
            "sampling_prob": 0.1,
            "num_steps": 100,
            "delta": 1e-5,
            "overflow": 0.0,
        }
        found = {"learning_rate": learning_rate, "epsilon_upper": epsilon, "test_accuracy": accuracy}
        rows.append(dict.fromkeys(LAYOUT.columns) | run | found | {"trial": number})
    return rows


@pytest.fixture
def draw(monkeypatch):
    """Return a function that draws some rows, and returns the figure that would be saved."""
    figures = []
    monkeypatch.setattr(style, "save_figure", lambda figure, path: figures.append(figure))

    def figure_of(rows, layout):
        front = _results.pareto_front(_results.configurations(rows, layout), layout)
        _report.save_pareto(rows, front, layout, _report.PARETO)
        return figures.pop()

    return figure_of


@pytest.mark.parametrize("minimize", [False, True])
def test_bad_trials_are_not_drawn_and_told_in_words(draw, minimize):
    """A few bad trials do not flatten the rest: the legend counts them."""
    layout = _results.Layout(LAYOUT.hyperparameters, ["rmse"], "rmse", minimize)
    sign = -1 if minimize else 1
    good = [(0.1 * n, epsilon, sign * (0.9 + 0.003 * n)) for epsilon in (0.5, 1.0, 2.0) for n in range(1, 8)]
    rows = rows_of(*good, (1.6, 1.0, sign * 0.1), (3.2, 2.0, sign * 0.2))
    figure = draw([row | {"rmse": row["test_accuracy"]} for row in rows], layout)
    assert "one training (2 far worse left out)" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert_nothing_is_cut(figure)
    (axes,) = figure.axes
    assert axes.bbox.width > 0.78 * figure.bbox.width
    assert axes.collections[0].get_offsets().tolist() == [[epsilon, score] for _, epsilon, score in good]
    assert max(np.abs(axes.get_ylim())) < 0.95
    assert min(np.abs(axes.get_ylim())) > 0.85


@pytest.mark.parametrize(
    ("epsilons", "numbers"),
    [
        ((0.49999, 1.0, 1.99997, 3.9999, 3.99999), ["0.5", "1", "2", "4"]),
        ((1e-5, 1e-3, 0.1), ["1e-05", "0.001", "0.1"]),
        ((1.0, 1.05, 1.1, 4.0, 8.0), ["1", "2", "5"]),
        ([1.4**n for n in range(9)], ["1", "2", "5", "10"]),
        ((1.0, 1.05, 1.1, 4.0), None),
    ],
)
def test_every_tick_has_a_number_that_can_be_read_and_is_at_an_epsilon_where_these_are_few(draw, epsilons, numbers):
    figure = draw(rows_of(*((value, value, 0.8 + 0.01 * n) for n, value in enumerate(epsilons))), LAYOUT)
    assert_nothing_is_cut(figure)
    found = [number for _, axis, number in numbers_of(figure) if axis == "x"]
    assert numbers in (None, found)


def learning_rates(configurations):
    return [each.rows[0]["learning_rate"] for each in configurations]


def test_seeds_are_averaged_and_the_front_is_of_means():
    """The trials of one configuration are averaged, and the front and the best are those of the means."""
    rows = rows_of(
        (0.1, 1.0, 0.7),
        (0.1, 1.0, 0.9),
        (0.2, 1.0, 0.75),
        (0.1, 2.0, 0.78),
        (0.2, 2.0, 0.95),
        (0.3, 3.0, 0.9),
    )
    survived, failed = rows_of((0.4, 0.5, 0.99), (0.4, 0.5, None))
    failed["error"] = "diverged"
    configurations = _results.configurations([*rows, survived, failed], LAYOUT)

    averaged = configurations[0]
    assert averaged.epsilon_upper == 1.0
    assert round(averaged.mean, 3) == 0.8
    assert [row["trial"] for row in averaged.rows] == [0, 1]
    assert averaged.stdev == pytest.approx(np.std([0.7, 0.9], ddof=1))
    of_one_trial = configurations[1]
    assert of_one_trial.stdev is None

    front = _results.pareto_front(configurations, LAYOUT)
    assert learning_rates(front) == [0.1, 0.2]
    assert [each.epsilon_upper for each in front] == [1.0, 2.0]
    for budget, last in ((2.0 - 1e-9, 0), (2.0, 1), (9.0, 1)):
        assert _results.best_within(configurations, LAYOUT, budget) is front[last]
    assert _results.best_within(configurations, LAYOUT, 1.0 - 1e-12) is None


def test_one_lucky_seed_is_not_the_best(tmp_path, small_digits):
    """The best is that of the mean over seeds, for the function, the page, the summary and the progress alike."""
    trials, layout = begin(tmp_path, SMALL + "learning_rate = [0.1, 0.2]\nseeds = 2\n", small_digits)
    accuracies = [0.9, 0.1, 0.6, 0.7]
    rows = [made_up(trial, layout) | {"test_accuracy": value} for trial, value in zip(trials, accuracies, strict=True)]
    _folder.write_part(tmp_path, rows, layout)
    said = io.StringIO()
    console = Console(file=said, width=200)
    found = report_sweep(tmp_path, console)
    best = found.best(epsilon=10.0)
    assert "test accuracy (%) 65 \u00b1 7.1 over 2 seeds, at epsilon" in found.best_in_words(epsilon=10.0)
    assert (best["learning_rate"], best["trial"]) == (0.2, [2, 3])
    assert best["test_accuracy"] == pytest.approx(0.65)
    assert best["test_accuracy_stdev"] == pytest.approx(np.std([0.6, 0.7], ddof=1))

    table = found.report.read_text().partition("<table")[2].partition("</table>")[0]
    assert "65 \u00b1 7.1" in table
    assert "50 \u00b1" not in table
    _sweep.SweepProgress(console, layout).on_chunk(rows)
    assert said.getvalue().count("65 \u00b1 7.1") == 2


def test_price_is_that_of_the_accountants():
    """Ten equal trials cost what ten times the steps cost; the best of a random number is tuning_epsilon."""
    rows = rows_of(*((0.1 * number, 1.0, 0.5) for number in range(1, 11)))
    price = _results.price(rows)
    num_steps = np.array([100, 1000])
    epsilons = accounting.moments_accountant_epsilon(2.0, 0.1, num_steps, 1e-5)
    of_one_trial, of_ten_trials = np.asarray(epsilons).tolist()
    assert price.all_trials == pytest.approx(of_ten_trials, rel=0.02)

    gamma = accounting.gamma_for_mean_num_runs(10.0, eta=0.0)
    tuned = float(accounting.tuning_epsilon(2.0, 0.1, 100, 1e-5, eta=0.0, gamma=gamma))
    assert price.best_of_random_number == pytest.approx(tuned, rel=0.02)
    assert of_one_trial < price.best_of_random_number < price.all_trials
    assert _results.price(rows[:1]) is None


def test_cells_are_rounded_to_the_safe_side():
    """Upper bounds are rounded up, lower ones down, and settings not at all."""
    value = 2.0000049
    assert LAYOUT.text("epsilon_upper", value) == "2.0001"
    assert LAYOUT.text("epsilon_lower", value) == "2"
    assert LAYOUT.text("noise_multiplier", value) == "2.0001"
    assert LAYOUT.text("noise_multiplier", float(np.nextafter(np.float32(1.1), np.float32(2)))) == "1.1001"
    assert LAYOUT.text("noise_multiplier", float(np.float32(1.1))) == "1.1", "as it was given"
    assert LAYOUT.text("learning_rate", value) == "2.0000049"
    assert LAYOUT.text("epsilon_upper", float("inf")) == "inf"
    assert LAYOUT.text("test_accuracy", 0.12345678) == "12.346"


def test_of_equal_means_the_cheaper_is_the_best():
    """Means of float32 accuracies that are equal but for rounding do not make a larger epsilon the better one."""
    rows = rows_of(*((0.1, 2.0, float(np.float32(n) / np.float32(600))) for n in (534, 541)))
    rows += rows_of(*((0.2, 1.0, float(np.float32(n) / np.float32(600))) for n in (537, 538)))
    candidates = _results.configurations(rows, LAYOUT)
    assert _results.best_within(candidates, LAYOUT).epsilon_upper == 1.0
    assert learning_rates(_results.pareto_front(candidates, LAYOUT)) == [0.2]
