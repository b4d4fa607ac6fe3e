"""docs/findings.md quotes the committed result files: every figure in its prose and tables is computed here again."""

import csv
import json
import math
import pathlib
import re
import statistics
from collections.abc import Callable
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "findings.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```", flags=re.DOTALL)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
# What is no figure of ours: the paper's number, a confidence level, and settings that the text gives.
NOT_FIGURES = {"1911.11607", "95", "1e-05", "16", "1"}


def result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def row(*cells: object) -> str:
    """A line of a Markdown table; an empty cell is written as one space."""
    return "|" + "|".join(f" {cell} " if str(cell) else " " for cell in cells) + "|"


def rounded_down(number: float, digits: int) -> str:
    return f"{math.floor(number * 10**digits) / 10**digits:.{digits}f}"


def rounded_up(number: float, digits: int) -> str:
    return f"{math.ceil(number * 10**digits) / 10**digits:.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def signed_percent(share: float) -> str:
    """Two significant digits, such as "+0.055 %" and "-74 %"."""
    return f"{float(f'{100 * share:.2g}'):+g} %"


def central_limit_theorem() -> list[str]:
    """The table by mu, and the extremes, of the grid of 216 settings."""
    with open(RESULTS / "accountants_grid.csv", newline="") as file:
        settings = [{name: float(text) for name, text in line.items()} for line in csv.DictReader(file)]

    # The error against the nearer certified end, so that it is no larger than the truth.
    for setting in settings:
        claimed, lower, upper = (setting[name] for name in ("epsilon_clt", "epsilon_lower", "epsilon_upper"))
        assert claimed < lower or claimed > upper
        setting["error"] = claimed / (lower if claimed < lower else upper) - 1

    quotes = [f"in {len(settings)} settings of a training"]
    noise, epochs = ([setting[name] for setting in settings] for name in ("noise_multiplier", "epochs"))
    quotes.append(f"noise multipliers from {min(noise):g} to {max(noise):g}, up to {max(epochs):g} epochs")
    edges = [("below 1", 0, 1), ("1 to 3", 1, 3), ("3 to 4", 3, 4), ("4 and more", 4, math.inf)]
    for title, low, high in edges:
        errors = [setting["error"] for setting in settings if low <= setting["mu_clt"] < high]
        below = sum(error < 0 for error in errors)
        span = f"{signed_percent(min(errors))} to {signed_percent(max(errors))}"
        quotes.append(row(title, len(errors), below, len(errors) - below, span))

    half = sum(setting["epsilon_clt"] < setting["epsilon_lower"] / 2 for setting in settings)
    quotes.append(f"In {half} settings it says less than half of the truth")
    worst = min(settings, key=lambda setting: setting["error"])
    said, truth = f"{worst['epsilon_clt']:.2f}", rounded_down(worst["epsilon_lower"], 2)
    quotes.append(f"The worst is {said} where the truth is above {truth}")
    worst = max(settings, key=lambda setting: setting["error"])
    said, truth = rounded_down(worst["epsilon_clt"], 0), rounded_up(worst["epsilon_upper"], 0)
    quotes.append(f"it says {said} where {truth} is enough")

    excess = [s["epsilon_moments_accountant"] / s["epsilon_upper"] - 1 for s in settings]
    least, median, most = (round(100 * f(excess)) for f in (min, statistics.median, max))
    quotes.append(f"it is {least} to {most} % above the certified upper end, and {median} % in the median")
    assert min(excess) > 0
    return quotes


def figure_4() -> list[str]:
    """The six runs of figure 4."""
    found = result("reproduce_figure4")
    assert not found["partial"]
    chosen_by = ("moments accountant", "CLT", "certified")
    quotes = []
    for number, run in enumerate(found["rows"]):
        privacy = run["privacy"]
        published = run["published"].get("test_accuracy")
        quotes.append(
            row(
                run["config"]["noise_multiplier"],
                chosen_by[number % 3],
                run["config"]["epochs"],
                f"{privacy['epsilon_clt']:.2f}",
                f"{privacy['epsilon_classic']:.2f}",
                f"{rounded_down(privacy['epsilon_lower'], 3)} to {rounded_up(privacy['epsilon_upper'], 3)}",
                "" if published is None else percent(published),
                percent(run["found"]["test_accuracy"]["mean"]),
            )
        )
    return quotes


def whose_norm() -> list[str]:
    """Both ways of clipping IMDb."""
    found = result("imdb_clipping")
    quotes = [f"The published accuracy is {percent(found['published']['test_accuracy'])}"]
    for title, name, keeps in (("the gradient", "added first", "yes"), ("the list of rows", "not added", "no")):
        scores = found["found"][name]
        quotes.append(f"test accuracy, {len(scores['seeds'])} seeds")
        quotes.append(row(title, f"{100 * scores['mean']:.1f} ± {percent(scores['stdev'])}", keeps))
    return quotes


def upper_bounds() -> list[str]:
    """The bounds of other libraries that contradict ours."""
    found = result("accounting_cpu")
    versions = found["machine"]["versions"]
    package_of = {"dp_accounting": "dp-accounting", "prv_accountant": "prv-accountant"}
    quotes, contradictions = [], []
    for name, library in found["comparison"]["libraries"].items():
        if name.startswith("gdpjax") or library["standing"] not in ("upper", "bracket"):
            assert not library["wrong_side"]
            continue
        package = name.split()[0]
        wrong = library["wrong_side"]
        assert not library["failures"]
        assert all(at["side"] == "upper" for at in wrong)
        false = sum(at["false"] == "the peer" for at in wrong)
        version = versions[package_of.get(package, package)]
        quotes.append(row(name, version, library["configurations"], len(wrong), false))
        contradictions += wrong

    verdicts = [at["false"] for at in contradictions]
    assert "gdpjax" not in verdicts
    proved, undecided = verdicts.count("the peer"), verdicts.count("undecided")
    quotes.append(f"proves the other library's end false in {proved} of the {len(verdicts)} cases, ours in none")
    quotes.append(f"too wide to decide the other {undecided}.")
    smaller, larger = sorted({at["delta"] for at in contradictions})
    quotes.append(f"at a delta of {larger:.0e} or {smaller:.0e} only")
    gap = max(1 - at["claimed"] / at["certified"][0] for at in contradictions)
    quotes.append(f"by at most {rounded_up(100 * gap, 3)} % of epsilon")
    quotes.append(f"Nobody's training is in danger from {rounded_up(100 * gap, 3)} %")
    quotes.append(f"row of {found['grid']['subset']} settings without a contradiction")
    # The program is named otherwise since the file was made.
    quotes.append(f"`{found['command'].replace('benchmarks.test_', 'benchmarks.bench_')}`")
    return quotes


def best_of_many() -> list[str]:
    """Return the cost of choosing among the runs of a recipe."""
    return [
        row(
            name,
            recipe["tuning"]["mean_num_runs"],
            rounded_up(recipe["cost"]["epsilon_upper"], 3),
            rounded_up(recipe["tuning"]["epsilon"], 2),
        )
        for name, recipe in result("recipes")["recipes"].items()
    ]


def correlated_noise() -> list[str]:
    """The methods without random batches on MNIST, beside Poisson batches."""
    found = result("correlated_mnist")
    task = found["task"]
    quotes = [
        f"MNIST, {found['seeds']} seeds, {task['epochs'][0]} epochs, batches of {task['batch_size']}",
        f"settings from {found['searched_per_method']} trainings on held-out training data",
        f"`{found['command']}`",
    ]
    others = " | ".join(f"{epsilon:g}" for epsilon in task["epsilons"][1:])
    quotes.append(f"| method | epsilon {task['epsilons'][0]:g} | {others} |")
    accuracy = {(at["method"], at["epsilon"]): at["accuracy"] for at in found["rows"]}
    without_random_batches = ("BISR", "lambda-CGD", "BLT")
    for method in ("Poisson DP-SGD", "BISR"):
        cells = [accuracy[method, epsilon] for epsilon in task["epsilons"]]
        quotes.append(row(method, *(f"{100 * at['mean']:.2f} ± {100 * at['half_width']:.2f}" for at in cells)))

    # "cannot be told apart": each mean lies in the interval of the other.
    for epsilon in (4.0, 8.0):
        poisson, bisr = accuracy["Poisson DP-SGD", epsilon], accuracy["BISR", epsilon]
        assert abs(poisson["mean"] - bisr["mean"]) < min(poisson["half_width"], bisr["half_width"])
    quotes += ["At an epsilon of 4 or 8 it is.", "BISR and Poisson sampling cannot be told apart at 4 and 8."]
    best = max(accuracy[method, 0.5]["mean"] for method in without_random_batches)
    ahead = 100 * (accuracy["Poisson DP-SGD", 0.5]["mean"] - best)
    quotes.append(f"At 0.5 random batches are {ahead:.1f} points ahead of the best of the three.")
    return quotes


def language_model() -> list[str]:
    """Times of private steps, each at its fastest size of microbatches."""
    quotes, all_ratios = [], []
    for name in ("language_tiny", "language_small"):
        found = result(name)
        quotes.append(f"jax_privacy {found['machine']['versions']['jax-privacy']} |")
        for kind, case in found["cases"].items():
            trained = case["title"].split(", ")[1]
            fastest = {who: _fastest(at["sizes"]) for who, at in case["contenders"].items()}
            private_steps = ("gdpjax auto", "gdpjax microbatch", "jax_privacy")
            ratios = [fastest[who]["over_no_privacy"]["time"] for who in private_steps]
            all_ratios += ratios
            model = f"{case['num_parameters']:,} parameters, {trained}"
            quotes.append(row(model, f"{case['num_tokens']:,}", *(f"{ratio:.3f}" for ratio in ratios)))
            if (name, kind) == ("language_small", "full"):
                private, plain = (fastest[who]["compile_seconds"] for who in ("gdpjax auto", "no privacy"))
                quotes.append(f"{private:.1f} s in place of {plain:.1f} s for the third line")
    quotes.append(f"adds at most {rounded_up(100 * (max(all_ratios) - 1), 0)} % here")

    # The one figure of this page that was measured on a GPU.
    device = result("device_h200")
    private, plain = (device["cases"][f"language.124M.{who}"]["median_seconds"] for who in ("gdpjax", "plain"))
    name = device["machine"]["device"].removeprefix("NVIDIA ")
    step = "the step of a model of 124M parameters"
    quotes.append(f"On an {name} {step} took {rounded_up(private / plain, 2)} times that without privacy")
    return quotes


def _fastest(sizes: dict[str, Any]) -> dict[str, Any]:
    return min(sizes.values(), key=lambda at: at["seconds"]["median"])


FINDINGS = (
    central_limit_theorem,
    figure_4,
    whose_norm,
    upper_bounds,
    best_of_many,
    correlated_noise,
    language_model,
)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.__name__)
def test_the_page_says_what_the_result_files_hold(finding: Callable[[], list[str]]):
    page = one_line(PAGE)
    for quote in finding():
        assert one_line(quote) in page, quote


def test_every_figure_is_quoted_from_a_file_or_printed_by_a_block():
    """Text without blocks, links, code and the quotes of the test above has no figures of its own."""
    printed = set(NUMBER.findall(" ".join(text for _, text in BLOCK.findall(PAGE))))
    rest = re.sub(r"\]\(.*?\)", "]", BLOCK.sub("", PAGE))
    rest = one_line(rest)
    for finding in FINDINGS:
        for quote in finding():
            rest = rest.replace(one_line(quote), "")
    rest = re.sub(r"`.*?`", "", rest)
    assert set(NUMBER.findall(rest)) <= printed | NOT_FIGURES


def test_what_it_names_exists():
    for name in re.findall(r"`((?:gdpjax|tests|benchmarks|experiments)/[\w/.]+)`", PAGE):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"blob/main/([\w/.]+)", PAGE):
        assert (ROOT / name).exists(), name
