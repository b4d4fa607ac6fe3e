"""The result as tables for people."""

from typing import Any

from benchmarks.training.parts import PRIVATE
from benchmarks.training.race import targets as targets
from experiments.tables import bullets, cell, document, named, paragraphs, refusals, setting, table_of, targets_table
from gdpjax import Bounds

READING = (
    "Times are medians over rounds that run everybody once, with quartiles; ratios are of these medians, beside the "
    "quartiles of the ratios round by round and the ratio of processor times, which say more on a machine that others "
    "use. The clipped step is the clipped sum of a padded batch that is already there, and the optimizer's update with "
    "it; the private step is `training.step`, which draws and gathers the batch, adds the noise, and keeps the ledger. "
    "Temporary memory and flops (of a loop, the body once) are XLA's own account of the program."
)
KEPT = (
    "The process keeps the memory that it frees (glibc's mallopt), for everybody: by itself it gives large blocks back "
    "after a call or not, as the heap happens to lie, and new pages cost as much as the numbers."
)
TRAINING = (
    "Everybody trains the same model from the same parameters, with the same expected batch size, clip norm, noise "
    "multiplier and optimizer, in its own documented loop with its own Poisson batches, compiled beforehand. Opacus "
    "samples with one over the whole number of batches of an epoch, so that its rate may differ in the third digit. "
    "Epsilon is what each library states for all the planned steps. The loss, over 1,000 examples after the steps of "
    "one turn, shows that all train the same; the noise differs. Ready is everything until the first turn is over: "
    "building, compiling, one turn."
)


PARTS = """
 | name
ms | seconds.median | ms
quartiles | seconds | quartiles
/ clipped step | over.time | .3f
round by round | over.by_round | {q1:.3f} to {q3:.3f}
by processor time | over.processor | .3f
compile, s | compile_seconds
temporaries, MiB | temp_bytes | MiB
MFLOP | flops | mega
"""
TRAINERS = """
training | name
microbatch | microbatch_size
steps/s | steps_per_second.median
quartiles | quartiles | {} to {}
the first is faster by | slower
sampling probability | sampling_prob | .6f
epsilon | bracket | .4f
stated by | epsilon.by
loss | loss | .3f
ready, s | ready_seconds
"""


def markdown(result: dict[str, Any]) -> str:
    sections = [
        ("Targets", targets_table(result)),
        *((at["title"], _case(at)) for at in result["cases"].values()),
        ("Contenders that are missing", bullets(result["missing"])),
    ]
    head = [setting(result), READING, TRAINING, *([KEPT] if result["memory_kept"] else [])]
    return document("Private training, measured side by side", head, sections)


def percent(ratio: float) -> str:
    """Return a ratio as what it is above one."""
    return f"{100 * (ratio - 1):+.1f}%"


def _case(at: dict[str, Any]) -> str:
    plan, parts = at["plan"], at["parts"]
    task = (
        f"{at['num_parameters']:,} parameters; noise multiplier {plan['noise_multiplier']:g}, clip norm "
        f"{plan['clip_norm']:g}, {plan['max_steps']:,} planned steps, delta {plan['delta']:g}, batches padded to "
        f"{plan['capacity']} rows."
    )
    if parts:
        over = parts[PRIVATE]["over"]
        task += (
            f" Bookkeeping: {percent(over['time'])} of the clipped step by the clock (round by round "
            f"{percent(over['by_round']['q1'])} to {percent(over['by_round']['q3'])}), {percent(over['processor'])} "
            "by processor time."
        )
    race = f"{at['steps_per_turn']} steps a turn, from a loss of {at['first_loss']:.3f}:"
    measured_parts = table_of(PARTS, named(parts)) if parts else ""
    return paragraphs(task, measured_parts, race, _trainers(at["trainers"]), refusals(at["trainers"]))


def _trainers(trainers: dict[str, Any]) -> str:
    rows = [at for at in named(trainers) if "seconds" in at]
    for at in rows:
        rate, stated = at["steps_per_second"], at["epsilon"]
        at["quartiles"] = [cell(rate["q1"]), cell(rate["q3"])]
        at["slower"] = rows[0]["steps_per_second"]["median"] / rate["median"]
        at["bracket"] = Bounds(stated["lower"], stated["epsilon"]) if "lower" in stated else stated["epsilon"]
    return table_of(TRAINERS, rows)
