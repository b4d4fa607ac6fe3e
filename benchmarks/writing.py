"""Parts that every benchmark's command line shares: names that were chosen, and the files it writes."""

import contextlib
import json
import pathlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.tables import table


def chosen(wanted: Sequence[str], there: dict[str, Any], what: str) -> list[Any]:
    """Return those that are named, in the order in which they are there.

    Args:
      wanted: names; all without.
      there: what can be chosen, by name.
      what: what it is called in the message of a ValueError for a name that is not there.
    """
    for name in wanted:
        if name not in there:
            raise ValueError(f"unknown {what} {name!r}; expected some of {', '.join(there)}")
    if not wanted:
        return list(there.values())
    return [value for name, value in there.items() if name in wanted]


def command(module: str, arguments: list[str] | None) -> str:
    """Return what to type to run ``module`` with these arguments; None: those of this process."""
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", module, *given])


def merge(previous: dict[str, Any], result: dict[str, Any], key: str, order: Sequence[str]) -> dict[str, Any]:
    """Return ``result`` with those entries at ``key`` that only ``previous`` has, in ``order``.

    Ratios are of times from one machine: ValueError if the two were made on different ones, with other versions or
    with other settings.
    """
    if previous["machine"] != result["machine"]:
        raise ValueError(
            f"cannot merge results of different machines: {previous['machine']!r} and {result['machine']!r}"
        )
    for name in ("preset", "threads", "repetitions"):
        before, now = previous["settings"][name], result["settings"][name]
        if before != now:
            raise ValueError(f"cannot merge: the earlier part was made with {name} {before!r}, this one with {now!r}")

    # What was measured again counts as it is now.
    measured = previous[key] | result[key]
    entries = {name: measured[name] for name in order if name in measured}
    return result | {
        key: entries,
        "settings": result["settings"] | {key: list(entries)},
        "missing": previous["missing"] | result["missing"],
        "load_average_before": previous["load_average_before"],
        "total_seconds": previous["total_seconds"] + result["total_seconds"],
        "command": f"{previous['command']}; {result['command']}",
    }


def write_json(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the result whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, json.dumps(result, indent=1, allow_nan=False) + "\n")


def write_with_tables(result: dict[str, Any], path: pathlib.Path, tables: str) -> None:
    """Write the JSON at ``path``, and the tables beside it; print the tables, too."""
    write_json(result, path)
    _write(path.with_suffix(".md"), tables)
    print(tables)


def write(
    result: dict[str, Any],
    path: pathlib.Path,
    markdown: Callable[[dict[str, Any]], str],
    draw: Callable[[dict[str, Any], pathlib.Path], None],
) -> None:
    """Write the JSON at ``path``, the tables and (with matplotlib) the picture beside it; print the tables, too."""
    write_with_tables(result, path, markdown(result))
    try:
        draw(result, path.with_suffix(".png"))
    except ImportError as missing:
        print(f"no picture: {missing}")


def _write(path: pathlib.Path, content: str) -> None:
    from gdpjax.sweeps.records import write_atomically  # it imports JAX, which waits until the cores are chosen

    write_atomically(path, content)


@contextlib.contextmanager
def picture(path: pathlib.Path, *shape: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield matplotlib's (figure, axes) in the style of all pictures here, saved at the end; ImportError without it."""
    import matplotlib  # noqa: F401

    from gdpjax.plotting.style import figure

    with figure(*shape, path=path, **options) as parts:
        yield parts


def document(title: str, paragraphs: list[str], sections: list[tuple[str, str]]) -> str:
    """Return a page of Markdown; a section without a body is left out."""
    parts = [f"# {title}", *paragraphs]
    parts += [f"## {name}\n\n{body}" for name, body in sections if body]
    return "\n\n".join(parts) + "\n"


def setting(result: dict[str, Any]) -> str:
    """Return machine, versions, load and command, in one paragraph."""
    machine = result["machine"]
    settings = result["settings"]
    versions = [f"{name} {version}" for name, version in machine["versions"].items() if version]
    parts = [
        f"{machine['cpu']}, {machine['cpu_cores_used']} core(s), {settings['threads']} thread(s)",
        machine["device"],
        ", ".join(versions),
        f"load average {result['load_average_before']} before, {result['load_average_after']} after",
        f"{settings['repetitions']} rounds",
        f"{result['total_seconds']:.0f} s in all",
    ]
    return f"{'; '.join(parts)}. Made by `{result['command']}`."


def at_most(target: float, measured: float, **beside: str) -> dict[str, Any]:
    """Return a target that is met by what is no larger; ``beside`` names whose number it is compared with."""
    return {
        "target": target,
        "measured": measured,
        "at_least": False,
        "met": bool(measured <= target),
        **beside,
    }


def at_least(target: float, measured: float, **beside: str) -> dict[str, Any]:
    """Return a target that is met by what is no smaller."""
    return {
        "target": target,
        "measured": measured,
        "at_least": True,
        "met": bool(measured >= target),
        **beside,
    }


def targets_table(targets: dict[str, dict[str, Any]], heading: str) -> str:
    """Return what was aimed at beside what was measured; "" without targets."""
    if not targets:
        return ""
    rows = []
    for name, numbers in targets.items():
        sign = ">=" if numbers["at_least"] else "<="
        wanted = f"{sign} {numbers['target']:g}"
        met = "met" if numbers["met"] else "MISSED"
        rows.append((name, wanted, numbers["measured"], numbers.get("beside"), met))
    columns = (heading, "wanted", "measured", "beside", "met")
    return table(columns, rows)


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds: three digits, and all of the whole ones from a second on."""
    if seconds < 1:
        return f"{1e3 * seconds:,.3g}"
    return f"{1e3 * seconds:,.0f}"


def quartiles(seconds: dict[str, Any]) -> str:
    """Return the quartiles that `turns.spread` gave, in milliseconds."""
    first = milliseconds(seconds["q1"])
    third = milliseconds(seconds["q3"])
    return f"{first} to {third}"


def bullets(reasons: dict[str, str]) -> str:
    """Return names and reasons as a list in Markdown."""
    return "\n".join(f"- {name}: {reason}" for name, reason in reasons.items())
