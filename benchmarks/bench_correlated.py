"""Correlated noise: the error of each family, what a step's noise takes beside independent noise, and the optimisers.

    python -m benchmarks.bench_correlated --output benchmarks/results/correlated_cpu.json

writes the JSON, and tables beside it; ``--quick`` makes everything small. The peer is jax_privacy (the
``benchmarks-clipping`` extra); without it our figures stand alone.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import harness, machine

SIZES, QUICK_SIZES = (2_000_000, 40_000_000), (20_000,)


class Settings(NamedTuple):
    """Settings of a run; without ``peer`` jax_privacy is left out."""

    quick: bool = False
    threads: int = 1
    repetitions: int = 7
    peer: bool = True


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once."""
    from benchmarks.correlated import costs, errors, optimizers

    reason = machine.why_missing("jax_privacy") if settings.peer else "left out"
    measured_errors = []
    for promise in errors.QUICK if settings.quick else errors.PROMISES:
        measured_errors.append({"promise": dataclasses.asdict(promise), "families": errors.measure(promise)})
        harness.say(f"errors of {promise}")
    records = optimizers.recorded()
    optimized = [
        optimizers.measure(row) for row in ((records[0], records[13], records[-3]) if settings.quick else records)
    ]
    harness.say("optimisers")
    measured_costs = {}
    for size in QUICK_SIZES if settings.quick else SIZES:
        measured_costs[str(size)] = costs.measure(size, settings.repetitions, with_peer=reason is None)
        harness.say(f"noise of {size:,} coordinates")
    yield {
        "missing": {} if reason is None else {"jax_privacy": reason},
        "errors": measured_errors,
        "costs": measured_costs,
        "peers": costs.PEERS,
        "optimizers": optimized,
    }


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_correlated",
    what="correlated noise: errors by family, the cost of a step's noise, and optimisers",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "scipy", "optax", "jax-privacy"),
    settings=Settings(),
    measure=measure,
    report="benchmarks.correlated.report",
    keeps_memory=True,
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
