"""The result as tables for people."""

from typing import Any

from benchmarks.tables import cell, table
from benchmarks.training.parts import CLIPPED, JAX_NORMAL, PRIVATE
from benchmarks.writing import bullets, document, milliseconds, quartiles, setting, targets_table
from gdpjax import Bounds

MIB = 2**20
READING = (
    "Times are medians over rounds that run everybody once, with quartiles; ratios are of these medians, beside the "
    "quartiles of the ratios round by round and the ratio of processor times, which say more on a machine that others "
    "use. The clipped step is the clipped sum of a padded batch that is already there, and the optimizer's update with "
    "it; the private step is `training.step`, which draws and gathers the batch, adds the noise, and keeps the ledger. "
    "The parts are compiled and timed by themselves, so that they need not add up; the clipped step of the expected "
    "batch size alone shows what the padding costs. Temporary memory and flops (of a loop, the body once) are XLA's "
    "own account of the program."
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


def markdown(result: dict[str, Any]) -> str:
    sections = [
        ("Targets", targets_table(result["targets"], "target")),
        (f"Noise: {result['noise']['num_coordinates']:,} coordinates in float32", _noise(result)),
        *((at["title"], _case(at)) for at in result["cases"].values()),
        ("Contenders that are missing", bullets(result["missing"])),
    ]
    return document("Private training, measured side by side", [setting(result), READING, TRAINING], sections)


def percent(ratio: float) -> str:
    """Return a ratio as what it is above one."""
    return f"{100 * (ratio - 1):+.1f}%"


def _noise(result: dict[str, Any]) -> str:
    found = _parts(result["noise"]["contenders"], JAX_NORMAL)
    return f"{found}\n\n{KEPT}" if result["memory_kept"] else found


def _case(at: dict[str, Any]) -> str:
    plan = at["plan"]
    task = (
        f"{at['num_parameters']:,} parameters; noise multiplier {plan['noise_multiplier']:g}, clip norm "
        f"{plan['clip_norm']:g}, {plan['max_steps']:,} planned steps, delta {plan['delta']:g}, batches padded to "
        f"{plan['capacity']} rows."
    )
    if at["parts"]:
        over = at["parts"][PRIVATE]["over"]
        task += (
            f" Bookkeeping: {percent(over['time'])} of the clipped step by the clock (round by round "
            f"{percent(over['by_round']['q1'])} to {percent(over['by_round']['q3'])}), {percent(over['processor'])} "
            "by processor time."
        )
    race = f"{at['steps_per_turn']} steps a turn, from a loss of {at['first_loss']:.3f}:"
    refused = {
        f"{name}, microbatch {size}" if size != "None" else name: reason
        for name, trainer in at["trainers"].items()
        for size, reason in trainer["refused"].items()
    }
    notes = ["Not available:\n\n" + bullets(refused)] if refused else []
    measured_parts = [_parts(at["parts"], CLIPPED)] if at["parts"] else []
    return "\n\n".join([task, *measured_parts, race, _trainers(at), *notes])


def _parts(parts: dict[str, Any], base: str) -> str:
    rows = [
        (
            name,
            milliseconds(at["seconds"]["median"]),
            quartiles(at["seconds"]),
            f"{at['over']['time']:.3f}",
            f"{at['over']['by_round']['q1']:.3f} to {at['over']['by_round']['q3']:.3f}",
            f"{at['over']['processor']:.3f}",
            at["compile_seconds"],
            None if at["temp_bytes"] is None else at["temp_bytes"] / MIB,
            None if at["flops"] is None else at["flops"] / 1e6,
        )
        for name, at in parts.items()
    ]
    columns = (
        "",
        "ms",
        "quartiles",
        f"/ {base}",
        "round by round",
        "by processor time",
        "compile, s",
        "temporaries, MiB",
        "MFLOP",
    )
    return table(columns, rows)


def _trainers(case: dict[str, Any]) -> str:
    rates = {name: at["steps_per_second"] for name, at in case["trainers"].items() if "seconds" in at}
    ours = next(iter(rates.values()))["median"] if rates else None
    rows = []
    for name, rate in rates.items():
        at = case["trainers"][name]
        stated, lower = at["epsilon"], at["epsilon"].get("lower")
        epsilon = None if stated["epsilon"] is None else f"{stated['epsilon']:.4f}"
        rows.append(
            (
                name,
                at["microbatch_size"],
                rate["median"],
                f"{cell(rate['q1'])} to {cell(rate['q3'])}",
                ours and ours / rate["median"],
                f"{at['sampling_prob']:.6f}",
                epsilon if lower is None else f"{Bounds(lower, stated['epsilon']):.4f}",
                stated["by"],
                f"{at['loss']:.3f}",
                at["ready_seconds"],
            )
        )
    columns = (
        "training",
        "microbatch",
        "steps/s",
        "quartiles",
        "the first is faster by",
        "sampling probability",
        "epsilon",
        "stated by",
        "loss",
        "ready, s",
    )
    return table(columns, rows)
