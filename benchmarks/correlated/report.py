"""The result as tables for people."""

from typing import Any

from benchmarks.tables import table
from benchmarks.writing import bullets, document, milliseconds, quartiles, setting, targets_table

MIB = 2**20
ERRORS = (
    "RMSE is the certified sensitivity times the root of the mean squared error of prefix sums, in units of the noise "
    "multiplier times the clip norm; all at the same privacy. An example takes part in at most k of n steps, at least "
    "b apart. Smaller is better; nothing is sampled. The dense optimum is for fixed epochs, which is a stronger "
    "promise."
)
COSTS = (
    "A step's noise added to a float32 sum that is there, with the state donated as in a training loop, so that ring "
    "buffers are written in place. Ratios are to independent noise of the same library: of the medians of processor "
    "time, which other processes disturb less, with the quartiles round by round, and of those by the clock. State "
    "and temporary memory in MiB; temporary memory is XLA's own account. gdpjax's noise has 63 random bits in the tail "
    "where jax.random.normal has 23; both libraries' times are of their own noise."
)
OPTIMIZERS = (
    "Loss is sensitivity^2 times the squared error of prefix sums. The peer's losses and seconds were recorded once, "
    "in float64 on a shared machine, with what it compiles; ours are measured here."
)


def markdown(result: dict[str, Any]) -> str:
    """Return the whole document."""
    errors = [_errors(run) for run in result["errors"]]
    costs = [_costs(size, at) for size, at in result["costs"].items()]
    sections = [
        ("Targets", targets_table(result["targets"], "target")),
        ("Error by family", "\n\n".join([ERRORS, *errors])),
        ("The noise of one step", "\n\n".join([COSTS, *costs])),
        ("Optimisers", f"{OPTIMIZERS}\n\n{_optimizers(result['optimizers'])}"),
        ("Missing", bullets(result["missing"])),
    ]
    return document("Correlated noise", [setting(result)], sections)


def title_of(promise: dict[str, Any]) -> str:
    """Return the size of a run in words."""
    return f"n = {promise['num_steps']:,}, k = {promise['count']}, b = {promise['separation']:,}"


def _errors(run: dict[str, Any]) -> str:
    rows = [
        (row["family"], row["sensitivity"], f"{row['rmse']:.4g}", row["of_independent"], row["seconds_to_find"])
        for row in run["families"]
    ]
    columns = (title_of(run["promise"]), "sensitivity", "RMSE", "of independent noise", "seconds to find")
    return table(columns, rows)


def _costs(size: str, contenders: dict[str, Any]) -> str:
    rows = []
    for name, at in contenders.items():
        temporary = at["temp_bytes"]
        rows.append(
            (
                name,
                milliseconds(at["seconds"]["median"]),
                quartiles(at["seconds"]),
                at["over_independent"],
                _spread(at["over_independent_by_round"]),
                at["over_independent_by_the_clock"],
                at["state_bytes"] / MIB,
                None if temporary is None else temporary / MIB,
                at["compile_seconds"],
            )
        )
    columns = (
        f"{int(size):,} coordinates",
        "ms",
        "quartiles",
        "over independent",
        "by round",
        "by the clock",
        "state MiB",
        "temporary MiB",
        "compiles in s",
    )
    return table(columns, rows)


def _spread(ratios: dict[str, Any]) -> str:
    return f"{ratios['q1']:.3g} to {ratios['q3']:.3g}"


def _optimizers(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        lines.append(
            (
                row["family"],
                f"{row['num_steps']:,}",
                row["size"],
                row["error"],
                row["participation"],
                f"{row['loss']:.6g}",
                f"{100 * (row['loss_ratio'] - 1):+.3f} %",
                row["seconds"],
                row["peer"]["seconds"],
                row["times_faster"],
            )
        )
    columns = (
        "family",
        "steps",
        "bands, buffers or epochs",
        "error",
        "takes part",
        "loss",
        "beside the peer's",
        "seconds",
        "peer's seconds",
        "times faster",
    )
    return table(columns, lines)
