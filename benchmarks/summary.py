"""benchmarks/README.md: what was measured, beside whom, and which targets were missed, from the committed JSON alone.

    python -m benchmarks.summary

A figure is in the page because a result file holds it. The test of this module fails as long as the committed page is
not what the result files give.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.tables import cell, document, milliseconds, paragraphs, table, table_of, targets_table, versions

RESULTS = pathlib.Path(__file__).with_name("results")
PAGE = pathlib.Path(__file__).with_name("README.md")

INTRODUCTION = """What gdpjax takes, beside other libraries that do the same work, in the same process or on the same \
cores in turn. This page is made from the JSON files in [results/](results) by `python -m benchmarks.summary`; beside \
each of them are its own tables, with quartiles, memory, failures and how everything was timed."""
READING = """Times are of the machines named below and say little about yours; the ratios say more, and differ between \
processors. A ratio above 1 is in favour of gdpjax throughout.

The column `gdpjax` is what a user gets who chooses nothing: `strategy="auto"` for clipped steps and language models, \
`run_steps` for training. Our other strategies are in the tables of each result, and in no ratio here. Microbatch \
sizes are those at which each contender was fastest, ours and theirs. Of the accountants the best is the fastest whose \
median error is below 1e-3; random allocation has the least ratio of all runs; times of correlated noise are of the \
processor."""
AUTO, RUN_STEPS = "gdpjax auto", "gdpjax run_steps"
"""What stands for us: the default strategy of clipping, and the training loop that the documentation shows."""

Result = dict[str, Any]
Targets = dict[str, dict[str, Any]]


class Row(NamedTuple):
    """A row of the summary: a ratio above 1 is in favour of ``ours``."""

    measured: str
    ours: str
    theirs: str
    ratio: float
    met: str


class Area(NamedTuple):
    """A subject, the results that there may be of it, and the rows of the summary for one result."""

    title: str
    files: tuple[str, ...]
    rows: Callable[[Result], list[Row]]


def read(name: str) -> Result | None:
    """Return a result file, or None if there is none (yet)."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def page() -> str:
    """Return the whole page."""
    sections = (
        ("Summary", f"{READING}\n\n{overview()}"),
        ("Targets that were missed", _missed()),
        ("Pictures", PICTURES),
        ("Commands", _commands()),
        ("Machines", _machines()),
    )
    return document("Benchmarks", [INTRODUCTION], sections)


def overview() -> str:
    """Return the table of the summary."""
    rows = []
    for area in AREAS:
        for name in area.files:
            result = read(name)
            if result is not None:
                rows += [(area.title, *row, f"[{name}](results/{name}.md)") for row in area.rows(result)]
    return table(("", "measured", "gdpjax", "best of the others", "ratio", "targets met", "results"), rows)


def _speeds(
    measured: str, ours: float, theirs: float, by: str, met: str, unit: str = "a second", note: str = ""
) -> Row:
    return Row(measured, f"{cell(ours)} {unit}{note}", f"{cell(theirs)} {unit} ({by})", ours / theirs, met)


def _times(measured: str, ours: float, theirs: float, by: str, met: str) -> Row:
    return Row(measured, f"{milliseconds(ours)} ms", f"{milliseconds(theirs)} ms ({by})", theirs / ours, met)


def _met(result: Result, prefix: str = "") -> str:
    targets = [at["met"] for name, at in result["targets"].items() if name.startswith(prefix)]
    return f"{sum(targets)} of {len(targets)}" if targets else "none set"


# ---- Accounting ----


def _accounting_rates(result: Result) -> tuple[float, float]:
    """Return our runs a second: one in a call, and many."""
    alone = result["comparison"]["libraries"]["gdpjax epsilon_bounds"]["per_second"]
    return alone, result["batched"]["per_second"]["epsilon_bounds"]["median"]


def _accounting_rows(result: Result) -> list[Row]:
    """Certified epsilons a second, beside the fastest peer whose median relative error is below 1e-3."""
    tight = {}
    for name, at in result["comparison"]["libraries"].items():
        if not name.startswith("gdpjax") and at["relative_error"]["median_size"] < 1e-3:
            tight[name] = at["per_second"]
    best = max(tight, key=tight.__getitem__)
    titles = ("certified epsilon, both ends, one run a call", f"the same, {result['grid']['size']:,} runs in a call")
    rates = zip(titles, _accounting_rates(result), strict=True)
    return [_speeds(title, rate, tight[best], best, _met(result)) for title, rate in rates]


def _allocation_rows(result: Result) -> list[Row]:
    """Certified epsilons of random allocation, beside what the peer took on another machine."""
    measured = f"certified epsilon, both ends, {len(result['rows'])} runs one by one"
    ratio = result["targets"]["times faster than the peer, least"]["measured"]
    rate = len(result["rows"]) / sum(row["seconds"] for row in result["rows"])
    return [Row(measured, f"{cell(rate)} a second", "as PLD_accounting was recorded", ratio, _met(result))]


# ---- Clipping, training and language models: contenders by case ----


def _others(values: dict[str, float]) -> dict[str, float]:
    """Return the peers' values."""
    return {name: value for name, value in values.items() if not name.startswith("gdpjax") and "no privacy" not in name}


def _clipping_rows(result: Result) -> list[Row]:
    """Clipped gradient steps beside the fastest peer."""
    rows = []
    for key, model in result["cases"].items():
        seconds = _seconds(model["contenders"])
        others = _others(seconds)
        best = min(others, key=others.__getitem__)
        title, met = f"clipped step, {model['title']}", _met(result, f"{key}: ")
        rows.append(_times(title, seconds[AUTO], seconds[best], best, met))
    return rows


def _seconds(contenders: dict[str, Any]) -> dict[str, float]:
    return {name: at["seconds"]["median"] for name, at in contenders.items() if at.get("seconds")}


def _training_speeds(case: dict[str, Any]) -> dict[str, float]:
    return {name: at["steps_per_second"]["median"] for name, at in case["trainers"].items()}


def _training_rows(result: Result) -> list[Row]:
    """Private steps a second in everybody's own loop."""
    rows = []
    for key, case in result["cases"].items():
        speeds = _training_speeds(case)
        best = max(_others(speeds), key=speeds.__getitem__)
        title, met = f"private steps, {case['title']}", _met(result, f"{key}: ")
        rows.append(_speeds(title, speeds[RUN_STEPS], speeds[best], best, met, note=" (`run_steps`)"))
    return rows


def _language_speeds(case: dict[str, Any]) -> dict[str, float]:
    """Return tokens a second of each contender, at the microbatch size that is best for it."""
    speeds = {}
    for name, contender in case["contenders"].items():
        if contender["sizes"]:
            speeds[name] = max(at["tokens_per_second"]["median"] for at in contender["sizes"].values())
    return speeds


def _language_rows(result: Result) -> list[Row]:
    """Private steps of language models, each contender at its fastest microbatch size."""
    rows, unit, peer = [], "tokens a second", "jax_privacy"
    for case in result["cases"].values():
        speeds, title = _language_speeds(case), f"private step, {case['title']}"
        rows.append(_speeds(title, speeds[AUTO], speeds[peer], peer, "none set", unit))
    return rows


# ---- Correlated noise, and sweeps ----


def _correlated_rows(result: Result) -> list[Row]:
    """What correlated noise and its optimisers take beside the peer's."""
    rows = []
    for size, contenders in result["costs"].items():
        coordinates = f"{int(size):,} coordinates: "
        for peer, ours in result["peers"].items():
            if peer in contenders:
                seconds, theirs = (contenders[each]["processor_seconds"]["median"] for each in (ours, peer))
                title = f"noise of {coordinates}{ours.removeprefix('gdpjax ')}"
                met = _met(result, f"{coordinates}{ours} /")
                rows.append(_times(title, seconds, theirs, "jax_privacy", met))
    slowest = min(result["optimizers"], key=lambda row: row["times_faster"])
    optimised = Row(
        f"{len(result['optimizers'])} strategies optimised, the least gain",
        f"{milliseconds(slowest['seconds'])} ms",
        f"{cell(slowest['peer']['seconds'])} s (jax_privacy as recorded)",
        slowest["times_faster"],
        _met(result, "optimisers"),
    )
    return [*rows, optimised]


def _sweeps_rows(result: Result) -> list[Row]:
    """Configurations side by side in one program, beside one at a time."""
    title = "{configurations} configurations of {dataset} in one program".format(**result["settings"])
    rows = []
    for name, at in result["targets"].items():
        first, other = (result["ways"][way]["steps_per_second"]["median"] for way in name.split(" / "))
        met = "1 of 1" if at["met"] else "0 of 1"
        theirs = f"{other:,.0f} ({name.partition(' / ')[2]})"
        rows.append(Row(title, f"{first:,.0f} steps a second", theirs, at["measured"], met))
    return rows


AREAS = (
    Area("Accounting", ("accounting_cpu",), _accounting_rows),
    Area("Random allocation", ("allocation_cpu",), _allocation_rows),
    Area("Clipping", ("clipping_cpu",), _clipping_rows),
    Area("Training", ("training_cpu",), _training_rows),
    Area("Correlated noise", ("correlated_cpu",), _correlated_rows),
    Area("Sweeps", ("sweeps_cpu",), _sweeps_rows),
    Area("Language models", ("language_tiny", "language_small"), _language_rows),
)


# ---- Targets, pictures, commands and machines ----


def _missed() -> str:
    """Return the missed targets of every result."""
    parts = []
    for name in COMMANDS:
        targets = (read(name) or {}).get("targets", {})
        missed = {target: at for target, at in targets.items() if not at["met"]}
        if missed:
            parts += [f"`{name}`", targets_table({"targets": missed})]
    return paragraphs(*parts)


PICTURES = """\
![step time and temporary memory over those without privacy, by model and contender](results/clipping_cpu.png)

![configurations per second against relative width or error](results/accounting_cpu.png)"""

_COMMANDS = """
accounting_cpu | make bench-accounting | 10 minutes
allocation_cpu |  | a minute
clipping_cpu | make bench-clipping | an hour
training_cpu | make bench-training | half an hour
correlated_cpu | make bench-correlated | 10 minutes
sweeps_cpu | make bench-sweeps | 2 minutes
language_tiny | make bench-language | ten minutes
language_small | make bench-language PRESET=small | ten minutes
special_cases |  | half an hour, and an hour for the other targets
accelerators | make bench-accelerators | an hour, no device
device_h200 |  | five minutes on a GPU
recipes |  | hours
correlated_adult |  | 10 minutes
correlated_mnist |  | 3 hours
reproduce_mnist |  | 2 hours
reproduce_adult |  | a minute
reproduce_imdb |  | 3 minutes
reproduce_movielens |  | 10 minutes
reproduce_figure4 |  | 2 hours
imdb_clipping |  | 10 minutes
"""
COMMANDS = {name.strip(): how for name, _, how in (line.partition("|") for line in _COMMANDS.strip().splitlines())}
"""For each result file its make target, if there is one, and about how long it takes on two cores."""
COMMANDS_NOTE = """A command writes over its file; give make `RESULT=other.json`, and the others `--output` or \
`--results`, to keep it. `recipes` and `reproduce` need the data (`GDPJAX_DATA`, or they are downloaded); what they \
have finished is not done again. `accountants_grid.csv` is written by `python -m experiments reproduce figures`. A \
command is shown as it was recorded: the programs `benchmarks.bench_NAME` were called `benchmarks.test_NAME`, and \
`--cases` of `bench_clipping` was `--models`, when some of these files were made."""


def _commands() -> str:
    rows = []
    for name, how in COMMANDS.items():
        target, takes = (part.strip() for part in how.split("|"))
        result = read(name)
        made_by = f"`{result['command']}`" if result else "not run yet"
        link = f"`{name}` ([JSON](results/{name}.json))" if result else f"`{name}`"
        rows.append((link, f"`{target}`" if target else None, made_by, takes))
    found = table(("results", "by make", "the command that made the file", "takes about"), rows)
    return f"{COMMANDS_NOTE}\n\n{found}"


MACHINES = """
results | file
processor | cpu
cores | cpu_cores_used
device | device
load average | load
versions | packages
"""


def _machines() -> str:
    rows = []
    for name in COMMANDS:
        result = read(name)
        if result is not None and "machine" in result:
            machine = result["machine"]
            rows.append(machine | {"file": f"`{name}`", "load": _load(result), "packages": versions(machine)})
    return table_of(MACHINES, rows)


def _load(result: Result) -> str:
    if "load_average_before" not in result:
        return "not recorded"
    return f"{result['load_average_before']} before and {result['load_average_after']} after"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
