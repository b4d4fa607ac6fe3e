"""Counts of compiled programs, which do not vary from machine to machine, beside those that are expected."""

import importlib.metadata
from typing import Any

COUNTED = ("lines", "bytes", "temp", "float64", "all-gather", "all-reduce", "reduce-scatter", "all-to-all")
ROOM = 1.1
"""A count may be so many times what is expected."""
_LEAST = {"lines": 50, "bytes": 100_000, "temp": 100_000}
"""Differences that are too small to look at."""


def version() -> str:
    """Return the version of JAX, on which counts depend."""
    return importlib.metadata.version("jax")


def merged(known: dict[str, Any], target: str, figures: dict[str, Any], command: str) -> dict[str, Any]:
    """Return results with the figures of a target put in."""
    all_figures = dict(known.get("figures", {}))
    all_figures[target] = {**all_figures.get(target, {}), **figures}
    return {
        "note": "compiled for described devices; nothing was executed",
        "jax": version(),
        "command": command,
        "figures": all_figures,
    }


def expected(known: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Return expectations with those of the measured targets, for this version of JAX, made anew."""
    kept = dict(known)
    for target, figures in measured.items():
        rows = {}
        for name, each in figures.items():
            rows[name] = {count: each[count] for count in COUNTED if count in each}
        kept[f"{target} jax {version()}"] = rows
    return kept


def compare(known: dict[str, Any], measured: dict[str, Any], complete: bool) -> list[str]:
    """Return a line for each count above its expectation, and for each program that failed or is not expected.

    Args:
      known: the file of expectations.
      measured: the figures of each target.
      complete: whether all programs were compiled.
    """
    lines = []
    for target, figures in measured.items():
        place = f"{target} jax {version()}"
        if place not in known:
            print(f"no expectations for {place}: run with --remake to write them")
            lines += [f"{place}, {name}: {each['failed']}" for name, each in figures.items() if "failed" in each]
            continue
        rows = known[place]
        missing = set(rows) - set(figures) if complete else set()
        lines += [f"{place}, {name}: expected, and not compiled" for name in sorted(missing)]
        for name, each in figures.items():
            if "failed" in each:
                lines.append(f"{place}, {name}: {each['failed']}")
            elif name not in rows:
                lines.append(f"{place}, {name}: no expectation; run with --remake")
            else:
                lines += [f"{place}, {name}: {text}" for text in _above(rows[name], each)]
    return lines


def _above(row: dict[str, int], figures: dict[str, Any]) -> list[str]:
    """Return what is above its expectation, and print what is far below."""
    found = []
    for count in COUNTED:
        got, limit = figures.get(count, 0), row.get(count, 0)
        room = max(ROOM * limit, limit + _LEAST.get(count, 0))
        if got > room:
            found.append(f"{count} {got:,}, expected at most {limit:,} and a tenth")
        elif got < 0.7 * limit - _LEAST.get(count, 0):
            print(f"{count} {got:,} is well below the {limit:,} expected: remake the file")
    return found
