"""The result as tables for people."""

from typing import Any

from benchmarks import harness
from benchmarks.accounting.comparison import WIDTH_TARGET
from benchmarks.accounting.figure import draw as draw
from experiments.tables import bullets, document, named, paragraphs, table_of, targets_table

RATE_TARGETS = {"epsilon_bounds": 500.0, "moments_accountant_epsilon": 1000.0}
LIBRARIES = """
library | name
standing | standing
configurations/s | per_second
our batched bounds are faster by | slower
relative width, median | relative_width.median_size
relative error, median | relative_error.median_size | .1e
least and largest | relative_error | {min:+.1e} to {max:+.1e}
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
"""
LIBRARY_NOTE = (
    "Relative errors are of the estimate where there is one, else of the upper end, against the middle of our "
    "certified bracket. A wrong side is an upper end below our lower end, or a lower end above our upper end."
)
WRONG_SIDE_NOTE = "Whose end is false is decided by the discretised bracket of the tests, which is neither's method."


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured."""
    rates, accuracy = result["batched"]["per_second"], result["accuracy"]["epsilon_bounds"]
    widest, num_wider = accuracy["relative_width"]["max_size"], accuracy["wider_than_target"]
    return {
        **{f"{name}, per second": harness.at_least(rate, rates[name]["median"]) for name, rate in RATE_TARGETS.items()},
        "epsilon_bounds, largest relative width": harness.at_most(WIDTH_TARGET, widest),
        "epsilon_bounds, configurations wider than that": harness.at_most(0, num_wider),
    }


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
        ("Targets", targets_table(result)),
        ("Epsilon: one configuration a call, every library in turn", libraries(result)),
        ("Bounds on the wrong side of ours", _wrong_sides(result["comparison"]["libraries"])),
        ("Epsilon: the whole grid in one call", _batched(result)),
        ("Libraries that are missing", bullets(result["comparison"]["missing"])),
    ]
    return document("Accounting, measured side by side", head, sections)


def libraries(result: dict[str, Any]) -> str:
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
    """Return our functions on the whole grid: rates, and widths or errors."""
    rows = named(result["batched"]["per_second"])
    for rate in rows:
        sizes = result["accuracy"].get(rate["name"], {})
        rate["size"] = sizes.get("relative_width") or sizes.get("relative_error")
        rate["range"] = [rate["min"], rate["max"]]
    return table_of(BATCHED, rows)
