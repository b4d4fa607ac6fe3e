"""The result as tables for people."""

from typing import Any

from benchmarks.clipping.compare import targets as targets
from benchmarks.clipping.figure import draw as draw
from experiments.tables import bullets, document, named, paragraphs, refusals, setting, table_of, targets_table

READING = (
    "A step is the gradient step alone, without noise and update: no privacy is the gradient of the mean loss of the "
    "batch, everybody else's the sum of the clipped per-example gradients, on the same parameters and data. Times are "
    "medians over rounds that run everybody once, with quartiles; ratios are to no privacy on JAX in the same run, and "
    "for torch also to torch without privacy. Where there is a microbatch size, the fastest is taken. Compiling "
    "includes tracing. Temporary memory and flops (of a loop, the body once) are XLA's own account of the program; "
    "torch has none. optax.contrib draws its noise even at multiplier zero, so its time holds that. Relative errors "
    "are against plain vmap's clipped sum: gdpjax clips to C / (1 + slack), a slack below 1% that holds the rounding, "
    "so that its error may reach that slack. At batches other than 256, and with a tied head, only some were run."
)


CONTENDERS = """
contender | name
microbatch | microbatch_size
step, ms | seconds.median | ms
quartiles | seconds | quartiles
/ no privacy | over_no_privacy.time
/ torch | over_no_privacy.time_over_torch
compile, s | compile_seconds
temporaries, MiB | temp_bytes | MiB
/ no privacy | over_no_privacy.temp_bytes
GFLOP | flops | giga
relative error | error | .0e
"""


def markdown(result: dict[str, Any]) -> str:
    sections = [("Targets", targets_table(result, "target (gdpjax auto)"))]
    sections += [(at["title"], _contenders(at)) for at in result["cases"].values()]
    sections += [("Contenders that are missing", bullets(result["missing"]))]
    return document("Clipped gradients, measured side by side", [setting(result), READING], sections)


def _contenders(model: dict[str, Any]) -> str:
    rows = [at for at in named(model["contenders"]) if "seconds" in at]
    for at in rows:
        at["error"] = None if "no privacy" in at["name"] else at["relative_error"]
    parameters = f"{model['num_parameters']:,} trained parameters, clip norm {model['clip_norm']:g}."
    return paragraphs(parameters, table_of(CONTENDERS, rows), refusals(model["contenders"]))
