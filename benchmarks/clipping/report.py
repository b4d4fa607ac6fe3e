"""The result as tables for people."""

from typing import Any

from benchmarks.tables import table

MIB = 2**20
READING = (
    "A step is the gradient step alone, without noise and update: no privacy is the gradient of the mean loss of the "
    "batch, everybody else's the sum of the clipped per-example gradients, on the same parameters and data. Times are "
    "medians over rounds that run everybody once, with quartiles; ratios are to no privacy on JAX in the same run, and "
    "for torch also to torch without privacy. Where there is a microbatch size, the fastest is taken. Compiling "
    "includes tracing. Temporary memory and flops (of a loop, the body once) are XLA's own account of the program; "
    "torch has none. optax.contrib draws its noise even at multiplier zero, so its time holds that. Relative errors "
    "are against plain vmap's clipped sum: gdpjax clips to C / (1 + slack), a slack below 1% that holds the rounding, "
    "so that its error may reach that slack."
)


def markdown(result: dict[str, Any]) -> str:
    machine, settings = result["machine"], result["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    head = [
        "# Clipped gradients, measured side by side",
        f"{machine['cpu']}, {machine['cpu_cores_used']} core(s), {settings['threads']} thread(s); {machine['device']}; "
        f"{versions}; load average {result['load_average_before']} before, {result['load_average_after']} after; "
        f"{settings['repetitions']} rounds; {result['total_seconds']:.0f} s in all. Made by `{result['command']}`.",
        READING,
    ]
    sections = [("Targets", _targets(result["targets"]))]
    sections += [(at["title"], _contenders(at)) for at in result["models"].values()]
    sections += [("Contenders that are missing", _lines(result["missing"]))]
    return "\n\n".join([*head, *(f"## {title}\n\n{body}" for title, body in sections if body)]) + "\n"


def _targets(targets: dict[str, dict[str, Any]]) -> str:
    rows = [
        (
            name, f"{'>=' if at['at_least'] else '<='} {at['target']:g}", at["measured"], at.get("beside"),
            "met" if at["met"] else "MISSED",
        )
        for name, at in targets.items()
    ]  # fmt: skip
    return table(("target (gdpjax auto)", "wanted", "measured", "beside", "met"), rows) if rows else ""


def _contenders(model: dict[str, Any]) -> str:
    rows = [_row(name, at) for name, at in model["contenders"].items() if "seconds" in at]
    columns = (
        "contender", "microbatch", "step, ms", "quartiles", "/ no privacy", "/ torch", "compile, s",
        "temporaries, MiB", "/ no privacy", "GFLOP", "relative error",
    )  # fmt: skip
    parameters = f"{model['num_parameters']:,} trained parameters, clip norm {model['clip_norm']:g}."
    refused = {
        f"{name}, microbatch {size}" if size != "None" else name: reason
        for name, at in model["contenders"].items()
        for size, reason in at["refused"].items()
    }
    notes = ["Not available:\n\n" + _lines(refused)] if refused else []
    return "\n\n".join([parameters, table(columns, rows), *notes])


def _row(name: str, at: dict[str, Any]) -> tuple[Any, ...]:
    seconds, over = at["seconds"], at["over_no_privacy"]
    error = at["relative_error"]
    return (
        name, at["microbatch_size"], _milli(seconds["median"]), f"{_milli(seconds['q1'])} to {_milli(seconds['q3'])}",
        over["time"], over["time_over_torch"], at["compile_seconds"],
        None if at["temp_bytes"] is None else at["temp_bytes"] / MIB, over["temp_bytes"],
        None if at["flops"] is None else at["flops"] / 1e9,
        None if error is None or "no privacy" in name else f"{error:.0e}",
    )  # fmt: skip


def _milli(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _lines(reasons: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {reason}" for name, reason in reasons.items())
