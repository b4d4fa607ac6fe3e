"""benchmarks/README.md: what was measured, beside whom, and which targets were missed, from the committed JSON alone.

    python -m benchmarks.summary

A figure is in the page because a result file holds it; a benchmark without a result file has a row that says so. The
test of this module fails as long as the committed page is not what the result files give.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.tables import cell, document, table

RESULTS = pathlib.Path(__file__).with_name("results")
PAGE = pathlib.Path(__file__).with_name("README.md")

INTRODUCTION = """What gdpjax takes, beside other libraries that do the same work, in the same process or on the same \
cores in turn. This page is made from the JSON files in [results/](results) by `python -m benchmarks.summary`; beside \
each of them are its own tables, with quartiles, memory, failures and how everything was timed."""
READING = """Times are of the machines named below and say little about yours; the ratios say more, and differ between \
processors. Where a target was missed it says so. A ratio above 1 is in favour of gdpjax throughout.

The column `gdpjax` is what a user gets who chooses nothing: `strategy="auto"` for clipped steps and language models, \
`run_steps` for training. Our other strategies are in the tables below, and in no ratio of this one. Microbatch sizes \
are those at which each contender was fastest, ours and theirs."""
AUTO, RUN_STEPS = "gdpjax auto", "gdpjax run_steps"
"""What stands for us: the default strategy of clipping, and the training loop that the documentation shows."""

Row = tuple[Any, ...]
Target = tuple[str, dict[str, Any]]


def read(name: str) -> dict[str, Any] | None:
    """Return a result file, or None if there is none (yet)."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def page() -> str:
    """Return the whole page."""
    areas = [_accounting, _allocation, _clipping, _training, _correlated, _sweeps, _language, _experiments]
    found = [area() for area in areas]
    overview = table(
        ("", "measured", "gdpjax", "best of the others", "ratio", "targets met", "results"),
        [row for rows, _ in found for row in rows],
    )
    sections = [("Summary", f"{READING}\n\n{overview}"), ("Commands", _commands()), ("Machines", _machines())]
    return document("Benchmarks", [INTRODUCTION], [*sections, *(section for _, section in found)])


def _link(name: str) -> str:
    return f"[tables](results/{name}.md), [JSON](results/{name}.json)"


def _picture(name: str, about: str) -> str:
    return f"![{about}](results/{name}.png)" if (RESULTS / f"{name}.png").exists() else ""


def _met(targets: list[Target]) -> str:
    return f"{sum(at['met'] for _, at in targets)} of {len(targets)}" if targets else "none set"


def _missed(targets: list[Target]) -> str:
    rows = [
        (name, f"{'at least' if at.get('at_least', True) else 'at most'} {at['target']:g}", f"{at['measured']:.4g}")
        for name, at in targets
        if not at["met"]
    ]
    return table(("target missed", "wanted", "measured"), rows) if rows else "Every target was met."


def _targets(result: dict[str, Any], prefix: str = "") -> list[Target]:
    return [(name, at) for name, at in result["targets"].items() if name.startswith(prefix)]


def _absent(area: str, measured: str, section: str) -> tuple[list[Row], tuple[str, str]]:
    return [(area, measured, "not measured yet", None, None, None, None)], (section, "No result file yet.")


def _accounting() -> tuple[list[Row], tuple[str, str]]:
    """Certified epsilons a second, beside the fastest peer whose median relative error is below 1e-3."""
    result, title = read("accounting_cpu"), "Accounting"
    if result is None:
        return _absent(title, "certified epsilon", title)
    libraries = {name: at for name, at in result["comparison"]["libraries"].items() if not _failed(at)}
    alone = libraries["gdpjax epsilon_bounds"]["per_second"]
    batched = result["batched"]["per_second"]["epsilon_bounds"]["median"]
    peers = {name: at["per_second"] for name, at in libraries.items() if not name.startswith("gdpjax")}
    tight = [name for name in peers if libraries[name]["relative_error"]["median_size"] < 1e-3]
    best = max(tight, key=peers.__getitem__)
    rows = [
        (
            title,
            measured,
            f"{cell(speed)} a second",
            f"{cell(peers[best])} a second ({best})",
            speed / peers[best],
            _met(_targets(result)),
            _link("accounting_cpu"),
        )
        for measured, speed in (
            ("certified epsilon, both ends, one run a call", alone),
            (f"the same, {result['grid']['size']:,} runs in a call", batched),
        )
    ]
    body = table(
        (
            "library",
            "standing",
            "runs a second",
            "ours is faster by: one a call",
            "many in a call",
            "relative error: median",
            "largest",
            "ends on the wrong side",
        ),
        [
            (
                name,
                at["standing"],
                at["per_second"],
                alone / at["per_second"],
                batched / at["per_second"],
                at["relative_error"]["median_size"],
                at["relative_error"]["max_size"],
                f"{len(at['wrong_side'])} of {at['configurations']}",
            )
            for name, at in libraries.items()
        ],
    )
    broken = [name for name, at in result["comparison"]["libraries"].items() if _failed(at)]
    parts = [
        f"{result['grid']['size']:,} runs: {result['grid']['text']}.",
        "The best of the others is the fastest whose median error is below 1e-3. Errors are against the middle of our "
        "certified bracket, so ours is half its width or less.",
        _picture("accounting_cpu", "configurations per second against relative width or error"),
        body,
        f"Failed on every run with these versions: {', '.join(broken)}." if broken else "",
        _missed(_targets(result)),
    ]
    return rows, (title, "\n\n".join(filter(None, parts)))


def _allocation() -> tuple[list[Row], tuple[str, str]]:
    """Certified epsilons of random allocation, beside what the peer took on another machine."""
    result, title = read("allocation_cpu"), "Random allocation"
    if result is None:
        return _absent(title, "certified epsilon of random allocation", title)
    name = "times faster than the peer, least"
    row = (
        title,
        f"certified epsilon, both ends, {len(result['rows'])} runs one by one",
        f"{cell(result['batch']['median'])} a second",
        "as PLD_accounting was recorded",
        result["targets"][name]["measured"],
        _met(_targets(result)),
        _link("allocation_cpu"),
    )
    note = "The ratio is the least of all runs, in single calls."
    body = f"{note} {_missed(_targets(result))}".strip()
    return [row], (title, body)


def _failed(library: dict[str, Any]) -> bool:
    return sum(library["failures"].values()) >= library["configurations"]


def _clipping() -> tuple[list[Row], tuple[str, str]]:
    """Clipped gradient steps beside the fastest peer and beside no privacy."""
    name, title = "clipping_cpu", "Clipping"
    result = read(name)
    if result is None:
        return _absent(title, "clipped gradient steps", title)
    rows = []
    for key, model in result["models"].items():
        rows.append(_clipped_row(name, model, _targets(result, f"{key}: ")))
    parts = [
        f"`{name}` (load average {_load(result)}):",
        _picture(name, "step time and temporary memory over those without privacy, by model and contender"),
        _clipped_table(result),
        _missed(_targets(result)),
    ]
    return rows, (title, "\n\n".join(filter(None, parts)))


def _load(result: dict[str, Any]) -> str:
    if "load_average_before" not in result:
        return "not recorded"
    return f"{result['load_average_before']} before and {result['load_average_after']} after"


def _median(contender: dict[str, Any] | None) -> float | None:
    return contender["seconds"]["median"] if contender and contender.get("seconds") else None


def _peers(model: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, contender in model["contenders"].items():
        seconds = _median(contender)
        if seconds and not name.startswith("gdpjax") and "no privacy" not in name:
            yield name, seconds


def _clipped_row(name: str, model: dict[str, Any], targets: list[Target]) -> Row:
    ours = _median(model["contenders"][AUTO])
    assert ours is not None
    peers = list(_peers(model))
    peer, theirs = min(peers, key=lambda pair: pair[1]) if peers else ("", None)
    return (
        "Clipping",
        f"clipped step, {model['title']}",
        _milliseconds(ours),
        f"{_milliseconds(theirs)} ({peer})" if theirs else None,
        theirs / ours if theirs else None,
        _met(targets),
        _link(name),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds < 1 else f"{1e3 * seconds:,.0f} ms"


def _clipped_table(result: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for model in result["models"].values() for name in model["contenders"]))
    rows = []
    for model in result["models"].values():
        seconds = {name: _median(model["contenders"].get(name)) for name in names}
        rows.append([model["title"], *(1e3 * at if at else None for at in seconds.values())])
    return table(["step, ms", *names], rows)


def _training() -> tuple[list[Row], tuple[str, str]]:
    """Private steps a second in everybody's own loop, and the noise."""
    result, title = read("training_cpu"), "Training"
    if result is None:
        return _absent(title, "private steps", title)
    rows: list[Row] = []
    lines = []
    names = list(dict.fromkeys(name for case in result["cases"].values() for name in case["trainers"]))
    for key, case in result["cases"].items():
        speeds = {name: at["steps_per_second"]["median"] for name, at in case["trainers"].items()}
        best = max((name for name in speeds if not name.startswith("gdpjax")), key=speeds.__getitem__)
        rows.append(
            (
                title,
                f"private steps, {case['title']}",
                f"{cell(speeds[RUN_STEPS])} a second (`run_steps`)",
                f"{cell(speeds[best])} a second ({best})",
                speeds[RUN_STEPS] / speeds[best],
                _met(_targets(result, f"{key}: ")),
                _link("training_cpu"),
            )
        )
        lines.append([case["title"], *(speeds.get(name) for name in names)])
    noise = {name: at["seconds"]["median"] for name, at in result["noise"]["contenders"].items()}
    ours, theirs = noise["gdpjax.add_gaussian_noise"], noise["jax.random.normal"]
    rows.append(
        (
            title,
            f"noise of {result['noise']['num_coordinates']:,} coordinates",
            _milliseconds(ours),
            f"{_milliseconds(theirs)} (jax.random.normal)",
            theirs / ours,
            _met(_targets(result, "noise")),
            _link("training_cpu"),
        )
    )
    body = table(["steps a second", *names], lines)
    return rows, (title, "\n\n".join([body, _missed(_targets(result))]))


def _correlated() -> tuple[list[Row], tuple[str, str]]:
    """Errors of correlated noise by family, and what its noise and its optimisers take beside the peer's."""
    name, title = "correlated_cpu", "Correlated noise"
    result = read(name)
    if result is None:
        return _absent(title, "noise of a step, and optimisers", title)
    rows: list[Row] = []
    for size, contenders in result["costs"].items():
        prefix = f"{int(size):,} coordinates: "
        for peer, ours in result["peers"].items():
            if peer not in contenders:
                continue
            seconds, theirs = (contenders[each]["processor_seconds"]["median"] for each in (ours, peer))
            rows.append(
                (
                    title,
                    f"noise of {int(size):,} coordinates: {ours.removeprefix('gdpjax ')}",
                    _milliseconds(seconds),
                    f"{_milliseconds(theirs)} (jax_privacy)",
                    theirs / seconds,
                    _met(_targets(result, f"{prefix}{ours} /")),
                    _link(name),
                )
            )
    slowest = min(result["optimizers"], key=lambda row: row["times_faster"])
    rows.append(
        (
            title,
            f"{len(result['optimizers'])} strategies optimised, the least gain",
            _milliseconds(slowest["seconds"]),
            f"{cell(slowest['peer']['seconds'])} s (jax_privacy as recorded)",
            slowest["times_faster"],
            _met(_targets(result, "optimisers")),
            _link(name),
        )
    )

    # The errors of all families beside each other.
    runs = {_promise(run["promise"]): run["families"] for run in result["errors"]}
    errors = {run: {row["family"]: row["of_independent"] for row in families} for run, families in runs.items()}
    families = list(dict.fromkeys(family for of_run in errors.values() for family in of_run))
    body = table(
        ("RMSE of prefix sums over that of independent noise", *errors),
        [(family, *(of_run.get(family) for of_run in errors.values())) for family in families],
    )
    parts = [
        "At the same privacy; an example takes part at most k times, at least b steps apart. Times in the summary are "
        "of the processor.",
        body,
        _missed(_targets(result)),
    ]
    return rows, (title, "\n\n".join(parts))


def _promise(promise: dict[str, Any]) -> str:
    return f"n={promise['num_steps']:,} k={promise['count']} b={promise['separation']:,}"


def _sweeps() -> tuple[list[Row], tuple[str, str]]:
    """Configurations side by side in one program, beside one at a time."""
    result, title = read("sweeps_cpu"), "Sweeps"
    if result is None:
        return _absent(title, "steps of 32 configurations of Adult in one program", title)
    ways, about = result["ways"], result["settings"]
    speed = {name: way["steps_per_second"]["median"] for name, way in ways.items()}
    rows = [
        (
            title,
            f"{about['configurations']} configurations of {about['dataset']} in one program",
            f"{speed['one program']:,.0f} steps a second",
            f"{speed[other]:,.0f} ({other})",
            at["measured"],
            _met([(name, at)]),
            _link("sweeps_cpu"),
        )
        for name, at in result["targets"].items()
        for other in (name.partition(" / ")[2],)
    ]
    body = table(
        ("way", "steps a second", "with compilation", "programs"),
        [(name, f"{speed[name]:,.0f}", f"{at['with_compilation']:,.0f}", at["programs"]) for name, at in ways.items()],
    )
    return rows, (title, f"{body}\n\n{_missed(_targets(result))}")


LANGUAGE = ("language_tiny", "language_small", "language_124M", "language_355M", "language_1B")
"""Results by preset; those from 124M on need a GPU."""


def _language() -> tuple[list[Row], tuple[str, str]]:
    """Private steps of language models, in tokens a second, each contender at its fastest microbatch size."""
    title = "Language models"
    results = {name: result for name in LANGUAGE if (result := read(name)) is not None}
    if not results:
        return _absent(title, "private steps", title)
    rows: list[Row] = []
    lines = []
    names: list[str] = []
    for result in results.values():
        for case in result["cases"].values():
            names.extend(name for name in case["contenders"] if name not in names)
    for file, result in results.items():
        for case in result["cases"].values():
            speeds = _fastest_sizes(case)
            lines.append([case["title"], *(speeds.get(name) for name in names)])
            ours, theirs = speeds.get(AUTO), speeds.get("jax_privacy")
            if ours is None:
                continue
            rows.append(
                (
                    title,
                    f"private step, {case['title']}",
                    f"{cell(ours)} tokens a second",
                    f"{cell(theirs)} tokens a second (jax_privacy)" if theirs else None,
                    ours / theirs if theirs else None,
                    "none set",
                    _link(file),
                )
            )
    absent = [name.removeprefix("language_") for name in LANGUAGE if name not in results]
    parts = [
        table(["tokens a second", *names], lines),
        f"Not measured yet: {', '.join(absent)}." if absent else "",
    ]
    return rows, (title, "\n\n".join(filter(None, parts)))


def _fastest_sizes(case: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of each contender, at the microbatch size that is best for it."""
    speeds = {}
    for name, contender in case["contenders"].items():
        medians = [at["tokens_per_second"]["median"] for at in contender["sizes"].values()]
        if medians:
            speeds[name] = max(medians)
    return speeds


def _experiments() -> tuple[list[Row], tuple[str, str]]:
    """Return the tables of the paper's experiments and of the recipes, as they are beside their result files."""
    parts = [
        "What was published beside what was found, and better settings; "
        "[how to read them](../docs/reproducing.md), [and these](../docs/recipes.md)."
    ]
    for name in COMMANDS:
        path = RESULTS / f"{name}.md"
        if name.startswith(("reproduce_", "recipes")) and path.exists():
            lines = path.read_text().splitlines()
            partial = [line for line in lines if line.startswith("**Partial")]
            rows = [line for line in lines if line.startswith("|")]
            parts.append("\n\n".join([f"`{name}`", *partial, "\n".join(rows)]))
    return [], ("Experiments", "\n\n".join(parts))


class Command(NamedTuple):
    """The command that makes a result file again: its make target, if there is one, and its time on two cores."""

    target: str | None
    takes: str


COMMANDS = {
    "accounting_cpu": Command("make bench-accounting", "10 minutes"),
    "allocation_cpu": Command(None, "a minute"),
    "clipping_cpu": Command("make bench-clipping", "an hour"),
    "training_cpu": Command("make bench-training", "half an hour"),
    "correlated_cpu": Command("make bench-correlated", "10 minutes"),
    "sweeps_cpu": Command("make bench-sweeps", "2 minutes"),
    "language_tiny": Command("make bench-language", "ten minutes"),
    "language_small": Command("make bench-language PRESET=small", "ten minutes"),
    "language_124M": Command("make bench-language PRESET=124M", "needs a GPU"),
    "language_355M": Command("make bench-language PRESET=355M", "needs a GPU"),
    "language_1B": Command("make bench-language PRESET=1B", "needs a GPU"),
    "special_cases": Command(None, "half an hour, and an hour for the other targets"),
    "accelerators": Command("make bench-accelerators", "an hour, no device"),
    "device_h200": Command(None, "five minutes on a GPU"),
    "recipes": Command(None, "hours"),
    "correlated_adult": Command(None, "10 minutes"),
    "correlated_mnist": Command(None, "3 hours"),
    "reproduce_mnist": Command(None, "2 hours"),
    "reproduce_adult": Command(None, "a minute"),
    "reproduce_imdb": Command(None, "3 minutes"),
    "reproduce_movielens": Command(None, "10 minutes"),
    "reproduce_figure4": Command(None, "2 hours"),
    "imdb_clipping": Command(None, "10 minutes"),
}
COMMANDS_NOTE = """A command writes over its file; give make `RESULT=other.json`, and the others `--output` or \
`--results`, to keep it. `recipes` and `reproduce` need the data (`GDPJAX_DATA`, or they are downloaded); what they \
have finished is not done again. `accountants_grid.csv` is written by `python -m experiments reproduce figures`. A \
command is shown as it was recorded: the programs `benchmarks.bench_NAME` were called `benchmarks.test_NAME` when some \
of these files were made."""


def _commands() -> str:
    rows = []
    for name, (target, takes) in COMMANDS.items():
        result = read(name)
        made_by = f"`{result['command']}`" if result else "not run yet"
        link = f"[`{name}`](results/{name}.json)" if result else f"`{name}`"
        rows.append((link, f"`{target}`" if target else None, made_by, takes))
    found = table(("results", "by make", "the command that made the file", "takes about"), rows)
    return f"{COMMANDS_NOTE}\n\n{found}"


def _machines() -> str:
    rows = []
    for name in COMMANDS:
        result = read(name)
        if result is None or "machine" not in result:
            continue
        machine = result["machine"]
        versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items() if version)
        rows.append(
            (f"`{name}`", machine["cpu"], machine["cpu_cores_used"], machine["device"], _load(result), versions)
        )
    return table(("results", "processor", "cores", "device", "load average", "versions"), rows)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
