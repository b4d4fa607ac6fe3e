"""The cost of one step's noise: `privatize` with each kind of correlated noise, beside independent noise.

Every contender adds its noise to a sum that is there, over and over, with its state donated as a training loop does, so
that buffers are written in place. The peer's are jax_privacy's privatizers with the same coefficients: its banded
matrix by `toeplitz.inverse_as_streaming_matrix`, its BLT in float32, and, for what draws noise again, a dense matrix
whose rows have p entries, of which it draws only those.
"""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import turns
from benchmarks.harness import at_most
from gdpjax import Sensitivity, privatize
from gdpjax.correlated import (
    AbstractNoiseStrategy,
    BandedInverse,
    BufferedToeplitz,
    MinSep,
    bisr,
    lambda_cgd,
    optimize_banded_toeplitz,
)
from gdpjax.sampling import PoissonNumbers, Promised

INDEPENDENT = "gdpjax independent"
PEER_INDEPENDENT = "jax_privacy independent"
NUM_STEPS = 1000
"""Of the run whose noise is added; more are not taken."""
NUM_BANDS = 8
DECAY, SCALE = (0.9989518465560219, 0.9782308989499152, 0.7415551943817767), (0.0449, 0.1211, 0.3108)

# How many times the cost of independent noise a contender may take.
MOST_TIMES = {
    "gdpjax lambda-CGD": 2.0,
    "gdpjax BISR 4, drawn again": 4.0,
    "gdpjax BISR 8, drawn again": 8.0,
    "gdpjax BISR 8, ring buffer": 2.0,
    "gdpjax BandMF 8, ring buffer": 2.0,
}


def strategies() -> dict[str, AbstractNoiseStrategy | None]:
    """Return ours by name, None for independent noise."""
    banded = {}
    for num_bands in (4, 8):
        coefficients = bisr(num_bands).noising_coefficients
        banded[f"gdpjax BISR {num_bands}, drawn again"] = BandedInverse(coefficients, memory="regenerate")
        banded[f"gdpjax BISR {num_bands}, ring buffer"] = BandedInverse(coefficients, memory="buffer")
    return {
        INDEPENDENT: None,
        "gdpjax lambda-CGD": lambda_cgd(0.9),
        **banded,
        "gdpjax BandMF 8, ring buffer": optimize_banded_toeplitz(NUM_STEPS, NUM_BANDS),
        "gdpjax BLT 3": BufferedToeplitz(DECAY, SCALE),
    }


# Which of ours does the same as the peer's.
PEERS = {
    PEER_INDEPENDENT: INDEPENDENT,
    "jax_privacy BISR 4, dense rows": "gdpjax BISR 4, drawn again",
    "jax_privacy BISR 8, dense rows": "gdpjax BISR 8, drawn again",
    "jax_privacy BandMF 8": "gdpjax BandMF 8, ring buffer",
    "jax_privacy BLT 3": "gdpjax BLT 3",
}


def measure(num_coordinates: int, repetitions: int, with_peer: bool) -> dict[str, Any]:
    """Return time and memory of a step's noise by contender, with ratios to independent noise of the same library."""
    entries = []
    for name, strategy in strategies().items():
        entries.append(_entry(name, _ours(strategy), num_coordinates))
    if with_peer:
        for name, transformation in _peers().items():
            entries.append(_entry(name, transformation, num_coordinates))
    turns.take_turns(entries, repetitions)

    by_name = {entry.name: entry for entry in entries}
    results: dict[str, Any] = {}
    for entry in entries:
        base = by_name[PEER_INDEPENDENT if entry.name in PEERS else INDEPENDENT]
        over = entry.over(base)
        results[entry.name] = {
            "over_independent": over["processor"],
            "over_independent_by_the_clock": over["time"],
            "over_independent_by_round": turns.spread(turns.ratios(entry.processor_seconds, base.processor_seconds)),
            **entry.result(),
        }
    return results


def _ours(strategy: AbstractNoiseStrategy | None) -> Any:
    """Return the private transformation with this noise."""
    key = jax.random.key(0)
    if strategy is None:
        return privatize(Sensitivity(1.0), 1.0, PoissonNumbers(0.1, expected_batch_size=10), key)
    return privatize(Sensitivity(1.0), 1.0, Promised(10, NUM_STEPS, MinSep(4, 250)), key, noise=strategy)


def _peers() -> dict[str, Any]:
    """Return jax_privacy's transformations with the same coefficients."""
    noise = importlib.import_module("jax_privacy.noise_addition")
    toeplitz = importlib.import_module("jax_privacy.matrix_factorization.toeplitz")
    buffered = importlib.import_module("jax_privacy.matrix_factorization.buffered_toeplitz")
    key = jax.random.key(0)

    def private(matrix: Any) -> Any:
        return noise.matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=key)

    def banded(num_bands: int) -> Any:
        column = np.zeros(NUM_STEPS)
        column[:num_bands] = bisr(num_bands).noising_coefficients
        lag = np.subtract.outer(np.arange(NUM_STEPS), np.arange(NUM_STEPS))
        rows = np.where(lag >= 0, column[np.abs(lag)], 0.0)
        return private(jnp.asarray(rows, jnp.float32))

    coefficients = jnp.asarray(optimize_banded_toeplitz(NUM_STEPS, NUM_BANDS).coefficients, jnp.float32)
    blt = buffered.BufferedToeplitz.build(DECAY, SCALE, dtype=jnp.float32)
    return {
        PEER_INDEPENDENT: noise.gaussian_privatizer(stddev=1.0, prng_key=key),
        "jax_privacy BISR 4, dense rows": banded(4),
        "jax_privacy BISR 8, dense rows": banded(8),
        "jax_privacy BandMF 8": private(toeplitz.inverse_as_streaming_matrix(coefficients)),
        "jax_privacy BLT 3": private(blt.inverse_as_streaming_matrix()),
    }


def _entry(name: str, transformation: Any, num_coordinates: int) -> turns.Entry:
    """Return a contender that is compiled and has run, with the memory that it needs."""
    total = jnp.zeros(num_coordinates)
    # Parts of a first state may share one array, which could not be donated twice.
    state = jax.tree.map(jnp.copy, transformation.init(total))
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    def step(total: Any, state: Any) -> Any:
        return transformation.update(total, state, total)

    entry, _ = turns.compiled(name, step, total, state, carried=True)
    del entry.facts["flops"]
    entry.facts["state_bytes"] = state_bytes
    return entry


def targets(num_coordinates: int, results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured."""
    found = {}
    for name, most in MOST_TIMES.items():
        quartiles = "{q1:.3g} to {q3:.3g} by round".format(**results[name]["over_independent_by_round"])
        target = at_most(most, results[name]["over_independent"], beside=quartiles)
        found[f"{num_coordinates:,} coordinates: {name} / independent"] = target
    return found
