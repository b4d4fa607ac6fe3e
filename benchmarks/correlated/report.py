"""The result as tables for people."""

from typing import Any

from benchmarks.correlated import costs, optimizers
from experiments.tables import bullets, document, named, paragraphs, setting, table_of, targets_table

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


FAMILIES = """
n = {num_steps:,}, k = {count}, b = {separation:,} | family
sensitivity | sensitivity
RMSE | rmse | .4g
of independent noise | of_independent
seconds to find | seconds_to_find
"""
NOISE = """
{size:,} coordinates | name
ms | seconds.median | ms
quartiles | seconds | quartiles
over independent | over_independent
by round | over_independent_by_round | {q1:.3g} to {q3:.3g}
by the clock | over_independent_by_the_clock
state MiB | state_bytes | MiB
temporary MiB | temp_bytes | MiB
compiles in s | compile_seconds
"""
OPTIMIZED = """
family | family
steps | num_steps | ,
bands, buffers or epochs | size
error | error
takes part | participation
loss | loss | .6g
beside the peer's | beside
seconds | seconds
peer's seconds | peer.seconds
times faster | times_faster
"""


def targets(result: dict[str, Any]) -> dict[str, Any]:
    """Return what was aimed at, beside what was measured."""
    found = {}
    for size, measured in result["costs"].items():
        found |= costs.targets(int(size), measured)
    return found | optimizers.targets(result["optimizers"])


def markdown(result: dict[str, Any]) -> str:
    """Return the whole document."""
    errors = [table_of(FAMILIES, run["families"], **run["promise"]) for run in result["errors"]]
    costs = [table_of(NOISE, named(at), size=int(size)) for size, at in result["costs"].items()]
    optimized = [row | {"beside": f"{100 * (row['loss_ratio'] - 1):+.3f} %"} for row in result["optimizers"]]
    sections = [
        ("Targets", targets_table(result)),
        ("Error by family", paragraphs(ERRORS, *errors)),
        ("The noise of one step", paragraphs(COSTS, *costs)),
        ("Optimisers", paragraphs(OPTIMIZERS, table_of(OPTIMIZED, optimized))),
        ("Missing", bullets(result["missing"])),
    ]
    return document("Correlated noise", [setting(result)], sections)
