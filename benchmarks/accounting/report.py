"""The result as tables for people."""

from typing import Any

from benchmarks import harness
from benchmarks.accounting import ours
from benchmarks.accounting.figure import draw as draw
from benchmarks.tables import bullets, document, named, paragraphs, table_of

TARGETS = """
target | name
wanted | target
measured | measured
met | met | yes
"""
LIBRARIES = """
library | name
standing | standing
configurations/s | per_second
by processor time | per_cpu_second
our batched bounds are faster by | slower
relative width, median | relative_width.median_size
relative error, median | relative_error.median_size | .1e
least and largest | relative_error | {min:+.1e} to {max:+.1e}
against PRV, median | relative_error_against_prv.median_size
configurations | configurations
failed | failed
wrong side | wrong
"""
WRONG_SIDES = """
library | name
noise_multiplier | noise_multiplier
sampling_prob | sampling_prob
num_steps | num_steps
delta | delta
side | side
claimed | claimed | .6g
certified | certified | [{:.6g}, {:.6g}]
false is | false
"""
BATCHED = """
function | name
configurations/s | median
range | range | {:,.0f} to {:,.0f}
by processor time | per_cpu_second
relative width or error, median | size.median_size
largest | size.max_size
compilations, first call | compilations.first_call
other values | compilations.other_values
one alone | compilations.one_alone
others alone | compilations.others_alone
"""
EXACT = """
function | function
library | library
points/s | rate.median
gdpjax is faster by | slower
largest relative error | max
failed | failed
compilations | compilations.first_call
"""
MU = """
library | name
configurations/s | median
min | min
max | max
"""
FRESH = """
function | name
first call, s | first_call.first_call_seconds
import, s | first_call.import_seconds
for | memory.size
peak, MB | memory.peak_bytes | MB
of these the call's, MB | added | MB
compiled temporaries, MB | memory.compiled_temp_bytes | MB
flops (a loop's body once) | memory.compiled_flops_loops_once
"""
LIBRARY_NOTE = (
    "Relative errors are of the estimate where there is one, else of the upper end, against the middle of our "
    "certified bracket, and against prv_accountant's estimate. A wrong side is an upper end below our lower end, "
    "or a lower end above our upper end."
)
WRONG_SIDE_NOTE = "Whose end is false is decided by the discretised bracket of the tests, which is neither's method."


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured."""
    found = {}
    rates = {name: measured["per_second"]["gdpjax"] for name, measured in result["gaussian"].items()}
    rates |= result["batched"]["per_second"]
    for name, function in ours.FUNCTIONS.items():
        if function.target is not None:
            found[f"{name}, per second"] = harness.at_least(float(function.target), rates[name]["median"])

    accuracy = result["accuracy"]["epsilon_bounds"]
    widest, num_wider = accuracy["relative_width"]["max_size"], accuracy["wider_than_target"]
    found["epsilon_bounds, largest relative width"] = harness.at_most(ours.WIDTH_TARGET, widest)
    found["epsilon_bounds, configurations wider than that"] = harness.at_most(0, num_wider)

    for name, measured in result["fresh"].items():
        seconds = measured["first_call"]["first_call_seconds"]
        peak = float(measured["memory"]["peak_bytes"])
        found[f"{name}, first call, seconds"] = harness.at_most(ours.FIRST_CALL_TARGET, seconds)
        found[f"{name}, peak memory, bytes"] = harness.at_most(ours.MEMORY_TARGET, peak)
    return found


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
        ("Targets", table_of(TARGETS, named(result["targets"]))),
        ("Epsilon: one configuration a call, every library in turn", _libraries(result)),
        ("Bounds on the wrong side of ours", _wrong_sides(result["comparison"]["libraries"])),
        ("Epsilon: the whole grid in one call", _batched(result)),
        ("Exact functions", _exact(result["gaussian"])),
        ("mu", _mu(result["mu"])),
        ("First call, memory, compiled program", _fresh(result["fresh"])),
        ("Libraries that are missing", bullets(result["comparison"]["missing"])),
    ]
    return document("Accounting, measured side by side", head, sections)


def _libraries(result: dict[str, Any]) -> str:
    """Return how fast and how far from ours every library is, and how it failed."""
    batched_rate = result["batched"]["per_second"]["epsilon_bounds"]["median"]
    rows, failures = [], []
    for at in named(result["comparison"]["libraries"]):
        failed = at["failures"]
        derived = {"failed": sum(failed.values()), "wrong": len(at["wrong_side"])}
        rows.append(at | derived | {"slower": batched_rate / at["per_second"]})
        failures += [f"- {at['name']}: {count} times {reason}" for reason, count in failed.items()]
    listed = "Failures:\n\n" + "\n".join(failures) if failures else ""
    return paragraphs(table_of(LIBRARIES, rows), LIBRARY_NOTE, listed)


def _wrong_sides(libraries: dict[str, Any]) -> str:
    """Return every end of another library that contradicts our bracket, and which of the two is false."""
    rows = []
    for name, measured in libraries.items():
        rows += [{"name": name, "false": "not judged", **wrong} for wrong in measured["wrong_side"]]
    return paragraphs(table_of(WRONG_SIDES, rows), WRONG_SIDE_NOTE) if rows else "None."


def _batched(result: dict[str, Any]) -> str:
    """Return our functions on the whole grid: rates, widths or errors, and compilations."""
    rows = named(result["batched"]["per_second"])
    for rate in rows:
        sizes = result["accuracy"].get(rate["name"], {})
        rate["size"] = sizes.get("relative_width") or sizes.get("relative_error")
        rate["range"] = [rate["min"], rate["max"]]
        rate["compilations"] = result["batched"]["compilations"][rate["name"]]
    return table_of(BATCHED, rows)


def _exact(functions: dict[str, Any]) -> str:
    """Return the elementwise functions, ours and the others', a line for each library."""
    rows = []
    for name, measured in functions.items():
        rates = measured["per_second"]
        for library, error in measured["relative_error"].items():
            row = {"function": name, "library": library, **(error or {})}
            if library in rates:
                slower = rates["gdpjax"]["median"] / rates[library]["median"]
                row |= {"rate": rates[library], "slower": slower}
            if library == "gdpjax":
                row["compilations"] = measured["compilations"]
            rows.append(row)
    return table_of(EXACT, rows)


def _mu(mu: dict[str, Any] | None) -> str:
    if mu is None:
        return ""
    ratio = mu["gdpnum_over_certified_upper"]
    note = (
        "gdpnum's mu holds outside the last 1e-10 of either error, ours except with probability 1e-10: its mu is "
        f"{ratio['median']:.3f} of our upper end in the median ({ratio['min']:.3f} to {ratio['max']:.3f}). "
        f"Our bracket is {mu['relative_width']['median_size']:.1e} wide in the median."
    )
    return paragraphs(table_of(MU, named(mu["per_second"])), note)


def _fresh(functions: dict[str, Any]) -> str:
    """Return what a first call takes in a process of its own."""
    rows = named(functions)
    for row in rows:
        row["added"] = row["memory"]["peak_bytes"] - row["memory"]["peak_bytes_before"]
    return table_of(FRESH, rows)
