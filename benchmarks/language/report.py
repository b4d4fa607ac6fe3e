"""The result as tables for people."""

from typing import Any

from benchmarks.tables import cell, table
from benchmarks.writing import bullets, document, milliseconds, quartiles, setting

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

    refused = {}
    for name, contender in at["contenders"].items():
        for size, reason in contender["refused"].items():
            refused[f"{name}, microbatch {size}"] = reason
    notes = ["Not available:\n\n" + bullets(refused)] if refused else []
    return "\n\n".join([about, _times(at), _counts(at), *notes])


def _rows(at: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, microbatch size and result of everything that was measured."""
    rows = []
    for name, contender in at["contenders"].items():
        for size, measured in contender["sizes"].items():
            rows.append((name, size, measured))
    return rows


def _times(at: dict[str, Any]) -> str:
    rows = []
    for name, size, measured in _rows(at):
        over = measured["over_no_privacy"]
        ratio = by_round = None
        if over is not None:
            ratio = f"{over['time']:.3f}"
            by_round = f"{over['by_round']['q1']:.3f} to {over['by_round']['q3']:.3f}"
        rows.append(
            (
                name,
                size,
                measured["tokens_per_second"]["median"],
                milliseconds(measured["seconds"]["median"]),
                quartiles(measured["seconds"]),
                ratio,
                by_round,
                None if measured["mfu"] is None else f"{100 * measured['mfu']:.1f}%",
                measured["compile_seconds"],
            )
        )
    columns = (
        "step",
        "microbatch",
        "tokens/s",
        "ms",
        "quartiles",
        "/ no privacy",
        "round by round",
        "MFU",
        "compile, s",
    )
    return table(columns, rows)


def _counts(at: dict[str, Any]) -> str:
    rows = []
    for name, size, measured in _rows(at):
        predicted = measured["predicted"] or {}
        xla = measured["xla_bytes"] or {}
        rows.append(
            (
                name,
                size,
                _scaled(xla.get("held"), MIB),
                _scaled(predicted.get("held_bytes"), MIB),
                _scaled(xla.get("temporaries"), MIB),
                _device(measured["device_bytes"]),
                _scaled(measured["product_flops"], 1e9),
                _scaled(predicted.get("product_flops"), 1e9),
                _scaled(predicted.get("flops"), 1e9),
                _scaled(measured["xla_flops"], 1e9),
            )
        )
    columns = (
        "step",
        "microbatch",
        "held, MiB",
        "predicted",
        "temporaries, MiB",
        "device's peak, MiB",
        "products, GFLOP",
        "predicted",
        "all operations, predicted",
        "XLA's count, loops once",
    )
    return table(columns, rows)


def _device(measured: dict[str, Any] | None) -> str | None:
    if measured is None:
        return None
    bound = "<= " if measured["is_upper_bound"] else ""
    return bound + cell(measured["added"] / MIB)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
