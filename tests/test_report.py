"""The report card: its figures, its forms, what it escapes, and its command."""

import json
import math
import re

import numpy as np
import pytest

import gdpjax
from gdpjax import Event, Ledger, accounting, report
from gdpjax.cli import main
from gdpjax.ledger import (
    AllocationEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    LaplaceEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
)
from gdpjax.reporting._runs import describe_run
from gdpjax.tradeoff import Laplace, compose

RUN = 2.0, 0.02, 50
NASTY = 'run <b>&"$_%{}~^#|\\\n'


@pytest.fixture(scope="module")
def card():
    return report(RUN, deltas=[1e-5, 1e-6])


@pytest.fixture(scope="module")
def cards():
    return report(RUN, Ledger([LaplaceEvent(0.5)]), Event(0.0, 0.1, 3), names=[NASTY, "[laplace]", "bare"], deltas=1e-5)


def test_figures_are_those_of_the_accountant(card):
    curve = accounting.certified(Event(*RUN))
    assert card.figure("epsilon_at_delta_1e-05") == tuple(curve.epsilon(1e-5))
    assert card.figure("epsilon_at_delta_1e-06") == tuple(curve.epsilon(1e-6))
    assert card.figure("mu") == tuple(curve.mu())
    assert card.figure("regret") == tuple(curve.regret())
    assert card.figure("advantage") == tuple(curve.advantage())
    assert card.figure("tpr_at_fpr_0.01") == tuple(curve.tpr(0.01))
    assert card.figure("bayes_success") == tuple(curve.bayes_success(0.5))
    assert card.figure("epsilon_moments_accountant") == accounting.moments_accountant_epsilon(*RUN, 1e-5)
    clt = accounting.clt_epsilon(*RUN, 1e-5)
    assert card.figure("epsilon_clt") == clt
    excess = card.figure("clt_understates_by")
    assert excess.lower == pytest.approx(curve.epsilon(1e-5).lower - clt)
    assert excess.upper == pytest.approx(curve.epsilon(1e-5).upper - clt)


def test_one_run_in_every_form(card):
    text = str(card)
    assert text == card.to_text()
    assert "noise multiplier 2, sampling probability 0.02, 50 steps" in text
    assert "TPR at FPR 0.001" in text
    assert text.count("may understate") == 2
    assert card.to_markdown().splitlines()[1] == "|---|---|---|"
    assert r"\midrule" in card.to_latex()
    document = json.loads(card.to_json(), parse_constant=pytest.fail)
    figures = document["runs"][0]["figures"]
    assert figures["mu"] == list(card.figure("mu"))
    assert set(document["standing"]) == set(figures)
    page = card.to_html()
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "nan" not in page


def test_several_runs_are_one_table(cards):
    assert cards.names[1:] == ["[laplace]", "bare"]
    lines = cards.to_markdown().splitlines()
    columns = [line.replace(r"\|", "").count("|") for line in lines[:5]]
    assert len(set(columns)) == 1
    document = json.loads(cards.to_json(), parse_constant=pytest.fail)
    bare = document["runs"][2]
    assert bare["figures"]["epsilon_at_delta_1e-05"] == ["inf", "inf"]
    assert bare["not_private"]
    assert cards.to_text().count("NOT PRIVATE") == 1
    assert document["runs"][1]["figures"]["epsilon_moments_accountant"] is None
    # A bracket after a line break would be an argument of it.
    assert not any(row.startswith("[") for row in table_rows(cards.to_latex()))


def table_rows(latex):
    return [line for line in latex.splitlines() if line.endswith(r"\\")]


def cells_of(row):
    """The cells of a row, each with its number of columns."""
    cells = row.removesuffix(r"\\").replace(r"\&", "").split(" & ")
    spans = [re.match(r"\\multicolumn\{(\d)\}", cell) for cell in cells]
    return [(cell.strip(), int(span[1]) if span else 1) for cell, span in zip(cells, spans, strict=True)]


@pytest.mark.parametrize("num_runs", [1, 2, 3, 4, 7])
def test_latex_fits_a_page(num_runs):
    runs = [Event(0.0, 0.1, 3, overflow=1e-9, announced=True), *[Ledger([LaplaceEvent(0.5)])] * 6]
    latex = report(*runs[:num_runs], deltas=1e-5).to_latex()
    shown = [line for line in latex.splitlines() if not line.startswith("%")]
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", latex)
    assert len(columns) == 2 + min(num_runs, 3)
    assert shown[-1] == r"\end{tabular}"
    assert shown[0].startswith(r"\begin{tabular}")
    for row in table_rows(latex):
        assert sum(span for _, span in cells_of(row)) == len(columns), row
        assert all(len(re.sub(r"\\\w+|[{}]", "", cell)) <= 34 for cell, _ in cells_of(row)), row
        assert len(row) <= 110, row
    assert sum(row.startswith("mu, failure") for row in table_rows(latex)) == -(-num_runs // 3)
    # What was done, in full, is in comments.
    assert "% run 1: Gaussian steps on Poisson batches: noise multiplier 0, sampling probability 0.1" in latex


def test_latex_has_what_was_done_in_short_cells(card):
    rows = [[cell for cell, _ in cells_of(row)] for row in table_rows(card.to_latex())]
    assert rows[0] == ["quantity", "run 1", "standing"]
    assert ["batches", "Poisson", "given"] in rows
    assert ["noise multiplier", "2", "given"] in rows
    assert ["sampling probability", "0.02", "given"] in rows
    assert ["steps", "50", "given"] in rows
    assert ["neighbours", "add or remove one", "given"] in rows


def test_latex_says_once_what_the_runs_share():
    cards = report(Event(1.0, 0.1, 3), Event(2.0, 0.1, 3), names=["a", "b"], deltas=1e-5)
    rows = table_rows(cards.to_latex())
    assert r"batches & \multicolumn{2}{c}{Poisson} & given \\" in rows
    assert r"noise multiplier & 1 & 2 & given \\" in rows
    assert any(row.startswith("epsilon at delta") and row.endswith(r"& certified, upper \\") for row in rows)


@pytest.mark.parametrize(
    ("event", "batches"),
    [
        (Event(0.0, 0.1, 3, "uniform"), "uniform"),
        (AllocationEvent(0.0, 10), "allocation, 1 of 10"),
        (ShuffledEvent(0.0, 10, 3), "shuffled, 10 an epoch"),
        (CyclicPoissonEvent(0.0, 0.1, 20, 4), "cyclic Poisson, 4 groups"),
        (TruncatedPoissonEvent(1.0, 0.1, 2, 100, 10), "Poisson, at most 10"),
        (CorrelatedGaussianEvent(1.0, 3, 8, 2, 4), "2 times, 4 apart"),
    ],
)
def test_every_scheme_in_short_cells(event, batches):
    described = describe_run(event, None, "run")
    facts = dict(described.facts)
    assert facts["batches"] == batches
    assert facts["noise multiplier"] == f"{event.noise_multiplier:g}"
    assert facts["steps"] == str(event.num_steps)
    assert all(len(text) <= 26 for text in facts.values())


def test_figures_can_be_chosen(card, cards):
    chosen = ["mu", "epsilon_at_delta_1e-05"]
    rows = table_rows(card.to_latex(figures=chosen))
    assert [row.split(" & ")[0] for row in rows[-2:]] == ["mu, failure 1e-10", "epsilon at delta 1e-05"]
    assert "advantage" not in card.to_latex(figures=chosen) + card.to_markdown(figures=chosen)
    text = card.to_text(figures="mu")
    assert "mu, failure" in text
    assert "noise multiplier 2" in text
    assert "epsilon" not in text
    assert cards.to_markdown(figures=chosen).splitlines()[0].endswith("| mu, failure 1e-10 | epsilon at delta 1e-05 |")
    with pytest.raises(
        ValueError, match=r"figures must be names among epsilon_at.*got 'advantages'; did you mean 'adv"
    ):
        card.to_latex(figures=["advantages"])
    for wrong in ([], ["mu", "mu"], 3, [3]):
        with pytest.raises(ValueError, match="figures must be"):
            card.to_text(figures=wrong)


def test_a_run_without_noise_has_no_certified_line():
    """Nothing may read as if something was guaranteed: of a plan nothing is known, of a ledger a little."""
    plan = gdpjax.make_plan(
        epsilon=math.inf, clip=1.0, max_examples=1000, expected_batch_size=20, num_steps=50, delta=1e-5
    )
    for text in (report(plan, deltas=[1e-5]).to_text(), report(plan, deltas=[1e-5]).to_markdown()):
        assert "NOT PRIVATE" in text
        assert "no guarantee" in text
        assert "certified" not in text
    assert "NOT PRIVATE: no guarantee, since noise_multiplier = 0 adds no noise at all" in str(report(plan))
    latex = report(plan, deltas=[1e-5]).to_latex()
    assert "run 1 (NOT PRIVATE) &" in latex
    assert "certified" not in latex
    bare = str(report(Event(0.0, 0.1, 3), deltas=1e-5)).splitlines()
    assert [line.split("  ")[-1].strip() for line in bare if line.startswith(("epsilon at", "mu"))] == [
        "no guarantee"
    ] * 2


def test_names_are_escaped(cards):
    page, latex, text = cards.to_html(), cards.to_latex(), cards.to_text()
    assert "<b>" not in page
    assert page.count("run &lt;b&gt;&amp;") == 2
    name = table_rows(latex)[0].split(" & ")[1]
    assert name.endswith(r"\#\textbar{}\textbackslash{}")
    assert not any(character in name.replace("\\" + character, "") for character in "&$%#_")
    assert all(line.isprintable() for line in text.splitlines())


def test_ends_are_rounded_outwards(card):
    for line in card.to_text().splitlines():
        if "certified: the truth is in between" in line and "[" in line:
            lower, upper = (float(end) for end in line[line.index("[") + 1 : line.index("]")].split(","))
            label = line.split("  ")[0]
            key = {"mu, failure 1e-10": "mu", "membership advantage": "advantage"}.get(label)
            if key:
                assert lower <= card.figure(key).lower <= card.figure(key).upper <= upper


def test_plans_files_and_curves(tmp_path):
    plan = gdpjax.make_plan(
        noise_multiplier=2.0, clip=1.0, max_examples=1000, expected_batch_size=1000, num_steps=50, delta=1e-5
    )
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "plan.json").write_text(plan.to_json())
    (tmp_path / "ledger.json").write_text(Ledger([plan.event]).to_json())
    cards = report(plan, folder, str(tmp_path / "ledger.json"), deltas=[1e-5])
    assert cards.names == ["run 1", "my run", "ledger.json"]
    figures = [cards.figure("epsilon_at_delta_1e-05", place) for place in range(3)]
    assert figures[0] == figures[1] == figures[2] == tuple(plan.epsilon_bounds())
    bounds = compose(Laplace(0.5), times=8)
    assert report(bounds, deltas=[1e-5]).figure("advantage") == tuple(bounds.advantage())


def test_a_plan_for_groups(monkeypatch):
    """The figures are those of the plan's curve, which are tested elsewhere and take long."""
    bounds = compose(Laplace(0.5), times=8)
    monkeypatch.setattr(gdpjax.Plan, "curve", bounds)
    plan = gdpjax.make_plan(
        noise_multiplier=2.0, clip=1.0, max_examples=1000, expected_batch_size=20, num_steps=50, delta=1e-5,
        group_size=2, unit="visit",
    )  # fmt: skip
    card = report(plan, deltas=[1e-5])
    assert card.figure("epsilon_at_delta_1e-05") == tuple(bounds.epsilon(1e-5))
    assert "add or remove one group of up to 2 visits" in card.to_text()
    assert card.figure("epsilon_clt") is None


def test_fixed_size_batches_have_a_moments_accountant_too():
    card = report(Event(2.0, 0.02, 50, "uniform"), deltas=[1e-5])
    epsilon = card.figure("epsilon_at_delta_1e-05")
    assert epsilon.lower < epsilon.upper < card.figure("epsilon_moments_accountant")
    assert "replace one" in card.to_text()


def test_a_plan_without_privacy_says_so():
    plan = gdpjax.make_plan(
        noise_multiplier=0.05, clip=1.0, max_examples=1000, expected_batch_size=20, num_steps=50, delta=1e-5
    )
    card = report(plan, deltas=[1e-5])
    assert card.figure("epsilon_at_delta_1e-05") == (0, math.inf)
    assert card.figure("advantage") == (0, 1)
    assert "NOT PRIVATE: no guarantee, since noise_multiplier = 0.05 is too small" in card.to_text()
    assert "nan" not in card.to_html()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        (("no such folder",), {}),
        ((5,), {}),
        (((1.0, 2.0, 3),), {}),
        (((1.0, 0.1),), {}),
        ((RUN,), {"deltas": []}),
        ((RUN,), {"deltas": [0.0]}),
        ((RUN,), {"deltas": [1e-5, 1e-5]}),
        ((RUN,), {"names": ["a", "b"]}),
        ((RUN,), {"names": "a"}),
        ((RUN,), {"names": [""]}),
        ((np.ones(3),), {}),
    ],
)
def test_what_is_no_run_is_refused(arguments, options):
    with pytest.raises(ValueError, match=r"must|needs|read|expected|a report is"):
        report(*arguments, **options)


def test_a_wrong_keyword_is_refused_with_a_guess():
    with pytest.raises(ValueError, match="report has no argument 'delta'; did you mean 'deltas'"):
        report(RUN, delta=1e-5)
    with pytest.raises(ValueError, match="report has no argument 'title'; it takes runs, deltas, names"):
        report(RUN, title="MNIST")


def test_the_command(capsys, tmp_path):
    numbers = ",".join(map(str, RUN))
    assert main(["report", numbers, "--delta", "1e-5"]) == 0
    assert "epsilon at delta 1e-05" in capsys.readouterr().out
    ledger = tmp_path / "ledger.json"
    ledger.write_text(Ledger([LaplaceEvent(0.5)]).to_json())  # its figures take no time
    assert main(["report", str(ledger), "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gdpjax_report"] == 1
    page = tmp_path / "card.html"
    assert main(["report", str(ledger), "--delta", "1e-5", "--name", "mine", "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert "mine" in page.read_text()
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert main(["report", numbers, "--format", "html", "--json"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_random_allocation_in_words():
    run = AllocationEvent(2.0, 10, 3, 2, "fixed", overflow=1e-9, announced=True)
    text = " ".join(str(report(run)).split())
    assert "by random allocation: each example in 2 steps of the 10 of an epoch, drawn once" in text
    assert "30 steps, announced overflow 1e-09" in text
    bare = " ".join(str(report(AllocationEvent(0.0, 10))).split())
    assert "adds no noise at all" in bare


@pytest.mark.parametrize("noise", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_shuffled_batches_in_words(noise):
    text = " ".join(str(report(ShuffledEvent(noise, 10, 3, overflow=1e-28))).split())
    scheme = "on shuffled batches: each example in one step of the 10 of an epoch"
    assert f"{scheme}: noise multiplier {noise}, 30 steps" in text
    assert "permutations uniform but for 1e-28; the upper ends are those without amplification by sampling" in text


def test_the_delta_of_a_plan_comes_first():
    plan = gdpjax.make_plan(
        noise_multiplier=2.0, clip=1.0, max_examples=1000, expected_batch_size=1000, num_steps=50, delta=1e-4
    )
    card = report(plan)
    keys = [key for key in json.loads(card.to_json())["runs"][0]["figures"] if key.startswith("epsilon_at_delta")]
    assert keys == [f"epsilon_at_delta_{delta}" for delta in ("0.0001", "1e-05", "1e-06", "1e-07")]
    assert card.figure(keys[0]) == tuple(plan.epsilon_bounds())
    assert "moments accountant at delta 0.0001" in card.to_text()
