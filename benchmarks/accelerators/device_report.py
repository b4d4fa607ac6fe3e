"""The page of what was executed on a device."""

from typing import Any

from benchmarks.tables import table

PLAIN = "plain"
"""The contender without privacy, or of plain JAX."""


def markdown(results: dict[str, Any]) -> str:
    """Return the page of results."""
    machine, cases = results["machine"], results["cases"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    rows = []
    for name, each in cases.items():
        if "failed" in each:
            rows.append([name, each["failed"].replace("|", "/")[:80], "", "", ""])
            continue
        base = cases.get(f"{name.rpartition('.')[0]}.{PLAIN}", {}).get("median_seconds")
        ratio = each["median_seconds"] / base if base and not name.endswith(PLAIN) else None
        temp = each["temp_bytes"] / 1e6 if each["temp_bytes"] is not None else None
        rows.append([name, 1e3 * each["median_seconds"], ratio, temp, each["compile_seconds"]])
    text = [
        f"# Executed on {machine['device']}",
        f"{versions}. `{results['command']}`",
        "Medians of turns; x is the time over that of the case's plain program.",
        table(["program", "ms", "x", "temp MB", "seconds to compile"], rows),
    ]
    return "\n\n".join(text) + "\n"
