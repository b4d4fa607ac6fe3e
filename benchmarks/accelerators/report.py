"""The page of the figures: a table for each family and target, with ratios to the first contender of a case."""

from typing import Any

from benchmarks.accelerators.target import COLLECTIVES, TITLES
from experiments.tables import document, named, paragraphs, table_of

ABOUT = (
    "Seconds of tracing and compiling on two shared cores; lines of the final HLO; memory beside the arguments; "
    "bytes moved, operations and time as the TPU's compiler estimates them (it counts an array that is written in "
    "place as a whole, and a loop's body once; the GPU's gives none); x is bytes over those of the first program "
    "of the case."
)
PROGRAMS = """
program | title
seconds | seconds | .1f
lines | lines | ,
temp MB | temp | mega
arguments MB | arguments | mega
MB moved | bytes | mega
x | ratio | .2f
Gflop | flops | giga
us | estimated_us | ,.0f
float64 | float64
"""
DEVICES = "\n".join(
    (
        "program | title",
        "GB a device | held | giga",
        *(f"{kind} | {kind}" for kind in COLLECTIVES),
        "largest array of words a device draws | words",
    )
)


def markdown(results: dict[str, Any]) -> str:
    """Return the page of results."""
    sections = []
    for target, figures in results["figures"].items():
        families: dict[str, list[dict[str, Any]]] = {}
        for row in named(figures):
            families.setdefault(row["name"].split(".")[0], []).append(row)
        for family, rows in families.items():
            title = f"{family[0].upper()}{family[1:]}, {TITLES[target]}"
            body = table_of(PROGRAMS, _with_ratios(rows))
            if family == "eight devices":
                body = paragraphs(body, table_of(DEVICES, [_on_devices(row) for row in rows if "failed" not in row]))
            sections.append((title, body))
    head = [f"JAX {results['jax']}. `{results['command']}`", ABOUT]
    return document("Compiled for a TPU v5e and an H100: nothing was executed", head, sections)


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add titles, and the bytes over those of the first program of a case; of a failure its reason is all there is."""
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        base = first.setdefault(row["name"].rpartition(".")[0], row)
        row["title"] = row["name"].partition(".")[2]
        if "failed" in row:
            row["seconds"] = row["failed"].replace("|", "/")[:80]
        elif base is not row and base.get("bytes") and "bytes" in row:
            row["ratio"] = row["bytes"] / base["bytes"]
    return rows


def _on_devices(row: dict[str, Any]) -> dict[str, Any]:
    """Return what each of eight devices holds, sends and draws."""
    held = row.get("temp", 0) + row.get("arguments", 0)
    return dict.fromkeys(COLLECTIVES, 0) | row | {"held": held}
