"""The result as tables for people."""

from typing import Any

from benchmarks.tables import bullets, cell, document, paragraphs, refusals, setting, table_of

MIB = 2**20
READING = (
    "A step is a gradient, clipped or not, with noise or not, and Adam's update, on a batch that is there already and "
    "holds no padding: everybody computes the same rows, in chunks of as many units as the column says. Sampling is "
    "left out; the ledger is in ours. Times are medians over rounds that run everybody once, with quartiles, and the "
    "ratio is to the fastest step without privacy, beside the quartiles of the ratios round by round. Tokens are "
    "random, and no position is padding. For jax_privacy it is its `clipped_grad`, its independent noise and the same "
    "optimizer."
)
COUNTS = (
    "Memory is what XLA's account of the program holds at a time, arguments and results included, beside what "
    "`experiments.language.cost` predicts; the device's own figure is how far its peak was above what it held before "
    "the call, so without the arguments ('<=': an earlier call of the process had needed more), and is missing where a "
    "device keeps no account. Operations are those of the matrix products in the traced program, with loops as often "
    "as they are done, beside the predicted ones; a program with loops that do not tell how often, such as "
    "jax_privacy's, has no figure. XLA's own count takes the body of a loop once, and is no measure of "
    "a step's work. Model flops utilisation takes the operations that any training needs, without recomputation, "
    "clipping, noise and optimizer, over what the device is said to do in that time."
)


TIMES = """
step | name
microbatch | size
tokens/s | tokens_per_second.median
ms | seconds.median | ms
quartiles | seconds | quartiles
/ no privacy | over_no_privacy.time | .3f
round by round | over_no_privacy.by_round | {q1:.3f} to {q3:.3f}
MFU | mfu | .1%
compile, s | compile_seconds
"""
COUNTED = """
step | name
microbatch | size
held, MiB | xla_bytes.held | MiB
predicted | predicted.held_bytes | MiB
temporaries, MiB | xla_bytes.temporaries | MiB
device's peak, MiB | peak
products, GFLOP | product_flops | GFLOP
predicted | predicted.product_flops | GFLOP
all operations, predicted | predicted.flops | GFLOP
XLA's count, loops once | xla_flops | GFLOP
"""


def markdown(result: dict[str, Any]) -> str:
    sections = [
        *((at["title"], _case(at)) for at in result["cases"].values()),
        ("Contenders that are missing", bullets(result["missing"])),
    ]
    return document("Language models, private steps side by side", [setting(result), READING, COUNTS], sections)


def _case(at: dict[str, Any]) -> str:
    """Return the tables of one training: times, and then what was counted."""
    about = f"{at['num_parameters']:,} parameters, {at['num_trained']:,} of them trained."
    device_flops = at["device_flops"]
    if device_flops is None:
        about += " No model flops utilisation: nobody said what the device can do (`--device-flops`)."
    else:
        about += f" The device is said to do {device_flops / 1e12:,.4g} TFLOP a second."
    rows = []
    for name, contender in at["contenders"].items():
        for size, measured in contender["sizes"].items():
            rows.append({"name": name, "size": size, "peak": _device(measured["device_bytes"]), **measured})
    return paragraphs(about, table_of(TIMES, rows), table_of(COUNTED, rows), refusals(at["contenders"]))


def _device(measured: dict[str, Any] | None) -> str | None:
    if measured is None:
        return None
    bound = "<= " if measured["is_upper_bound"] else ""
    return bound + cell(measured["added"] / MIB)
