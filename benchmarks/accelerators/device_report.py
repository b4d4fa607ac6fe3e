"""The page of what was executed on a device."""

from typing import Any

from experiments.tables import document, named, table_of, versions

PLAIN = "plain"
"""The contender without privacy, or of plain JAX."""
PROGRAMS = """
program | name
ms | median_seconds | milli
x | ratio
temp MB | temp_bytes | mega
seconds to compile | compile_seconds
"""


def markdown(results: dict[str, Any]) -> str:
    """Return the page of results."""
    machine, cases = results["machine"], results["cases"]
    rows = named(cases)
    for row in rows:
        base = cases.get(f"{row['name'].rpartition('.')[0]}.{PLAIN}", {}).get("median_seconds")
        if "failed" in row:
            row["median_seconds"] = row["failed"].replace("|", "/")[:80]
        elif base and not row["name"].endswith(PLAIN):
            row["ratio"] = row["median_seconds"] / base
    head = [
        f"{versions(machine)}. `{results['command']}`",
        "Medians of turns; x is the time over that of the case's plain program.",
        table_of(PROGRAMS, rows),
    ]
    return document(f"Executed on {machine['device']}", head, [])
