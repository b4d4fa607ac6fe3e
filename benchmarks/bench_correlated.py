"""Correlated noise: the error of each family, what a step's noise takes beside independent noise, and the optimisers.

    python -m benchmarks.bench_correlated --output benchmarks/results/correlated_cpu.json

writes the JSON, and tables beside it; ``--quick`` makes everything small. The peer is jax_privacy (the
``benchmarks-clipping`` extra); without it our figures stand alone.
"""

import argparse
import pathlib
import sys
import time
from typing import Any, NamedTuple

from benchmarks import machine, writing

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "scipy", "optax", "jax-privacy")
SIZES, QUICK_SIZES = (2_000_000, 40_000_000), (20_000,)


class Settings(NamedTuple):
    """Settings of a run; without ``peer`` jax_privacy is left out."""

    quick: bool = False
    threads: int = 1
    repetitions: int = 7
    peer: bool = True


def run(settings: Settings) -> dict[str, Any]:
    """Run the whole benchmark. JAX is imported here, after the cores are chosen."""
    from benchmarks.clipping.contenders import why_missing
    from benchmarks.correlated import costs, errors, optimizers

    start, load_before = time.perf_counter(), machine.load_average()
    reason = why_missing("jax_privacy") if settings.peer else "left out"

    measured_errors = []
    for promise in errors.QUICK if settings.quick else errors.PROMISES:
        measured_errors.append({"promise": promise._asdict(), "families": errors.measure(promise)})
        _say(f"errors of {promise}")
    recorded = optimizers.QUICK if settings.quick else optimizers.RECORDED
    optimized = [optimizers.measure(row) for row in recorded]
    _say("optimisers")

    targets: dict[str, dict[str, Any]] = {}
    measured_costs = {}
    for size in QUICK_SIZES if settings.quick else SIZES:
        measured_costs[str(size)] = costs.measure(size, settings.repetitions, with_peer=reason is None)
        targets |= costs.targets(size, measured_costs[str(size)])
        _say(f"noise of {size:,} coordinates")
    targets |= optimizers.targets(optimized)

    return {
        "what": "correlated noise: errors by family, the cost of a step's noise, and optimisers",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "missing": {} if reason is None else {"jax_privacy": reason},
        "load_average_before": load_before,
        "load_average_after": machine.load_average(),
        "total_seconds": time.perf_counter() - start,
        "errors": measured_errors,
        "costs": measured_costs,
        "peers": costs.PEERS,
        "optimizers": optimized,
        "targets": targets,
    }


def _say(done: str) -> None:
    print(f"done: {done}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON and the tables beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; tables go beside it")
    defaults = Settings()
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="cores and threads")
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="without jax_privacy")
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    machine.use_cores(options["threads"])
    made_by = {
        "command": writing.command("benchmarks.bench_correlated", arguments),
        "memory_kept": machine.keep_memory(),
    }
    from benchmarks.correlated import report

    result = run(Settings(**options)) | made_by
    writing.write_with_tables(result, output, report.markdown(result))


if __name__ == "__main__":
    main()
