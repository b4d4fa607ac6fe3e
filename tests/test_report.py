"""The report card has the accountants' figures, in every form, with its names escaped, and a command."""

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
    ApproximateDPEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    GaussianEvent,
    LaplaceEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
)
from gdpjax.tradeoff import Laplace, compose

RUN = (2.0, 0.02, 50)
STEPS = Event(*RUN)
NASTY = 'run <b>&"$_%{}~^#|\\\n'
EPSILON = "epsilon_at_delta_1e-05"


@pytest.fixture(scope="module")
def card():
    return report(RUN, deltas=[1e-5, 1e-6])


@pytest.fixture(scope="module")
def cards():
    laplace = Ledger([LaplaceEvent(0.5)])
    without_noise = Event(0.0, 0.1, 3)
    return report(RUN, laplace, without_noise, names=[NASTY, "[laplace]", "bare"], deltas=1e-5)


def plan_of(noise_multiplier=2.0, expected_batch_size=1000, delta=1e-5, **options):
    numbers = dict(clip=1.0, max_examples=1000, num_steps=50)
    return gdpjax.make_plan(
        noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, delta=delta, **numbers, **options
    )


def one_line(card):
    """Return the text of a card without its line breaks."""
    return " ".join(str(card).split())


def table_rows(latex):
    """Return the rows of a LaTeX table, each as its cells."""
    rows = [line.removesuffix(r" \\") for line in latex.splitlines() if line.endswith(r" \\") and line[0] != "%"]
    return [re.split(r" (?<!\\)& ", row) for row in rows]


def test_figures_are_those_of_the_accountant(card):
    curve = accounting.certified(STEPS)
    expected = {
        EPSILON: curve.epsilon(1e-5),
        "epsilon_at_delta_1e-06": curve.epsilon(1e-6),
        "mu": curve.mu(),
        "regret": curve.regret(),
        "advantage": curve.advantage(),
        "tpr_at_fpr_0.01": curve.tpr(0.01),
        "tpr_at_fpr_0.001": curve.tpr(0.001),
        "bayes_success": curve.bayes_success(0.5),
    }
    assert {key: card.figure(key) for key in expected} == {key: tuple(value) for key, value in expected.items()}
    moments = accounting.moments_accountant_epsilon(*RUN, 1e-5)
    assert card.figure("epsilon_moments_accountant") == pytest.approx(moments, rel=1e-12)
    clt = accounting.clt_epsilon(*RUN, 1e-5)
    assert card.figure("epsilon_clt") == pytest.approx(clt, rel=1e-12)


def test_a_figure_is_that_of_a_run_by_its_name_or_its_place(cards):
    assert cards.names[1:] == ["[laplace]", "bare"]
    for name, place in (("[laplace]", 1), ("bare", -1)):
        assert cards.figure(EPSILON, run=name) == cards.figure(EPSILON, run=place)
    assert cards.figure(EPSILON, run="bare") == (math.inf, math.inf)
    for wrong in ("nobody", 3, None):
        with pytest.raises(ValueError, match=r"run must be one of run <b>.*\[laplace\], bare, or its place"):
            cards.figure(EPSILON, run=wrong)


KINDS = {
    "phases": Ledger([STEPS, Event(3.0, 0.02, 20)]),
    "uniform": UniformEvent(2.0, 0.02, 50),
    "laplace beside": Ledger([STEPS, LaplaceEvent(0.1)]),
    "gaussian beside": Ledger([STEPS, GaussianEvent(9.0)]),
    "answers beside": Ledger([STEPS, RandomizedResponseEvent(0.1)]),
    "approximate beside": Ledger([STEPS, ApproximateDPEvent(0.1, 1e-7)]),
    "overflow": Ledger([Event(2.0, 0.02, 50, overflow=1e-9, announced=True), STEPS]),
    "without noise": Event(0.0, 0.1, 3),
    "allocation": AllocationEvent(2.0, 10, 1),
    "shuffled": ShuffledEvent(2.0, 10, 1),
    "correlated": CorrelatedGaussianEvent(2.0, 3, 8, 2, 4),
    "cyclic": CyclicPoissonEvent(2.0, 0.1, 20, 4),
    "truncated": TruncatedPoissonEvent(1.0, 0.1, 2, 100, 10),
}
TAKE_LONG = ("uniform", "overflow", "approximate beside", "cyclic", "truncated")


@pytest.mark.parametrize(
    "run", [pytest.param(KINDS[kind], id=kind, marks=[pytest.mark.slow] * (kind in TAKE_LONG)) for kind in KINDS]
)
def test_a_row_is_its_functions_number_or_the_reason_why_that_function_has_none(run):
    card = report(run, deltas=[1e-5])
    functions = {EPSILON: accounting.epsilon_bounds}
    functions["epsilon_moments_accountant"] = accounting.moments_accountant_epsilon
    for key, function in functions.items():
        try:
            expected, reason = pytest.approx(function(run, delta=1e-5), rel=1e-12), ""
        except ValueError as error:
            expected, reason = None, str(error).partition(": ")[0]
        assert card.figure(key) == expected
        assert reason in one_line(card)


def test_the_limit_of_phases_adds_up_the_squares_of_mu():
    phases = [accounting.clt_mu_poisson(2.0, 0.02, 50), accounting.clt_mu_poisson(3.0, 0.02, 20)]
    mu = float(np.hypot(*phases))
    card = report(KINDS["phases"], deltas=[1e-5])
    assert card.figure("mu_clt") == pytest.approx(mu, rel=1e-9)
    assert card.figure("epsilon_clt") == pytest.approx(accounting.gdp_epsilon(1e-5, mu), rel=1e-9)
    beside = report(KINDS["gaussian beside"], deltas=[1e-5])
    assert beside.figure("mu_clt") == pytest.approx(float(np.hypot(phases[0], 1 / 9)), rel=1e-9)


def test_poisson_batches_have_no_limit_where_one_example_is_replaced():
    card = report(Event(2.0, 0.02, 2, neighboring_relation="replace_one"), deltas=[1e-5])
    assert card.figure("mu_clt") is None
    assert "no central limit theorem for Event under REPLACE_ONE" in one_line(card)


def test_one_run_in_every_form(card):
    text = str(card)
    assert text == card.to_text()
    assert "noise multiplier 2, sampling probability 0.02, 50 steps" in one_line(card)
    assert text.count("  asymptotic\n") == 2
    assert card.to_markdown().count("\n|---|---|---|\n") == 1
    latex = card.to_latex()
    assert [row for row in latex.splitlines() if row[0] != "%"][:2] == [r"\begin{tabular}{lll}", r"\toprule"]
    assert latex.endswith("\\bottomrule\n\\end{tabular}")

    document = json.loads(card.to_json(), parse_constant=pytest.fail)
    figures = document["runs"][0]["figures"]
    assert figures["mu"] == list(card.figure("mu"))
    assert set(document["standing"]) == set(figures)

    page = card.to_html()
    assert page.count("<svg") == page.count("</svg>") == page.count("<table>") == 1
    assert page.count("<polyline") == 2, "the run and perfect privacy"
    assert "nan" not in page
    assert "$" not in page


def test_every_form_begins_with_the_number_to_quote_and_ends_with_what_words_mean(card, cards):
    upper = gdpjax.Bounds(*card.figure(EPSILON))
    quoted = f"epsilon at delta 1e-05 is at most {str(upper)[1:-1].split(', ')[1]}, certified"
    for form in (one_line(card), card.to_markdown(), card.to_latex(), card.to_html()):
        assert quoted in form
        for words in ("membership advantage: the largest", "Certified: proved", "no guarantee. It may understate"):
            assert words in form
    assert "bare: NOT PRIVATE: no guarantee, since" in one_line(cards)


@pytest.mark.parametrize(("relation", "size"), [("replace_special", "1000"), ("add_or_remove_one", "at most 1000")])
def test_the_size_of_the_data_is_exact_where_it_is_public(relation, size):
    plan = plan_of(0.0, expected_batch_size=20, neighboring_relation=gdpjax.NeighboringRelation(relation))
    assert ["size of the data", size, "given"] in table_rows(report(plan).to_latex())


def test_a_release_without_noise_is_not_private():
    card = report(GaussianEvent(0.0), deltas=1e-5)
    assert "NOT PRIVATE" in card.to_text()
    assert card.figure("mu_clt") is None


def test_a_ledger_says_whom_it_protects_and_what_was_done(tmp_path, capsys):
    """The unit is in the cells and the notes, phases are numbers, and versions and date are those of the card."""
    ledger = Ledger([GaussianEvent(20.0), LaplaceEvent(0.05), STEPS, STEPS])
    card = report(ledger, unit="patient", deltas=1e-6)
    assert re.search(r"^unit +patient +given$", card.to_text(), flags=re.MULTILINE)
    facts = {label: text for label, text, standing in table_rows(card.to_latex()) if standing == "given"}
    assert (facts["scheme"], facts["steps"], facts["releases"]) == ("4 events, see above", "100", "2")
    assert "adding or removing one patient" in one_line(card)
    assert "Gaussian release, noise multiplier 20; Laplace release, epsilon 0.05; 2 times: Gaussian steps" in one_line(
        card
    )
    document = json.loads(card.to_json())
    assert [phase.get("noise_multiplier") for phase in document["runs"][0]["phases"]] == [20.0, None, 2.0, 2.0]
    assert f"gdpjax {gdpjax.__version__} with jax" in one_line(card)
    assert document["made"]["gdpjax"] == gdpjax.__version__
    assert document["made"]["date"] in card.to_html()

    path = tmp_path / "ledger.json"
    path.write_text(ledger.to_json())
    assert main(["report", str(path), "--unit", "patient", "--delta", "1e-6"]) == 0
    assert "adding or removing one patient" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="the unit of the plan, example"):
        report(plan_of(expected_batch_size=10), unit="patient")


def test_a_plan_says_what_was_tuned_and_released_in_the_digits_of_its_statement():
    plan = plan_of(tuned="the clip norm,\n% on these data", released="the ensemble")
    card = report(plan, deltas=[1e-5])
    assert "Tuned: the clip norm, % on these data. Released: the ensemble." in one_line(card)
    assert "Choosing settings by results on the same data costs more" in one_line(card)
    assert "size of the data" in str(card)
    latex = card.to_latex()
    assert all(line[0] in "%\\" or " & " in line for line in latex.splitlines()), "no text is outside of its comment"
    upper = re.search(r"epsilon <= ([^ ]+) ", plan.statement())
    assert f"epsilon at delta 1e-05 is at most {upper[1]}, certified" in one_line(card)


def test_several_runs_are_one_table(cards):
    # Every line of the Markdown table has as many columns, where an escaped bar is none.
    lines = [line for line in cards.to_markdown().splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in lines} == {6}

    document = json.loads(cards.to_json(), parse_constant=pytest.fail)
    bare = document["runs"][2]
    assert bare["figures"][EPSILON] == ["inf", "inf"]
    assert bare["not_private"]
    assert document["runs"][1]["figures"]["epsilon_moments_accountant"] <= 0.5 + 0.01
    # A bracket after a line break would be an argument of it.
    assert not any(row[0].startswith("[") for row in table_rows(cards.to_latex()))


@pytest.mark.parametrize("num_runs", [1, 2, 3, 4, 7])
def test_tables_fit_a_page_and_a_terminal(num_runs):
    runs = [Event(0.0, 1 / 3, 3, overflow=1e-9, announced=True), *[Ledger([LaplaceEvent(0.5)])] * 6]
    card = report(*runs[:num_runs], deltas=1e-5)
    latex = card.to_latex()
    columns = re.findall(r"\\begin\{tabular\}\{(\w+)\}", latex)
    assert [len(own) for own in columns] == [5] * (num_runs // 3) + [2 + num_runs % 3] * (num_runs % 3 > 0)
    rows = table_rows(latex)
    assert {len(row) for row in rows} == set(map(len, columns))
    assert all(len(re.sub(r"\\\w+|[{}]", "", cell)) <= 34 for row in rows for cell in row)
    assert sum(row[0].startswith("mu, failure") for row in rows) == len(columns)
    # What was done, in full, is in comments.
    assert re.search("^% run 1: NOT PRIVATE: .* noise multiplier 0, sampling probability 0.33", latex, re.MULTILINE)

    text = card.to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("quantity") == max(-(-num_runs // 2), len(columns))
    assert [f"run {place}" in text for place in range(1, num_runs + 2)] == [True] * num_runs + [False]


@pytest.mark.parametrize(
    ("event", "batches"),
    [
        (UniformEvent(0.0, 0.1, 3), "uniform"),
        (AllocationEvent(0.0, 10), "allocation, 1 of 10"),
        (ShuffledEvent(0.0, 10, 3), "shuffled, 10 an epoch"),
        (CyclicPoissonEvent(0.0, 0.1, 20, 4), "cyclic Poisson, 4 groups"),
        pytest.param(TruncatedPoissonEvent(1.0, 0.1, 2, 100, 10), "Poisson, at most 10", marks=pytest.mark.slow),
        (CorrelatedGaussianEvent(1.0, 3, 8, 2, 4), "2 times, 4 apart"),
    ],
)
def test_every_scheme_in_short_cells(event, batches):
    rows = table_rows(report(event, deltas=[1e-5]).to_latex())
    facts = {label: text for label, text, standing in rows if standing == "given"}
    assert facts["batches"] == batches
    assert facts["noise multiplier"] == f"{event.noise_multiplier:g}"
    assert facts["steps"] == str(event.num_steps)
    assert all(len(text) <= 26 for text in facts.values())


def test_figures_can_be_chosen(card, cards):
    chosen = ["mu", EPSILON]
    labels = ["mu, failure 1e-10", "epsilon at delta 1e-05"]
    assert [row[0] for row in table_rows(card.to_latex(figures=chosen))[-2:]] == labels
    assert "advantage" not in card.to_latex(figures=chosen) + card.to_markdown(figures=chosen)
    last_lines = [line for line in cards.to_markdown(figures=chosen).splitlines() if line.startswith("|")][-2:]
    assert [line.split(" | ")[0] for line in last_lines] == [f"| {label}" for label in labels]
    text = card.to_text(figures="mu")
    assert "mu, failure 1e-10 is at most" in text
    assert "noise multiplier 2" in text
    assert "epsilon at" not in text
    with pytest.raises(ValueError, match=r"figures must be one of epsilon_at.*got 'advantages'; did you mean 'adv"):
        card.to_latex(figures=["advantages"])
    with pytest.raises(ValueError, match="figures must be"):
        card.to_text(figures=[3])


@pytest.mark.parametrize(("noise_multiplier", "reason"), [(0.0, "adds no noise at all"), (0.05, "is too small")])
def test_a_plan_without_privacy_has_no_certified_line(noise_multiplier, reason):
    """Nothing may read as if something was guaranteed."""
    card = report(plan_of(noise_multiplier, expected_batch_size=20), deltas=[1e-5])
    assert card.figure(EPSILON) == (0, math.inf)
    assert card.figure("advantage") == (0, 1)
    assert f"NOT PRIVATE: no guarantee, since noise_multiplier = {noise_multiplier:g} {reason}"[:60] in one_line(card)
    for form in (card.to_text(), card.to_markdown(), card.to_latex()):
        assert "run 1 (NOT PRIVATE)" in form
        assert "certified" not in form
    assert "nan" not in card.to_html()


def test_a_ledger_without_noise_has_no_certified_line():
    rows = table_rows(report(Event(0.0, 0.1, 3), deltas=1e-5).to_latex())[1:]
    assert {tuple(cells) for _, *cells in rows if cells[-1] != "given"} == {("none", "no guarantee")}


def test_several_runs_have_the_ends_that_can_be_relied_on():
    card = report(RUN, (1.0, 0.02, 50), deltas=[1e-5])
    cells = {label: values for label, *values in table_rows(card.to_latex())}
    for run in range(2):
        assert float(cells["epsilon at delta 1e-05"][run]) >= card.figure(EPSILON, run).upper
    assert cells["epsilon at delta 1e-05"][2] == "certified, upper"


def test_ends_are_rounded_outwards(card):
    cells = {label: value for label, value, _ in table_rows(card.to_latex())}
    keys = {"mu, failure 1e-10": "mu", "membership advantage": "advantage", "TPR at FPR 0.001": "tpr_at_fpr_0.001"}
    for label, key in keys.items():
        lower, upper = map(float, cells[label].strip("[]").split(","))
        figure = card.figure(key)
        assert lower <= figure.lower <= figure.upper <= upper


def test_names_are_escaped(cards):
    """The name of a run is no HTML, no LaTeX command and no line break."""
    page = cards.to_html()
    assert "<b>" not in page
    assert page.count("run &lt;b&gt;&amp;") == 3

    name = table_rows(cards.to_latex())[0][1]
    assert name.endswith(r"\#\textbar{}\textbackslash{}")
    for character in "&$%#_":
        assert character not in name.replace("\\" + character, "")
    assert all(line.isprintable() for line in cards.to_text().splitlines())


def test_plans_files_and_curves(tmp_path):
    """A plan, folders with a plan and a file with its ledger have one epsilon, and names of their own."""
    plan = plan_of()
    folders = [tmp_path / "a" / "my run", tmp_path / "b" / "my run"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(plan.to_json())
    (tmp_path / "ledger.json").write_text(Ledger([plan.event]).to_json())
    cards = report(plan, *folders, str(tmp_path / "ledger.json"), deltas=[1e-5])
    assert cards.names == ["run 1", "my run", "my run (3)", "ledger.json"]
    assert {cards.figure(EPSILON, name) for name in cards.names} == {tuple(plan.epsilon_bounds())}

    bounds = compose(Laplace(0.5), times=8)
    assert report(bounds, deltas=[1e-5]).figure("advantage") == tuple(bounds.advantage())


def test_a_plan_for_groups(monkeypatch):
    """The figures are those of the plan's curve, which are tested elsewhere and take long."""
    bounds = compose(Laplace(0.5), times=8)
    monkeypatch.setattr(gdpjax.Plan, "curve", bounds)
    card = report(plan_of(expected_batch_size=20, group_size=2, unit="visit"), deltas=[1e-5])
    assert card.figure(EPSILON) == tuple(bounds.epsilon(1e-5))
    assert "adding or removing one group of up to 2 visits" in one_line(card)
    assert card.figure("epsilon_clt") is None


def test_fixed_size_batches_have_a_moments_accountant_too():
    """The moments accountant of batches of a fixed size is above their certified epsilon."""
    card = report(UniformEvent(2.0, 0.02, 50), deltas=[1e-5])
    epsilon = card.figure(EPSILON)
    assert epsilon.lower < epsilon.upper < card.figure("epsilon_moments_accountant")
    assert "replacing one row" in one_line(card)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        (("no such folder",), {}),
        ((5,), {}),
        (((1.0, 2.0, 3),), {}),
        (((1.0, 0.1),), {}),
        ((Ledger(),), {}),
        ((RUN,), {"deltas": []}),
        ((RUN,), {"deltas": [0.0]}),
        ((RUN,), {"names": ["a", "b"]}),
        ((RUN,), {"names": "a"}),
        ((np.ones(3),), {}),
    ],
)
def test_what_is_no_run_is_refused(arguments, options):
    """Arguments that describe no run, no delta or no name are refused."""
    with pytest.raises(ValueError, match=r"must|needs|read|expected|a report is"):
        report(*arguments, **options)


def test_a_wrong_keyword_is_refused_with_a_guess():
    with pytest.raises(ValueError, match="report has no argument 'delta'; did you mean 'deltas'"):
        report(RUN, delta=1e-5)


def test_the_delta_of_a_plan_comes_first():
    plan = plan_of(delta=1e-4)
    card = report(plan)
    figures = json.loads(card.to_json())["runs"][0]["figures"]
    keys = [key for key in figures if key.startswith("epsilon_at_delta")]
    assert keys == [f"epsilon_at_delta_{delta}" for delta in ("0.0001", "1e-05", "1e-06", "1e-07")]
    assert card.figure(keys[0]) == tuple(plan.epsilon_bounds())
    assert "moments epsilon at 0.0001" in card.to_text()


def test_random_allocation_and_shuffled_batches_are_described():
    run = AllocationEvent(0.0, 10, 3, 2, "fixed", overflow=1e-9, announced=True)
    text = one_line(report(run))
    assert "by random allocation: each example in 2 steps of the 10 of an epoch, drawn once" in text
    assert "30 steps, announced overflow 1e-09" in text
    text = one_line(report(ShuffledEvent(0, 10, 3, overflow=1e-28)))
    assert "on shuffled batches: each example in one step of the 10 of an epoch: noise multiplier 0, 30 steps" in text
    assert "permutations uniform but for 1e-28; the upper ends are those without amplification by sampling" in text


def test_the_command(capsys, tmp_path):
    """The command reports numbers or a file, as text, JSON or a page, and refuses what is neither."""
    numbers = ",".join(str(number) for number in RUN)
    assert main(["report", numbers, "--delta", "1e-5"]) == 0
    assert "epsilon at delta 1e-05" in capsys.readouterr().out

    # The figures of the Laplace mechanism take no time.
    ledger = tmp_path / "ledger.json"
    ledger.write_text(Ledger([LaplaceEvent(0.5)]).to_json())
    assert main(["report", str(ledger), "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gdpjax_report"] == 1

    page = tmp_path / "card.html"
    assert main(["report", str(ledger), "--delta", "1e-5", "--name", "mine", "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert "mine" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/nothing"], "nothing"),
        (["1.3,0.004,3516", "--output", "{folder}/no_folder/card.html"], "in a folder that exists"),
        (["1.3,0.004,3516", "--output", "{folder}"], "give the name of a file"),
        (["1.3,0.004"], "three numbers are needed, noise,probability,steps such as 1.3,0.004,3516"),
        (["1.3,,10"], "three numbers are needed"),
        (["{folder}"], "is a sweep: gdpjax sweep-report"),
    ],
)
def test_the_command_refuses_before_the_work(capsys, tmp_path, arguments, message):
    (tmp_path / "sweep.json").write_text("{}")
    assert main(["report", *(argument.format(folder=tmp_path) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
