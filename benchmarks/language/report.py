"""The result as tables for people."""

from typing import Any

from experiments.tables import bullets, document, paragraphs, refusals, setting, table_of

READING = (
    "A step is a gradient, clipped or not, with noise or not, and Adam's update, on a batch that is there already and "
    "holds no padding: everybody computes the same rows, in chunks of as many units as the column says. Sampling is "
    "left out; the ledger is in ours. Times are medians over rounds that run everybody once, with quartiles, and the "
    "ratio is to the fastest step without privacy, beside the quartiles of the ratios round by round. Tokens are "
    "random, and no position is padding. For jax_privacy it is its `clipped_grad`, its independent noise and the same "
    "optimizer."
)
COUNTS = (
    "Memory is what XLA's account of the program holds at a time, arguments and results included. Operations are those "
    "of the matrix products in the traced program, with loops as often as they are done; a program with loops that do "
    "not tell how often, such as jax_privacy's, has no figure."
)


TIMES = """
step | name
microbatch | size
tokens/s | tokens_per_second.median
ms | seconds.median | ms
quartiles | seconds | quartiles
/ no privacy | over_no_privacy.time | .3f
round by round | over_no_privacy.by_round | {q1:.3f} to {q3:.3f}
compile, s | compile_seconds
"""
COUNTED = """
step | name
microbatch | size
held, MiB | held_bytes | MiB
temporaries, MiB | temp_bytes | MiB
products, GFLOP | product_flops | giga
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
    rows = []
    for name, contender in at["contenders"].items():
        for size, measured in contender["sizes"].items():
            rows.append({"name": name, "size": size, **measured})
    return paragraphs(about, table_of(TIMES, rows), table_of(COUNTED, rows), refusals(at["contenders"]))
