"""What a sweep says: averages, fronts, the price of choosing, and a page that needs nothing else."""

import html.parser
import io

import numpy as np
import pytest
from rich.console import Console

from experiments import cli
from gdpjax import accounting
from gdpjax.sweeps import _folder, _progress, _report, _summary, _sweep
from gdpjax.sweeps._layout import Layout, layout_of
from gdpjax.sweeps._pictures import PARETO, VARIED
from gdpjax.sweeps._results import PARTS, RESULTS, read_rows, write_part
from gdpjax.sweeps._trials import list_trials
from tests.sweeps.sweeps import SMALL, examples_of, spec_of

GRID = SMALL + (
    "learning_rate = { min = 0.01, max = 1, count = 25, log = true }\nl2_clip_norm = [0.5, 1, 2, 4]\n"
    "noise_multiplier = [1.0, 2.0, 4.0, 8.0, 16.0]\nseeds = 2\n"
)


def made_up(trial, layout):
    """A row with figures that look like those of a sweep."""
    noise = trial.settings["noise_multiplier"]
    draw = np.random.default_rng(trial.number)
    values = {"trial": trial.number, "replicate": trial.replicate, "delta": 1e-5, "seconds": 0.1} | trial.settings
    values |= {"num_steps": 8, "sampling_prob": 0.125, "overflow": 1e-14, "mu_clt": 1 / noise}
    values |= {name: 3 / noise for name in layout.columns if name.startswith("epsilon_")}
    values["test_accuracy"] = 0.9 - 0.2 * abs(np.log10(trial.settings["learning_rate"] / 0.1)) + 0.02 * draw.normal()
    if trial.number % 100 == 99:
        values |= {"test_accuracy": None, "error": 'RuntimeError: <script>alert("no")</script>'}
    return dict.fromkeys(layout.columns) | values


def begin(folder, text, dataset, num_trials=None):
    """The folder of a sweep, its trials and its columns."""
    spec = spec_of(text)
    trials = list_trials(spec)[:num_trials]
    layout = layout_of(spec, trials, ("test_accuracy",))
    _folder.begin(folder, spec, examples_of(dataset), layout, len(trials), "of no program")
    return trials, layout


@pytest.fixture(scope="module")
def large(tmp_path_factory, small_digits):
    """The folder of 1,000 made-up trials in parts of 16, with one part twice."""
    folder = tmp_path_factory.mktemp("large")
    trials, layout = begin(folder, GRID, small_digits)
    _folder.record_program(folder, {"num_steps": 8, "batch_size": 8, "width": 16, "num_compiled": 1})
    rows = [made_up(trial, layout) for trial in trials]
    for first in range(0, len(rows), 16):
        write_part(folder, rows[first : first + 16], layout)
    write_part(folder, rows[:16], layout)
    return folder


class Outside(html.parser.HTMLParser):
    """Collects whatever a page takes from elsewhere, its rows, and its nesting."""

    VOID = ("meta", "link", "img")

    def __init__(self):
        super().__init__()
        self.links, self.rows, self.open, self.images = [], 0, [], 0

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        self.images += tag == "img"
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_thousand_trials(large):
    result = _sweep.finished_sweep(large)
    rows, page = result.rows, result.report
    assert [row["trial"] for row in rows] == list(range(1000)), "each once, in order"
    for path in (large / PARTS).iterdir():
        path.unlink()
    assert read_rows(large, result.layout) == rows, "the one file holds them all"
    assert not list(large.glob("*.partial"))
    assert (large / RESULTS).stat().st_size < 200_000
    text = page.read_text()
    parser = Outside()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert all(link.startswith("data:") for link in parser.links)
    assert "http" not in text
    assert parser.images == 2
    assert parser.rows > 1010
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "Choosing among trials on the same private data costs privacy" in text
    assert "evaluation data are taken as public" in text
    assert "<!--" not in text.removeprefix("<!doctype html>")
    assert (page.parent / PARETO).stat().st_size > 10_000
    assert (page.parent / VARIED).stat().st_size > 10_000


def test_the_command(large, capsys):
    assert cli.main(["sweep-report", str(large)]) == 0
    said = capsys.readouterr().out
    assert "1000 of 1000 trials are over, 10 failed; 1 compilation for 1 shape" in said
    assert "costs privacy too" in said


LAYOUT = Layout(
    {"learning_rate": "double", "noise_multiplier": "double", "epsilon": "double"},
    ["test_accuracy"],
    "test_accuracy",
    minimize=False,
)


def rows_of(*figures):
    """Rows of (learning rate, epsilon, accuracy)."""
    start = dict.fromkeys(LAYOUT.columns) | {"delta": 1e-5, "sampling_prob": 0.1, "num_steps": 100}
    return [
        start
        | {"trial": i, "learning_rate": rate, "epsilon_upper": at, "test_accuracy": good, "overflow": 0.0}
        | {"noise_multiplier": 2.0 / at}
        for i, (rate, at, good) in enumerate(figures)
    ]


def test_seeds_are_averaged_and_the_front_is_of_means():
    rows = rows_of(
        (0.1, 1.0, 0.7), (0.1, 1.0, 0.9), (0.2, 1.0, 0.75), (0.1, 2.0, 0.78), (0.2, 2.0, 0.95), (0.3, 3.0, 0.9)
    )
    rows += [rows_of((0.4, 0.5, None))[0] | {"error": "diverged"}]
    found = _summary.configurations(rows, LAYOUT)
    assert (found[0].epsilon_upper, round(found[0].mean, 3), found[0].trials) == (1.0, 0.8, [0, 1])
    assert found[0].stdev == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert found[1].stdev is None
    assert [(c.settings["learning_rate"], c.epsilon_upper) for c in _summary.pareto_front(found, LAYOUT)] == [
        (0.1, 1.0),
        (0.2, 2.0),
    ]
    best = [(target, one.settings["learning_rate"], one.mean) for target, one in _summary.best_by_target(found, LAYOUT)]
    assert best == [(1.0, 0.1, pytest.approx(0.8)), (2.0, 0.2, 0.95), (3.0, 0.2, 0.95)]


def test_targets_are_those_of_the_sweep_or_round_numbers():
    rows = rows_of((0.1, 0.99, 0.7), (0.1, 1.98, 0.8))
    given = [row | {"epsilon": target} for row, target in zip(rows, (1.0, 2.0), strict=True)]
    assert [t for t, _ in _summary.best_by_target(_summary.configurations(given, LAYOUT), LAYOUT)] == [1.0, 2.0]
    many = rows_of(*((0.1, 0.3 + i / 10, i / 100) for i in range(40)))
    targets = [t for t, _ in _summary.best_by_target(_summary.configurations(many, LAYOUT), LAYOUT)]
    assert targets == [0.5, 1.0, 2.0, 3.0, 4.0, pytest.approx(4.2)]


def test_price_is_that_of_the_accountants():
    """Ten equal trials cost what ten times the steps cost; the best of a random number is tuning_epsilon."""
    rows = rows_of(*((0.1 * i, 1.0, 0.5) for i in range(1, 11)))
    found = _summary.price(rows)
    one, ten = np.asarray(accounting.moments_accountant_epsilon(2.0, 0.1, np.array([100, 1000]), 1e-5)).tolist()
    assert found.all_trials == pytest.approx(ten, rel=0.02)
    gamma = accounting.gamma_for_mean_num_runs(10.0, eta=0.0)
    tuned = float(accounting.tuning_epsilon(2.0, 0.1, 100, 1e-5, eta=0.0, gamma=gamma))
    assert found.best_of_random_number == pytest.approx(tuned, rel=0.02)
    assert one < found.best_of_random_number < found.all_trials
    assert _summary.price(rows[:1]) is None


def test_the_smallest_score_may_be_the_best():
    layout = Layout(LAYOUT.hyperparameters, LAYOUT.scores, LAYOUT.score, minimize=True)
    found = _summary.configurations(rows_of((0.1, 1.0, 0.7), (0.2, 1.0, 0.6), (0.3, 2.0, 0.65)), layout)
    assert [one.settings["learning_rate"] for one in _summary.pareto_front(found, layout)] == [0.2]
    assert [one.settings["learning_rate"] for _, one in _summary.best_by_target(found, layout)] == [0.2, 0.2]


def test_nothing_that_succeeded_has_a_report_too(tmp_path, small_digits):
    _, layout = begin(tmp_path, SMALL, small_digits)
    failed = dict.fromkeys(layout.columns) | {"trial": 0, "delta": 1e-5, "error": "refused: too little noise"}
    write_part(tmp_path, [failed], layout)
    rows = read_rows(tmp_path, layout)
    page = _report.write_report(tmp_path, rows)
    assert "refused: too little noise" in page.read_text()
    _progress.print_summary(Console(file=io.StringIO()), rows, layout, [], 3)


def test_what_the_folder_says_is_escaped_everywhere(tmp_path, small_digits):
    """The folder may come from somebody else."""
    trials, layout = begin(tmp_path, GRID, small_digits, 2)
    path = tmp_path / _folder.SWEEP
    evil = "<script>alert(1)</script>"
    path.write_text(path.read_text().replace('"digits"', f'"{evil}"'))
    page = _report.write_report(tmp_path, [made_up(trial, layout) for trial in trials]).read_text()
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3, "title, heading and summary"


def test_cells_are_rounded_to_the_safe_side():
    value = 2.0000049
    assert _report.text_of(value, "epsilon_upper", LAYOUT) == "2.0001"
    assert _report.text_of(value, "epsilon_lower", LAYOUT) == "2"
    assert _report.text_of(value, "noise_multiplier", LAYOUT) == "2.0001"
    assert _report.text_of(float(np.nextafter(np.float32(1.1), np.float32(2))), "noise_multiplier", LAYOUT) == "1.1001"
    assert _report.text_of(float(np.float32(1.1)), "noise_multiplier", LAYOUT) == "1.1", "as it was given"
    assert _report.text_of(value, "learning_rate", LAYOUT) == "2.0000049"
    assert _report.text_of(float("inf"), "epsilon_upper", LAYOUT) == "inf"
    assert _report.text_of(0.12345678, "test_accuracy", LAYOUT) == "12.346"


def test_the_page_has_the_results_as_csv_and_words_for_people(large):
    text = (large / "report" / "index.html").read_text()
    assert "trial,learning_rate,l2_clip_norm,noise_multiplier" in text, "for the button, with the names of the columns"
    assert "<th>test accuracy (%)</th>" in text
    assert "<th>clip norm</th>" in text
    assert "memory_bytes" not in text
