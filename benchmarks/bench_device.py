"""Run the programs of `bench_accelerators` on the device that is here, in turns, and write what they took.

    python -m benchmarks.bench_device --output benchmarks/results/device_h100.json

The contenders of a case are compiled, and then take turns. Arguments are constants, on which no time depends but that
of bounds, which are not measured here. The file is written after each case; a case that fails is reported in it.
"""

import gc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import harness

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


class Settings(NamedTuple):
    """Settings of a run; a part of the programs is chosen by the beginnings of their names."""

    rounds: int = 15
    threads: int = 64
    programs: Sequence[str] = MEASURED


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield what there is after each case."""
    import jax

    from benchmarks.accelerators.programs import programs
    from benchmarks.accelerators.target import Target

    device = jax.devices()[0]
    target = Target(device.platform, [device])
    wanted = [each for each in programs().values() if each.name.startswith(tuple(settings.programs))]
    figures: dict[str, Any] = {}
    for case, group in itertools.groupby(wanted, lambda program: program.name.rpartition(".")[0]):
        figures |= _figures(list(group), target, settings.rounds)
        harness.say(case)
        yield {"cases": figures}


def _figures(group: list[Any], target: Any, rounds: int) -> dict[str, Any]:
    """Return the figures of the contenders of a case, by their names."""
    from benchmarks import turns

    figures: dict[str, Any] = {}
    entries = []
    for program in group:
        try:
            function, shapes, _ = program.build(target)
            entries.append(turns.compiled(program.name, function, *_made(shapes))[0])
        except Exception as error:
            figures[program.name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    turns.take_turns(entries, rounds)
    for entry in entries:
        figures[entry.name] = {**entry.facts, "median_seconds": entry.median}
    entries.clear()
    gc.collect()
    return figures


def _made(shapes: Any) -> Any:
    """Return arrays of these shapes: keys, zeros, and one hundredths."""
    import jax
    import jax.numpy as jnp

    def made(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape)
        value = 0.01 if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
        return jnp.full(leaf.shape, value, leaf.dtype)

    return jax.tree.map(made, shapes)


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_device",
    what="programs of accounting, noise, clipping, training and language models on the device that is here",
    packages=("gdpjax", "jax", "jaxlib", "optax", "flax", "numpy", "jax_privacy"),
    settings=Settings(),
    measure=measure,
    report="benchmarks.accelerators.device_report",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
