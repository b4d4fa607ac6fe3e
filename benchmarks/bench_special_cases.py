"""The special cases of the gradient engine, with and without each: what a case does not pay for is not worth its code.

    python -m benchmarks.bench_special_cases --output FILE
    python -m benchmarks.bench_special_cases --target tpu --libtpu build/libtpu --output FILE

The first command times them on this machine, in turns; the second compiles for a device that is not there (``tpu`` or
``gpu``), whose figures are counts of its compiler. What a file of results has for other targets and cases is kept.
"""

import argparse
import contextlib
import json
import pathlib
import sys
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import harness, machine
from experiments.tables import document, named, table_of, write_json

PLAIN, WITH, WITHOUT = "no privacy", "with", "without"
PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy")
FIGURES = {
    "median_seconds": ("ms", "milli"),
    "temp_bytes": ("MiB", "MiB"),
    "temp": ("MiB", "MiB"),
    "bytes": ("MiB moved", "MiB"),
}
"""For each figure its title and its unit."""
TITLES = {"here": "CPU, one core", "gpu": "H100, by its compiler", "tpu": "TPU v5e, by its compiler"}


class Special(NamedTuple):
    """A special case of the engine on one model.

    Attributes:
      case: the name of the special case.
      model: the name of the model.
      patches: what is replaced to be without it: (path, value).
    """

    case: str
    model: str
    patches: tuple[tuple[str, Any], ...]


RECOMMENDER = "recommender of the paper, B=10,000"
_FORMS = "gdpjax.clipping._forms."
_PRIMITIVES = "gdpjax.clipping._tracing.primitives."
_NO_EXACT = ((_FORMS + "_table.is_exact", lambda *args: False),)
_NO_FAST = (
    (_PRIMITIVES + "_fast_convolution.is_rewritten", lambda eqn: False),
    (_PRIMITIVES + "_linear.Convolution.is_site", lambda self, eqn, operand: False),
)

SPECIALS = (
    Special("exact table sums", "imdb", _NO_EXACT),
    Special("exact table sums", RECOMMENDER, _NO_EXACT),
    Special("fast convolutions", "cnn", _NO_FAST),
    Special("fast convolutions", "resnet", _NO_FAST),
)


def _model(name: str) -> Any:
    """Return (loss, clip norm, parameters and batch as NumPy arrays) of a model of `SPECIALS`."""
    import jax
    import numpy as np

    from benchmarks.clipping import cases
    from experiments import models

    if name != RECOMMENDER:
        case = next(case for case in cases.CPU if case.name == name)
        return case.model.loss, case.clip_norm, case.data()

    # Users, movies and grades of MovieLens-1M's size.
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(6_040, size=10_000), rng.integers(3_706, size=10_000)], 1).astype(np.int32)
    labels = rng.integers(5, size=10_000, dtype=np.int32)
    network = models.build("paper_recommender", 5)
    params = network.init(jax.random.key(0), pairs[0])["params"]
    return models.example_loss(network), 5.0, (jax.tree.map(np.asarray, params), pairs, labels)


def _functions(special: Special) -> Any:
    """Return the functions by name, and their arguments."""
    from benchmarks.clipping.cases import AUTO, NO_PRIVACY
    from benchmarks.clipping.contenders import CONTENDERS

    loss, clip_norm, data = _model(special.model)
    builds: dict[str, Any] = {contender.name: contender.build for contender in CONTENDERS}

    def without(*arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for path, value in special.patches:
                stack.enter_context(mock.patch(path, value))
            return builds[AUTO](loss, clip_norm, None)(*arguments)

    plain, ours = (builds[name](loss, clip_norm, None) for name in (NO_PRIVACY, AUTO))
    return {PLAIN: plain, WITH: ours, WITHOUT: without}, data


def timed(special: Special, repetitions: int) -> dict[str, Any]:
    """Return the figures of a special case on this machine."""
    import jax

    from benchmarks import turns

    functions, data = _functions(special)
    data = jax.device_put(data)
    entries = [turns.compiled(name, function, *data)[0] for name, function in functions.items()]
    turns.take_turns(entries, repetitions)
    return {entry.name: {**entry.facts, "median_seconds": entry.median} for entry in entries}


def compiled(special: Special, target: Any) -> dict[str, Any]:
    """Return the figures of the compiler of a device that is not there."""
    import jax

    functions, data = _functions(special)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    return {name: target.compile(function, shapes) for name, function in functions.items() if name != PLAIN}


def markdown(results: dict[str, Any]) -> str:
    """Return the page of results."""
    sections = []
    for target, of_target in results["devices"].items():
        columns = "case | name\ncommit | commit\n"
        rows = [at | {"commit": of_target["commits"].get(at["name"], "")} for at in named(of_target["cases"])]
        for key, (title, unit) in FIGURES.items():
            if not any(key in row[WITH] for row in rows):
                continue
            columns += f"{title} with | {WITH}.{key} | {unit}\nwithout | {WITHOUT}.{key} | {unit}\nx | {key}\n"
            for row in rows:
                first, second = row[WITH].get(key), row[WITHOUT].get(key)
                row[key] = second / first if first else None
        sections.append((TITLES[target], f"`{of_target['command']}`\n\n{table_of(columns, rows)}"))
    lead = (
        "x is the figure without the special case over that with it. A case is kept for 1.3 in time or 2 in memory on "
        "a model that people train. Rows with a commit were measured there, by this script as the commit after it has "
        "it. Exact table sums and fast convolutions are kept, and measured by this script still. The others are gone, "
        "and their gradients formed: shared terms and derivative rules pay on models that were made up for the "
        "purpose, and tied tables and position products nowhere in time, and in the memory of a TPU alone."
    )
    return document("Special cases of the gradient engine, with and without", [lead], sections)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the file of results; its page beside it")
    parser.add_argument("--target", choices=("here", "tpu", "gpu"), default="here")
    parser.add_argument("--libtpu", type=pathlib.Path, help="the folder of the wheel of TPUs")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args(arguments)

    target = None
    if options.target == "here":
        machine.use_cores(1)
    else:
        from benchmarks.accelerators.target import describe

        target = describe(options.target, options.libtpu)
    path = options.output
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"devices": {}}
    of_target = results["devices"].setdefault(options.target, {"cases": {}, "commits": {}})
    of_target["command"] = harness.command("benchmarks.bench_special_cases", arguments)
    of_target["machine"] = machine.describe(PACKAGES)
    for special in SPECIALS:
        name = f"{special.case}: {special.model}"
        here = options.target == "here"
        figures = timed(special, options.repetitions) if here else compiled(special, target)
        of_target["cases"][name] = figures
        of_target["commits"].pop(name, None)
        print(json.dumps({"name": name, **figures}), flush=True)
        results["command"] = "; ".join(each["command"] for each in results["devices"].values())
        write_json(path, results)
    harness.write(results, path, sys.modules[__name__])


if __name__ == "__main__":
    main()
