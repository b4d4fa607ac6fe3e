"""The page of the figures: a table for each family and target, with ratios to the first contender of a case."""

from typing import Any

from benchmarks.accelerators.target import COLLECTIVES, TITLES
from benchmarks.tables import table

_HEADER = ["program", "seconds", "lines", "temp MB", "arguments MB", "MB moved", "x", "Gflop", "us", "float64"]


def markdown(results: dict[str, Any]) -> str:
    """Return the page of results."""
    parts = [
        "# Compiled for a TPU v5e and an H100: nothing was executed",
        f"JAX {results['jax']}. `{results['command']}`",
        "Seconds of tracing and compiling on two shared cores; lines of the final HLO; memory beside the arguments; "
        "bytes moved, operations and time as the TPU's compiler estimates them (it counts an array that is written in "
        "place as a whole, and a loop's body once; the GPU's gives none); x is bytes over those of the first program "
        "of the case.",
    ]
    for target, figures in results["figures"].items():
        families: dict[str, list[str]] = {}
        for name in figures:
            families.setdefault(name.split(".")[0], []).append(name)
        for family, names in families.items():
            parts.append(f"## {family[0].upper()}{family[1:]}, {TITLES[target]}")
            rows = [_row(name, figures) for name in names]
            parts.append(table(_HEADER, rows))
            if family == "eight devices":
                parts.append(_devices(names, figures))
    return "\n\n".join(parts) + "\n"


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    each = figures[name]
    title = name.partition(".")[2]
    if "failed" in each:
        return [title, each["failed"].replace("|", "/")[:80], *[""] * (len(_HEADER) - 2)]

    def mega(key: str, digits: int = 1) -> str:
        return f"{each[key] / 1e6:,.{digits}f}" if key in each else ""

    first = next(other for other in figures if other.rpartition(".")[0] == name.rpartition(".")[0])
    base = figures[first].get("bytes")
    ratio = f"{each['bytes'] / base:.2f}" if base and "bytes" in each and first != name else ""
    gigaflops = f"{each['flops'] / 1e9:,.2f}" if "flops" in each else ""
    time = f"{each['estimated_us']:,.0f}" if "estimated_us" in each else ""
    return [
        title, f"{each['seconds']:.1f}", f"{each['lines']:,}", mega("temp"), mega("arguments"), mega("bytes"), ratio,
        gigaflops, time, str(each["float64"]),
    ]  # fmt: skip


def _devices(names: list[str], figures: dict[str, Any]) -> str:
    """Return the table of what each of eight devices holds, sends and draws."""
    header = ["program", "GB a device", *COLLECTIVES, "largest array of words a device draws"]
    rows = []
    for name in names:
        each = figures[name]
        if "failed" not in each:
            held = (each.get("temp", 0) + each.get("arguments", 0)) / 1e9
            counts = [str(each.get(kind, 0)) for kind in COLLECTIVES]
            rows.append([name.partition(".")[2], f"{held:.2f}", *counts, each.get("words", "")])
    return table(header, rows)
