"""Run the programs of `bench_accelerators` on the device that is here, in turns, and write what they took.

    python -m benchmarks.bench_device --output benchmarks/results/device_h100.json

The contenders of a case are compiled, and then take turns. Arguments are constants, on which no time depends but that
of bounds, which are not measured here. The file is written after each case; a case that fails is reported in it.
"""

import argparse
import gc
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import harness, turns
from benchmarks.accelerators import device_report
from benchmarks.accelerators.programs import Program, programs
from benchmarks.accelerators.target import Target
from benchmarks.machine import describe
from experiments.tables import write_json

PACKAGES = ("gdpjax", "jax", "jaxlib", "optax", "flax", "numpy", "jax_privacy")
ROUNDS = 15
MEASURED = (
    "noise.2M",
    "noise.1B float32",
    "noise.MLP's leaves and Adam.",
    "accounting.",
    "clipped.",
    "step.",
    "language.",
)
"""The beginnings of the names of what is measured."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run the programs on the device that is here.")
    parser.add_argument("--output", type=Path, required=True, help="the file of results; its page lies beside it")
    options = parser.parse_args(arguments)

    device = jax.devices()[0]
    target = Target(device.platform, [device])
    results = {
        "command": harness.command("benchmarks.bench_device", arguments),
        "machine": describe(PACKAGES),
        "cases": {},
    }
    wanted = [each for each in programs().values() if each.name.startswith(MEASURED)]
    for _, group in itertools.groupby(wanted, lambda program: program.name.rpartition(".")[0]):
        results["cases"].update(_figures(list(group), target))
        write_json(options.output, results)
    harness.write(results, options.output, device_report)


def _figures(group: list[Program], target: Target) -> dict[str, Any]:
    """Return the figures of the contenders of a case, by their names."""
    figures: dict[str, Any] = {}
    entries = []
    for program in group:
        try:
            function, shapes, _ = program.build(target)
            entries.append(turns.compiled(program.name, function, *_made(shapes))[0])
        except Exception as error:
            figures[program.name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    turns.take_turns(entries, ROUNDS)
    for entry in entries:
        figures[entry.name] = {**entry.facts, "median_seconds": entry.median}
        print(json.dumps({"name": entry.name, **figures[entry.name]}), flush=True)
    entries.clear()
    gc.collect()
    return figures


def _made(shapes: Any) -> Any:
    """Return arrays of these shapes: keys, zeros, and one hundredths."""

    def made(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape)
        value = 0.01 if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
        return jnp.full(leaf.shape, value, leaf.dtype)

    return jax.tree.map(made, shapes)


if __name__ == "__main__":
    main()
