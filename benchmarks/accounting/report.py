"""The result as tables for people."""

from typing import Any

from benchmarks.tables import table
from benchmarks.writing import bullets, document


def markdown(result: dict[str, Any]) -> str:
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
        ("Exact functions", _gaussian(result["gaussian"])),
        ("mu", _mu(result["mu"])),
        ("First call, memory, compiled program", _fresh(result["fresh"])),
        ("Libraries that are missing", bullets(result["comparison"]["missing"])),
    ]
    return document("Accounting, measured side by side", head, sections)


def _targets(targets: dict[str, dict[str, Any]]) -> str:
    rows = [(name, at["target"], at["measured"], "yes" if at["met"] else "NO") for name, at in targets.items()]
    return table(("target", "wanted", "measured", "met"), rows)


def _libraries(result: dict[str, Any]) -> str:
    grid_rate = result["batched"]["per_second"]["epsilon_bounds"]["median"]
    rows = []
    for name, at in result["comparison"]["libraries"].items():
        width, error, prv = at["relative_width"], at["relative_error"], at["relative_error_against_prv"]
        rows.append(
            (
                name, at["standing"], at["per_second"], at["per_cpu_second"], grid_rate / at["per_second"],
                width and width["median_size"],
                error and f"{error['median_size']:.1e}", error and f"{error['min']:+.1e} to {error['max']:+.1e}",
                prv and prv["median_size"], at["configurations"], sum(at["failures"].values()), len(at["wrong_side"]),
            )
        )  # fmt: skip
    columns = (
        "library", "standing", "configurations/s", "by processor time", "our batched bounds are faster by",
        "relative width, median",
        "relative error, median", "least and largest", "against PRV, median", "configurations", "failed", "wrong side",
    )  # fmt: skip
    note = (
        "Relative errors are of the estimate where there is one, else of the upper end, against the middle of our "
        "certified bracket, and against prv_accountant's estimate. A wrong side is an upper end below our lower end, "
        "or a lower end above our upper end."
    )
    failures = [
        f"- {name}: {count} times {reason}"
        for name, at in result["comparison"]["libraries"].items()
        for reason, count in at["failures"].items()
    ]
    return "\n\n".join([table(columns, rows), note, *(["Failures:\n\n" + "\n".join(failures)] if failures else [])])


def _wrong_sides(libraries: dict[str, Any]) -> str:
    rows = [
        (
            name, found["noise_multiplier"], found["sampling_prob"], found["num_steps"], found["delta"], found["side"],
            f"{found['claimed']:.6g}", "[{:.6g}, {:.6g}]".format(*found["certified"]), found.get("false", "not judged"),
        )
        for name, at in libraries.items()
        for found in at["wrong_side"]
    ]  # fmt: skip
    if not rows:
        return "None."
    columns = (
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
    note = "Whose end is false is decided by the discretised bracket of the tests, which is neither's method."
    return table(columns, rows) + "\n\n" + note


def _batched(result: dict[str, Any]) -> str:
    batched, accuracy = result["batched"], result["accuracy"]
    rows = []
    for name, rate in batched["per_second"].items():
        at, count = accuracy.get(name, {}), batched["compilations"][name]
        size = at.get("relative_width") or at.get("relative_error")
        rows.append(
            (
                name, rate["median"], f"{rate['min']:,.0f} to {rate['max']:,.0f}", rate["per_cpu_second"],
                size and size["median_size"],
                size and size["max_size"], count["first_call"], count["other_values"], count["one_alone"],
                count["others_alone"],
            )
        )  # fmt: skip
    columns = (
        "function", "configurations/s", "range", "by processor time", "relative width or error, median", "largest",
        "compilations, first call", "other values", "one alone", "others alone",
    )  # fmt: skip
    return table(columns, rows)


def _gaussian(gaussian: dict[str, Any]) -> str:
    rows = []
    for name, at in gaussian.items():
        own = at["per_second"]["gdpjax"]["median"]
        for library, error in at["relative_error"].items():
            rate = at["per_second"].get(library)
            rows.append(
                (
                    name, library, rate and rate["median"], rate and own / rate["median"], error and error["max"],
                    error and error["failed"], at["compilations"]["first_call"] if library == "gdpjax" else None,
                )
            )  # fmt: skip
    columns = (
        "function",
        "library",
        "points/s",
        "gdpjax is faster by",
        "largest relative error",
        "failed",
        "compilations",
    )
    return table(columns, rows)


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
    return table(("library", "configurations/s", "min", "max"), rows) + "\n\n" + note


def _fresh(fresh: dict[str, Any]) -> str:
    rows = [
        (
            name, at["first_call"]["first_call_seconds"], at["first_call"]["import_seconds"], at["memory"]["size"],
            at["memory"]["peak_bytes"] / 1e6, (at["memory"]["peak_bytes"] - at["memory"]["peak_bytes_before"]) / 1e6,
            _mega(at["memory"]["compiled_temp_bytes"]), at["memory"]["compiled_flops_loops_once"],
        )
        for name, at in fresh.items()
    ]  # fmt: skip
    columns = (
        "function", "first call, s", "import, s", "for", "peak, MB", "of these the call's, MB",
        "compiled temporaries, MB", "flops (a loop's body once)",
    )  # fmt: skip
    return table(columns, rows)


def _mega(size: int | None) -> float | None:
    return None if size is None else size / 1e6
