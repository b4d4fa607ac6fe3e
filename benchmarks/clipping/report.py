"""The result as tables for people."""

from typing import Any

from benchmarks.tables import table
from benchmarks.writing import bullets, document, milliseconds, quartiles, setting, targets_table

MIB = 2**20
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


def markdown(result: dict[str, Any]) -> str:
    sections = [("Targets", targets_table(result["targets"], "target (gdpjax auto)"))]
    sections += [(at["title"], _contenders(at)) for at in result["models"].values()]
    sections += [("Contenders that are missing", bullets(result["missing"]))]
    return document("Clipped gradients, measured side by side", [setting(result), READING], sections)


def _contenders(model: dict[str, Any]) -> str:
    rows = [_row(name, at) for name, at in model["contenders"].items() if "seconds" in at]
    columns = (
        "contender",
        "microbatch",
        "step, ms",
        "quartiles",
        "/ no privacy",
        "/ torch",
        "compile, s",
        "temporaries, MiB",
        "/ no privacy",
        "GFLOP",
        "relative error",
    )
    parameters = f"{model['num_parameters']:,} trained parameters, clip norm {model['clip_norm']:g}."
    refused = {
        f"{name}, microbatch {size}" if size != "None" else name: reason
        for name, at in model["contenders"].items()
        for size, reason in at["refused"].items()
    }
    notes = ["Not available:\n\n" + bullets(refused)] if refused else []
    return "\n\n".join([parameters, table(columns, rows), *notes])


def _row(name: str, at: dict[str, Any]) -> tuple[Any, ...]:
    seconds, over = at["seconds"], at["over_no_privacy"]
    error = at["relative_error"]
    return (
        name,
        at["microbatch_size"],
        milliseconds(seconds["median"]),
        quartiles(seconds),
        over["time"],
        over["time_over_torch"],
        at["compile_seconds"],
        None if at["temp_bytes"] is None else at["temp_bytes"] / MIB,
        over["temp_bytes"],
        None if at["flops"] is None else at["flops"] / 1e9,
        None if error is None or "no privacy" in name else f"{error:.0e}",
    )
