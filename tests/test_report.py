"""The report card: its figures, its forms, what it escapes, and its command."""

import json
import math

import numpy as np
import pytest

import gdpjax
from gdpjax import Event, Ledger, accounting, report
from gdpjax.cli import main
from gdpjax.ledger import AllocationEvent, LaplaceEvent, ShuffledEvent
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
    latex = cards.to_latex().splitlines()
    rows = [line for line in latex if line.endswith(r"\\")]
    assert len(rows) == 4
    assert len({row.replace(r"\&", "").count("&") for row in rows}) == 1
    # A bracket after a line break would be an argument of it.
    assert not any(row.startswith("[") for row in rows)


def test_names_are_escaped(cards):
    page, latex, text = cards.to_html(), cards.to_latex(), cards.to_text()
    assert "<b>" not in page
    assert page.count("run &lt;b&gt;&amp;") == 2
    row = next(line for line in latex.splitlines() if line.startswith("run \\textless"))
    name = row.split(" & ")[0]
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
    assert "NOT PRIVATE: noise_multiplier = 0.05 is too small" in card.to_text()
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


@pytest.mark.parametrize("text", ["1.3,0.004", "1.3", "1.3,0.004,10,5", "1.3,,10"])
def test_other_than_three_numbers_are_refused_as_numbers(text, capsys):
    assert main(["report", text]) == 2
    assert "three numbers are needed, noise,probability,steps such as 1.3,0.004,3516" in capsys.readouterr().err


def test_the_folder_of_a_sweep_has_a_report_of_its_own(tmp_path, capsys):
    (tmp_path / "sweep.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} is a sweep: gdpjax sweep-report {tmp_path}" in capsys.readouterr().err
