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
from gdpjax.reporting._runs import describe_run
from gdpjax.tradeoff import Laplace, compose

RUN = (2.0, 0.02, 50)
NASTY = 'run <b>&"$_%{}~^#|\\\n'


@pytest.fixture(scope="module")
def card():
    return report(RUN, deltas=[1e-5, 1e-6])


@pytest.fixture(scope="module")
def cards():
    laplace = Ledger([LaplaceEvent(0.5)])
    without_noise = Event(0.0, 0.1, 3)
    return report(RUN, laplace, without_noise, names=[NASTY, "[laplace]", "bare"], deltas=1e-5)


def test_figures_are_those_of_the_accountant(card):
    """Every figure of a card is what the function of its name returns."""
    curve = accounting.certified(Event(*RUN))
    assert card.figure("epsilon_at_delta_1e-05") == tuple(curve.epsilon(1e-5))
    assert card.figure("epsilon_at_delta_1e-06") == tuple(curve.epsilon(1e-6))
    assert card.figure("mu") == tuple(curve.mu())
    assert card.figure("regret") == tuple(curve.regret())
    assert card.figure("advantage") == tuple(curve.advantage())
    assert card.figure("tpr_at_fpr_0.01") == tuple(curve.tpr(0.01))
    assert card.figure("bayes_success") == tuple(curve.bayes_success(0.5))
    moments = accounting.moments_accountant_epsilon(*RUN, 1e-5)
    assert card.figure("epsilon_moments_accountant") == pytest.approx(moments, rel=1e-12)

    # How much the CLT understates is between the two bounds.
    clt = accounting.clt_epsilon(*RUN, 1e-5)
    assert card.figure("epsilon_clt") == pytest.approx(clt, rel=1e-12)
    excess = card.figure("clt_understates_by")
    assert excess.lower == pytest.approx(curve.epsilon(1e-5).lower - clt)
    assert excess.upper == pytest.approx(curve.epsilon(1e-5).upper - clt)


STEPS = Event(2.0, 0.02, 50)
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
}
SLOW = pytest.mark.slow
TAKE_LONG = ("uniform", "overflow", "approximate beside", "cyclic")


@pytest.mark.parametrize(
    "run",
    [
        *[pytest.param(run, id=kind, marks=SLOW if kind in TAKE_LONG else ()) for kind, run in KINDS.items()],
        pytest.param(TruncatedPoissonEvent(1.0, 0.1, 2, 100, 10), id="truncated", marks=SLOW),
    ],
)
def test_a_row_is_its_functions_number_or_the_reason_why_that_function_has_none(run):
    card = report(run, deltas=[1e-5])
    functions = {
        "epsilon_at_delta_1e-05": accounting.epsilon_bounds,
        "epsilon_moments_accountant": accounting.moments_accountant_epsilon,
    }
    for key, function in functions.items():
        try:
            expected, reason = pytest.approx(function(run, delta=1e-5), rel=1e-12), ""
        except ValueError as error:
            expected, reason = None, str(error).partition(": ")[0]
        assert card.figure(key) == expected
        assert reason in one_line(card)
    assert "not known for this scheme" not in card.to_text()


def test_the_limit_of_phases_adds_up_the_squares_of_mu():
    phases = [accounting.clt_mu_poisson(2.0, 0.02, 50), accounting.clt_mu_poisson(3.0, 0.02, 20)]
    mu = float(np.hypot(*phases))
    card = report(KINDS["phases"], deltas=[1e-5])
    assert card.figure("mu_clt") == pytest.approx(mu, rel=1e-9)
    assert card.figure("epsilon_clt") == pytest.approx(accounting.gdp_epsilon(1e-5, mu), rel=1e-9)
    beside = report(KINDS["gaussian beside"], deltas=[1e-5])
    assert beside.figure("mu_clt") == pytest.approx(float(np.hypot(phases[0], 1 / 9)), rel=1e-9)


def test_one_run_in_every_form(card):
    """A card is text, Markdown, LaTeX, JSON or a page with one picture."""
    text = str(card)
    assert text == card.to_text()
    assert "noise multiplier 2, sampling probability 0.02, 50 steps" in one_line(card)
    assert "TPR at FPR 0.001" in text
    assert text.count("  estimate\n") == 2
    assert text.count("may understate") == 1
    assert card.to_markdown().splitlines()[1] == "|---|---|---|"
    assert r"\midrule" in card.to_latex()

    document = json.loads(card.to_json(), parse_constant=pytest.fail)
    figures = document["runs"][0]["figures"]
    assert figures["mu"] == list(card.figure("mu"))
    assert set(document["standing"]) == set(figures)

    page = card.to_html()
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "nan" not in page


def test_a_ledger_says_whom_it_protects_and_what_was_done(tmp_path, capsys):
    """The unit is in the cells and the notes, phases are numbers, and versions and date are those of the card."""
    ledger = Ledger([GaussianEvent(20.0), LaplaceEvent(0.05), STEPS, STEPS])
    card = report(ledger, unit="patient", deltas=1e-6)
    assert re.search(r"^unit +patient +given$", card.to_text(), flags=re.MULTILINE)
    assert "neighbours: add or remove one patient." in one_line(card)
    assert "Gaussian release, noise multiplier 20; Laplace release, epsilon 0.05; Gaussian steps" in one_line(card)
    document = json.loads(card.to_json())
    assert [phase.get("noise_multiplier") for phase in document["runs"][0]["phases"]] == [20.0, None, 2.0, 2.0]
    assert f"gdpjax {gdpjax.__version__} with jax" in one_line(card)
    assert document["made"]["gdpjax"] == gdpjax.__version__
    assert document["made"]["date"] in card.to_html()

    path = tmp_path / "ledger.json"
    path.write_text(ledger.to_json())
    assert main(["report", str(path), "--unit", "patient", "--delta", "1e-6"]) == 0
    assert "add or remove one patient" in " ".join(capsys.readouterr().out.split())
    plan = gdpjax.make_plan(gdpjax.sampling.Poisson(100, 10, 5), clip=1.0, delta=1e-5, noise_multiplier=2.0)
    with pytest.raises(ValueError, match="the unit of the plan, example"):
        report(plan, unit="patient")


def test_several_runs_are_one_table(cards):
    """Runs are columns of one table, and one that is not private says so."""
    assert cards.names[1:] == ["[laplace]", "bare"]

    # Every line of the Markdown table has as many columns, where an escaped bar is none.
    lines = [line for line in cards.to_markdown().splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in lines} == {6}

    document = json.loads(cards.to_json(), parse_constant=pytest.fail)
    bare = document["runs"][2]
    assert bare["figures"]["epsilon_at_delta_1e-05"] == ["inf", "inf"]
    assert bare["not_private"]
    assert cards.to_text().count("NOT PRIVATE") == 2
    assert "bare: NOT PRIVATE: no guarantee, since" in one_line(cards)
    assert document["runs"][1]["figures"]["epsilon_moments_accountant"] <= 0.5 + 0.01
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
    done = "Gaussian steps on Poisson batches: noise multiplier 0, sampling probability 0.1"
    assert re.search(f"^% run 1: NOT PRIVATE: .* {done}", latex, re.MULTILINE)


def test_latex_has_what_was_done_in_short_cells(card):
    rows = [[cell for cell, _ in cells_of(row)] for row in table_rows(card.to_latex())]
    assert rows[0] == ["quantity", "run 1", "standing"]
    assert ["batches", "Poisson", "given"] in rows
    assert ["noise multiplier", "2", "given"] in rows
    assert ["sampling probability", "0.02", "given"] in rows
    assert ["steps", "50", "given"] in rows
    assert ["neighbours", "add or remove", "given"] in rows


def test_latex_says_once_what_the_runs_share():
    cards = report(Event(1.0, 0.1, 3), Event(2.0, 0.1, 3), names=["a", "b"], deltas=1e-5)
    rows = table_rows(cards.to_latex())
    assert r"batches & \multicolumn{2}{c}{Poisson} & given \\" in rows
    assert r"noise multiplier & 1 & 2 & given \\" in rows
    assert any(row.startswith("epsilon at delta") and row.endswith(r"& certified, upper \\") for row in rows)


@pytest.mark.parametrize(
    ("event", "batches"),
    [
        (UniformEvent(0.0, 0.1, 3), "uniform"),
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
    last_lines = [line for line in cards.to_markdown(figures=chosen).splitlines() if line.startswith("|")][-2:]
    assert [line.split(" | ")[0] for line in last_lines] == ["| mu, failure 1e-10", "| epsilon at delta 1e-05"]
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
    assert "NOT PRIVATE: no guarantee, since noise_multiplier = 0 adds no noise at all" in one_line(report(plan))
    latex = report(plan, deltas=[1e-5]).to_latex()
    assert "run 1 (NOT PRIVATE) &" in latex
    assert "certified" not in latex
    bare = str(report(Event(0.0, 0.1, 3), deltas=1e-5)).splitlines()
    assert [line.split("  ")[-1].strip() for line in bare if line.startswith(("epsilon at", "mu"))] == [
        "no guarantee"
    ] * 2


@pytest.mark.parametrize("num_runs", [1, 2, 5])
def test_text_fits_a_terminal(num_runs):
    """Figures are lines, and further runs stand below, with the notes on all of them above."""
    runs = [Event(1.0, 1 / 3, 3, overflow=1e-9, announced=True), *[Ledger([LaplaceEvent(0.5)])] * 4]
    text = report(*runs[:num_runs], deltas=1e-5).to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("quantity") == -(-num_runs // 2)
    assert [f"run {place}" in text for place in range(1, num_runs + 2)] == [True] * num_runs + [False]


def test_several_runs_have_the_ends_that_can_be_relied_on():
    card = report(RUN, (1.0, 0.02, 50), deltas=[1e-5])
    cells = {}
    for line in card.to_text().splitlines():
        label, *values = re.split(r"  +", line)
        cells[label] = values
    for run in range(2):
        assert float(cells["epsilon at delta 1e-05"][run]) >= card.figure("epsilon_at_delta_1e-05", run).upper
        assert float(cells["epsilon less the CLT's"][run]) <= card.figure("clt_understates_by", run).lower
    assert cells["epsilon at delta 1e-05"][2] == "certified, upper"
    assert cells["epsilon less the CLT's"][2] == "certified, lower"


def test_names_are_escaped(cards):
    """The name of a run is no HTML, no LaTeX command and no control character."""
    page = cards.to_html()
    assert "<b>" not in page
    assert page.count("run &lt;b&gt;&amp;") == 3

    latex = cards.to_latex()
    name = table_rows(latex)[0].split(" & ")[1]
    assert name.endswith(r"\#\textbar{}\textbackslash{}")
    for character in "&$%#_":
        assert character not in name.replace("\\" + character, "")

    for line in cards.to_text().splitlines():
        assert line.isprintable()


KEY_OF_LABEL = {
    "mu, failure 1e-10": "mu",
    "membership advantage": "advantage",
}


def test_ends_are_rounded_outwards(card):
    """The printed ends of an interval contain the exact ones."""
    for line in card.to_text().splitlines():
        label = line.split("  ")[0]
        if line.endswith("  certified") and "[" in line and label in KEY_OF_LABEL:
            interval = line[line.index("[") + 1 : line.index("]")]
            lower, upper = (float(end) for end in interval.split(","))
            figure = card.figure(KEY_OF_LABEL[label])
            assert lower <= figure.lower <= figure.upper <= upper


def test_plans_files_and_curves(tmp_path):
    """A plan, a folder with a plan and a file with its ledger have one epsilon, and a curve has its own figures."""
    plan = gdpjax.make_plan(
        noise_multiplier=2.0,
        clip=1.0,
        max_examples=1000,
        expected_batch_size=1000,
        num_steps=50,
        delta=1e-5,
    )
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "plan.json").write_text(plan.to_json())
    (tmp_path / "ledger.json").write_text(Ledger([plan.event]).to_json())
    cards = report(plan, folder, str(tmp_path / "ledger.json"), deltas=[1e-5])
    assert cards.names == ["run 1", "my run", "ledger.json"]
    epsilon = tuple(plan.epsilon_bounds())
    for number in range(3):
        assert cards.figure("epsilon_at_delta_1e-05", number) == epsilon

    bounds = compose(Laplace(0.5), times=8)
    assert report(bounds, deltas=[1e-5]).figure("advantage") == tuple(bounds.advantage())


def test_a_plan_for_groups(monkeypatch):
    """The figures are those of the plan's curve, which are tested elsewhere and take long."""
    bounds = compose(Laplace(0.5), times=8)
    monkeypatch.setattr(gdpjax.Plan, "curve", bounds)
    plan = gdpjax.make_plan(
        noise_multiplier=2.0,
        clip=1.0,
        max_examples=1000,
        expected_batch_size=20,
        num_steps=50,
        delta=1e-5,
        group_size=2,
        unit="visit",
    )
    card = report(plan, deltas=[1e-5])
    assert card.figure("epsilon_at_delta_1e-05") == tuple(bounds.epsilon(1e-5))
    assert "add or remove one group of up to 2 visits" in one_line(card)
    assert card.figure("epsilon_clt") is None


def test_fixed_size_batches_have_a_moments_accountant_too():
    """The moments accountant of batches of a fixed size is above their certified epsilon."""
    card = report(UniformEvent(2.0, 0.02, 50), deltas=[1e-5])
    epsilon = card.figure("epsilon_at_delta_1e-05")
    assert epsilon.lower < epsilon.upper < card.figure("epsilon_moments_accountant")
    assert "replace one" in card.to_text()


def test_a_plan_without_privacy_says_so():
    """A plan with too little noise has an infinite epsilon, an advantage of up to 1, and says why."""
    plan = gdpjax.make_plan(
        noise_multiplier=0.05,
        clip=1.0,
        max_examples=1000,
        expected_batch_size=20,
        num_steps=50,
        delta=1e-5,
    )
    card = report(plan, deltas=[1e-5])
    assert card.figure("epsilon_at_delta_1e-05") == (0, math.inf)
    assert card.figure("advantage") == (0, 1)
    assert "NOT PRIVATE: no guarantee, since noise_multiplier = 0.05 is too small" in one_line(card)
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
    """Arguments that describe no run, no delta or no name are refused."""
    with pytest.raises(ValueError, match=r"must|needs|read|expected|a report is"):
        report(*arguments, **options)


def test_a_wrong_keyword_is_refused_with_a_guess():
    """A misspelt keyword is refused, and the message says which one may have been meant."""
    with pytest.raises(ValueError, match="report has no argument 'delta'; did you mean 'deltas'"):
        report(RUN, delta=1e-5)
    with pytest.raises(ValueError, match="report has no argument 'title'; it takes runs, deltas, names"):
        report(RUN, title="MNIST")


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

    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert main(["report", numbers, "--format", "html", "--json"]) == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"), [("no_folder/card.html", "in a folder that exists"), (".", "give the name of a file")]
)
def test_a_card_that_cannot_be_written_is_not_computed(capsys, monkeypatch, tmp_path, name, message):
    """The command refuses the place before the work."""
    monkeypatch.setattr("gdpjax.cli._report_card.report", lambda *runs, **options: pytest.fail("computed"))
    assert main(["report", "1.3,0.004,3516", "--output", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def one_line(card):
    """Return the text of a card without its line breaks."""
    return " ".join(str(card).split())


def test_random_allocation_in_words():
    """The report of random allocation says how often an example takes part, and when its steps are drawn."""
    run = AllocationEvent(2.0, 10, 3, 2, "fixed", overflow=1e-9, announced=True)
    text = one_line(report(run))
    assert "by random allocation: each example in 2 steps of the 10 of an epoch, drawn once" in text
    assert "30 steps, announced overflow 1e-09" in text
    without_noise = one_line(report(AllocationEvent(0.0, 10)))
    assert "adds no noise at all" in without_noise


@pytest.mark.parametrize("noise", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_shuffled_batches_in_words(noise):
    """The report of shuffled batches says that its upper ends are those without amplification."""
    text = one_line(report(ShuffledEvent(noise, 10, 3, overflow=1e-28)))
    scheme = "on shuffled batches: each example in one step of the 10 of an epoch"
    assert f"{scheme}: noise multiplier {noise}, 30 steps" in text
    assert "permutations uniform but for 1e-28; the upper ends are those without amplification by sampling" in text


def test_the_delta_of_a_plan_comes_first():
    """A report without deltas begins with the plan's own."""
    plan = gdpjax.make_plan(
        noise_multiplier=2.0,
        clip=1.0,
        max_examples=1000,
        expected_batch_size=1000,
        num_steps=50,
        delta=1e-4,
    )
    card = report(plan)
    figures = json.loads(card.to_json())["runs"][0]["figures"]
    keys = [key for key in figures if key.startswith("epsilon_at_delta")]
    assert keys == [f"epsilon_at_delta_{delta}" for delta in ("0.0001", "1e-05", "1e-06", "1e-07")]
    assert card.figure(keys[0]) == tuple(plan.epsilon_bounds())
    assert "moments epsilon at delta 0.0001" in card.to_text()


@pytest.mark.parametrize("text", ["1.3,0.004", "1.3", "1.3,0.004,10,5", "1.3,,10"])
def test_other_than_three_numbers_are_refused_as_numbers(text, capsys):
    assert main(["report", text]) == 2
    assert "three numbers are needed, noise,probability,steps such as 1.3,0.004,3516" in capsys.readouterr().err


def test_the_folder_of_a_sweep_has_a_report_of_its_own(tmp_path, capsys):
    (tmp_path / "sweep.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} is a sweep: gdpjax sweep-report {tmp_path}" in capsys.readouterr().err
