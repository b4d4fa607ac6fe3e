"""What every benchmark's command line shares: names that were chosen, and the JSON, tables and picture it writes."""

import contextlib
import json
import pathlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.tables import table


def chosen(wanted: Sequence[str], there: dict[str, Any], what: str) -> list[Any]:
    """Those of ``there`` that are named, in its order; all without names. ValueError for a name that is not there."""
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise ValueError(f"unknown {what} {unknown[0]!r}; expected some of {', '.join(there)}")
    return [each for name, each in there.items() if not wanted or name in wanted]


def command(module: str, arguments: list[str] | None) -> str:
    """What to type to run ``module`` with these arguments; None: those of this process."""
    return shlex.join(["python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)])


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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def write(
    result: dict[str, Any],
    path: pathlib.Path,
    markdown: Callable[[dict[str, Any]], str],
    draw: Callable[[dict[str, Any], pathlib.Path], None],
) -> None:
    """The JSON at ``path``, the tables and (with matplotlib) the picture beside it; the tables are printed, too."""
    write_json(result, path)
    tables = markdown(result)
    path.with_suffix(".md").write_text(tables)
    try:
        draw(result, path.with_suffix(".png"))
    except ImportError as missing:
        print(f"no picture: {missing}")
    print(tables)


@contextlib.contextmanager
def picture(path: pathlib.Path, *shape: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """matplotlib's (figure, axes) in the style of all pictures here, saved at the end; ImportError without it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(*shape, layout="constrained", **options)
        yield figure, axes
        figure.savefig(path, dpi=200)
        plt.close(figure)


def document(title: str, paragraphs: list[str], sections: list[tuple[str, str]]) -> str:
    """Markdown; a section without a body is left out."""
    parts = [f"# {title}", *paragraphs, *(f"## {name}\n\n{body}" for name, body in sections if body)]
    return "\n\n".join(parts) + "\n"


def setting(result: dict[str, Any]) -> str:
    """Machine, versions, load and command, in one paragraph."""
    machine, settings = result["machine"], result["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    return (
        f"{machine['cpu']}, {machine['cpu_cores_used']} core(s), {settings['threads']} thread(s); {machine['device']}; "
        f"{versions}; load average {result['load_average_before']} before, {result['load_average_after']} after; "
        f"{settings['repetitions']} rounds; {result['total_seconds']:.0f} s in all. Made by `{result['command']}`."
    )


def targets_table(targets: dict[str, dict[str, Any]], heading: str) -> str:
    """What was aimed at beside what was measured; "" without targets."""
    rows = [
        (
            name,
            f"{'>=' if at['at_least'] else '<='} {at['target']:g}",
            at["measured"],
            at.get("beside"),
            "met" if at["met"] else "MISSED",
        )
        for name, at in targets.items()
    ]
    return table((heading, "wanted", "measured", "beside", "met"), rows) if rows else ""


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def quartiles(seconds: dict[str, Any]) -> str:
    """Of what `turns.spread` gave, in milliseconds."""
    return f"{milliseconds(seconds['q1'])} to {milliseconds(seconds['q3'])}"


def bullets(reasons: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {reason}" for name, reason in reasons.items())
