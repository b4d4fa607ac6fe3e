"""The result as tables for people."""

from typing import Any

from benchmarks.tables import table
from benchmarks.writing import bullets, document

MEGABYTE = 1e6

TARGET_COLUMNS = ("target", "wanted", "measured", "met")
LIBRARY_COLUMNS = (
    "library",
    "standing",
    "configurations/s",
    "by processor time",
    "our batched bounds are faster by",
    "relative width, median",
    "relative error, median",
    "least and largest",
    "against PRV, median",
    "configurations",
    "failed",
    "wrong side",
)
LIBRARY_NOTE = (
    "Relative errors are of the estimate where there is one, else of the upper end, against the middle of our "
    "certified bracket, and against prv_accountant's estimate. A wrong side is an upper end below our lower end, "
    "or a lower end above our upper end."
)
WRONG_SIDE_COLUMNS = (
    "library",
    "noise_multiplier",
    "sampling_prob",
    "num_steps",
    "delta",
    "side",
    "claimed",
    "certified",
    "false is",
)
WRONG_SIDE_NOTE = "Whose end is false is decided by the discretised bracket of the tests, which is neither's method."
BATCHED_COLUMNS = (
    "function",
    "configurations/s",
    "range",
    "by processor time",
    "relative width or error, median",
    "largest",
    "compilations, first call",
    "other values",
    "one alone",
    "others alone",
)
EXACT_COLUMNS = (
    "function",
    "library",
    "points/s",
    "gdpjax is faster by",
    "largest relative error",
    "failed",
    "compilations",
)
FRESH_COLUMNS = (
    "function",
    "first call, s",
    "import, s",
    "for",
    "peak, MB",
    "of these the call's, MB",
    "compiled temporaries, MB",
    "flops (a loop's body once)",
)


def markdown(result: dict[str, Any]) -> str:
    """Return the whole page."""
    machine, grid = result["machine"], result["grid"]
    head = [
        f"{machine['cpu']}, {machine['cpu_cores_used']} core; JAX {machine['versions']['jax']} on {machine['device']}; "
        f"load average {result['load_average_before']} before, {result['load_average_after']} after; "
        f"{result['total_seconds']:.0f} s in all. Made by `{result['command']}`.",
        f"Grid of {grid['size']}: {grid['text']}. Certified epsilon from {grid['epsilon']['min']:.3g} to "
        f"{grid['epsilon']['max']:.3g}. The first {grid['subset']} are done by every library in turn, "
        f"{grid['repetitions']} times (once where that took more than {result['settings']['patience']:g} s); "
        "times are of these. Some go on over the rest of the grid, to find wrong sides.",
    ]
    sections = [
        ("Targets", _targets(result["targets"])),
        ("Epsilon: one configuration a call, every library in turn", _libraries(result)),
        ("Bounds on the wrong side of ours", _wrong_sides(result["comparison"]["libraries"])),
        ("Epsilon: the whole grid in one call", _batched(result)),
        ("Exact functions", _exact(result["gaussian"])),
        ("mu", _mu(result["mu"])),
        ("First call, memory, compiled program", _fresh(result["fresh"])),
        ("Libraries that are missing", bullets(result["comparison"]["missing"])),
    ]
    return document("Accounting, measured side by side", head, sections)


def _targets(targets: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, numbers in targets.items():
        rows.append((name, numbers["target"], numbers["measured"], "yes" if numbers["met"] else "NO"))
    return table(TARGET_COLUMNS, rows)


def _libraries(result: dict[str, Any]) -> str:
    """Return how fast and how far from ours every library is, and how it failed."""
    batched_rate = result["batched"]["per_second"]["epsilon_bounds"]["median"]
    rows, failures = [], []
    for name, measured in result["comparison"]["libraries"].items():
        width, error = measured["relative_width"], measured["relative_error"]
        against_prv = measured["relative_error_against_prv"]
        rows.append(
            (
                name,
                measured["standing"],
                measured["per_second"],
                measured["per_cpu_second"],
                batched_rate / measured["per_second"],
                width and width["median_size"],
                error and f"{error['median_size']:.1e}",
                error and f"{error['min']:+.1e} to {error['max']:+.1e}",
                against_prv and against_prv["median_size"],
                measured["configurations"],
                sum(measured["failures"].values()),
                len(measured["wrong_side"]),
            )
        )
        for reason, count in measured["failures"].items():
            failures.append(f"- {name}: {count} times {reason}")

    parts = [table(LIBRARY_COLUMNS, rows), LIBRARY_NOTE]
    if failures:
        parts.append("Failures:\n\n" + "\n".join(failures))
    return "\n\n".join(parts)


def _wrong_sides(libraries: dict[str, Any]) -> str:
    """Return every end of another library that contradicts our bracket, and which of the two is false."""
    rows = []
    for name, measured in libraries.items():
        for wrong in measured["wrong_side"]:
            lower, upper = wrong["certified"]
            rows.append(
                (
                    name,
                    wrong["noise_multiplier"],
                    wrong["sampling_prob"],
                    wrong["num_steps"],
                    wrong["delta"],
                    wrong["side"],
                    f"{wrong['claimed']:.6g}",
                    f"[{lower:.6g}, {upper:.6g}]",
                    wrong.get("false", "not judged"),
                )
            )
    if not rows:
        return "None."
    return f"{table(WRONG_SIDE_COLUMNS, rows)}\n\n{WRONG_SIDE_NOTE}"


def _batched(result: dict[str, Any]) -> str:
    """Return our functions on the whole grid: rates, widths or errors, and compilations."""
    batched, accuracy = result["batched"], result["accuracy"]
    rows = []
    for name, rate in batched["per_second"].items():
        sizes = accuracy.get(name, {})
        size = sizes.get("relative_width") or sizes.get("relative_error")
        compilations = batched["compilations"][name]
        rows.append(
            (
                name,
                rate["median"],
                f"{rate['min']:,.0f} to {rate['max']:,.0f}",
                rate["per_cpu_second"],
                size and size["median_size"],
                size and size["max_size"],
                compilations["first_call"],
                compilations["other_values"],
                compilations["one_alone"],
                compilations["others_alone"],
            )
        )
    return table(BATCHED_COLUMNS, rows)


def _exact(functions: dict[str, Any]) -> str:
    """Return the elementwise functions, ours and the others', a line for each library."""
    rows = []
    for name, measured in functions.items():
        rates = measured["per_second"]
        ours = rates["gdpjax"]["median"]
        for library, error in measured["relative_error"].items():
            rate = rates[library]["median"] if library in rates else None
            is_ours = library == "gdpjax"
            rows.append(
                (
                    name,
                    library,
                    rate,
                    rate and ours / rate,
                    error and error["max"],
                    error and error["failed"],
                    measured["compilations"]["first_call"] if is_ours else None,
                )
            )
    return table(EXACT_COLUMNS, rows)


def _mu(mu: dict[str, Any] | None) -> str:
    if mu is None:
        return ""
    rows = [(name, rate["median"], rate["min"], rate["max"]) for name, rate in mu["per_second"].items()]
    ratio = mu["gdpnum_over_certified_upper"]
    note = (
        "gdpnum's mu holds outside the last 1e-10 of either error, ours except with probability 1e-10: its mu is "
        f"{ratio['median']:.3f} of our upper end in the median ({ratio['min']:.3f} to {ratio['max']:.3f}). "
        f"Our bracket is {mu['relative_width']['median_size']:.1e} wide in the median."
    )
    return f"{table(('library', 'configurations/s', 'min', 'max'), rows)}\n\n{note}"


def _fresh(functions: dict[str, Any]) -> str:
    """Return what a first call takes in a process of its own."""
    rows = []
    for name, measured in functions.items():
        first_call, memory = measured["first_call"], measured["memory"]
        peak, before = memory["peak_bytes"], memory["peak_bytes_before"]
        temporaries = memory["compiled_temp_bytes"]
        rows.append(
            (
                name,
                first_call["first_call_seconds"],
                first_call["import_seconds"],
                memory["size"],
                peak / MEGABYTE,
                (peak - before) / MEGABYTE,
                None if temporaries is None else temporaries / MEGABYTE,
                memory["compiled_flops_loops_once"],
            )
        )
    return table(FRESH_COLUMNS, rows)
