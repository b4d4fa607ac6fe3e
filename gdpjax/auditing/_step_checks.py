"""Check this installation's private step against everything that is known about what it should release.

The worst cases of `_worst_cases` ask what an attacker gains. Here the step runs on data whose clipped sum is known, so
the released numbers must have a known law, and each check tests one part of it. With s the known sum,

    z = (released * expected batch size - s) / (noise multiplier * C)

is standard normal, independent over steps, runs and coordinates; the batches are Poisson samples; and the ledger holds
the steps that were made.

* ``noise size``: the sum of squares of z, over everything, for each step of a run and for each coordinate.
* ``noise shape``: the distribution of z, and of its length in each step.
* ``noise range``: the largest z, and the shortest and the longest step: a tail that is cut off, a step without noise.
* ``noise tail``: the same, with counts of large values, for 2^16 draws a run in a large leaf, so that a cut far
  out shows, too.
* ``noise repeated``: correlations between steps, between coordinates and between runs.
* ``sum: ...``: the mean of the released sums, with hardly any noise: what was clipped, left out or masked wrongly.
* ``sampling``: how often each example was in a batch, alone, with another one and twice in a row, as the sums show it.
* ``ledger``: that the ledger in the final state holds the steps, the noise and the sampling probability.

Each check has an exact p-value (`gdpjax.auditing._p_values`), so that the probability of a false alarm is known.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.types import Array
from gdpjax.auditing import _worst_cases
from gdpjax.auditing._p_values import (
    bonferroni,
    cdf_p_value,
    correlation_p_value,
    count_p_value,
    mean_p_value,
    range_p_value,
    variance_p_value,
)
from gdpjax.auditing._worst_cases import CLIP_NORM, NUM_COORDINATES
from gdpjax.clipping import Sensitivity
from gdpjax.ledger import Event, ledger_of
from gdpjax.sampling import PoissonNumbers

_NUM_STEPS = 20
_CHUNK = 256
_LITTLE_NOISE = 2.0**-7
_SAMPLING_PROB = 0.25
_TOLERANCE = 1e-3
"""Rows are clipped a little below C, by the allowance for rounding, which is far below this part of C."""

_LEAF = 2**20
_DRAWS_PER_RELEASE = 2**16
_THRESHOLDS = np.arange(6.0)

# Three unit vectors at right angles, float32[3, coordinates], each in all of both leaves.
_SIGNS = [np.ones(NUM_COORDINATES), np.tile([1, 1, -1, -1], 3), np.tile([1, -1, 1, -1], 3)]
_DIRECTIONS = (np.stack(_SIGNS) / np.sqrt(NUM_COORDINATES)).astype(np.float32)


class StepCheck(NamedTuple):
    """One check of the step.

    Attributes:
      p_value: at most x with probability at most x for a sound step.
      statement: what was compared.
    """

    p_value: float
    statement: str


class _Setting(NamedTuple):
    """Three examples with known gradients, and the mechanism that they go through.

    Attributes:
      gradients: float32[3, coordinates].
      is_masked: bool[3], examples that must not count in any batch.
      noise_multiplier, sampling_prob: of the mechanism.
    """

    gradients: np.ndarray
    is_masked: np.ndarray
    noise_multiplier: float = _LITTLE_NOISE
    sampling_prob: float = 1.0

    def known_sum(self) -> np.ndarray:
        """Return the sum of the clipped gradients, float64[coordinates]: what is masked or not finite counts zero."""
        is_counted = np.isfinite(self.gradients).all(axis=1) & ~self.is_masked
        rows = self.gradients[is_counted].astype(np.float64)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows * (CLIP_NORM / np.maximum(norms, CLIP_NORM))).sum(axis=0)


def step_checks(key: Array, num_releases: int) -> dict[str, StepCheck]:
    """Check what the private step of this installation releases against its known law.

    Args:
        key: one PRNG key.
        num_releases: the number of runs, of 20 steps each, that are looked at.

    Returns:
        every check by name, with a `p_value` that is at most x with probability at most x for a sound step, and a
        `statement` of what was compared. `audit_installation` gives the verdicts.
    """
    settings = _settings()
    tail_key, *keys = jax.random.split(key, 1 + len(settings))
    run_chunk = _compiled_runs()
    sums, states = {}, {}
    for run_key, (name, setting) in zip(keys, settings.items(), strict=True):
        num_runs = num_releases if name in ("noise", "sampling") else _CHUNK
        sums[name], states[name] = _make_runs(run_chunk, setting, run_key, num_runs)

    checks = noise_checks((sums["noise"] - settings["noise"].known_sum()) / CLIP_NORM)
    checks["noise tail"] = _tail_check(tail_key, num_releases)
    for name, setting in settings.items():
        if name.startswith("sum: "):
            checks[name] = _sum_check(sums[name] - setting.known_sum())

    # The batches, seen through sums of examples at right angles.
    is_in = sums["sampling"] @ _DIRECTIONS.T / CLIP_NORM > 0.5
    checks["sampling"] = sampling_check(is_in, _SAMPLING_PROB)
    checks["ledger"] = _ledger_check(settings, states)
    return checks


def _settings() -> dict[str, _Setting]:
    """Return the data of all runs; the clipped sum of each "sum: " shows one kind of mistake."""
    first, second, third = _DIRECTIONS
    nobody, last = np.zeros(3, bool), np.array([False, False, True])

    def setting(*rows: np.ndarray, is_masked: np.ndarray = nobody) -> _Setting:
        return _Setting(np.stack(rows).astype(np.float32), is_masked)

    small = setting(0.3 * first, 0.5 * second, 0.9 * third)
    return {
        "noise": small._replace(noise_multiplier=1.0),
        "sum: small": small,
        "sum: large": setting(1e4 * first, 3 * second, 0.5 * third),
        "sum: opposed": setting(-10 * first, 20 * first, 20 * second),
        "sum: overflowing": setting(1e30 * first, 0.5 * second, -1e30 * third),
        "sum: missing": setting(0.3 * first, 0.5 * second, np.nan * third),
        "sum: masked": setting(0.3 * first, 0.5 * second, 1e4 * third, is_masked=last),
        "sum: masked, missing": setting(0.3 * first, 0.5 * second, np.nan * third, is_masked=last),
        "sampling": setting(*(CLIP_NORM * _DIRECTIONS))._replace(sampling_prob=_SAMPLING_PROB),
    }


def _compiled_runs() -> Any:
    """Return the compiled program: a chunk of runs of one setting, given as arrays, one for each key."""
    steps = _worst_cases.linear_steps()

    @jax.jit
    def run_chunk(setting: _Setting, keys: Array) -> tuple[Array, Any]:
        # The same examples in every step.
        gradients = jnp.broadcast_to(setting.gradients, (_NUM_STEPS, *setting.gradients.shape))

        def run_once(key: Array) -> tuple[Array, Any]:
            updates, state = steps(gradients, *setting[1:], key)
            leaves = [leaf.reshape(_NUM_STEPS, -1) for leaf in jax.tree.leaves(updates)]
            return jnp.concatenate(leaves, axis=1), state

        return jax.vmap(run_once)(keys)

    return run_chunk


def _make_runs(run_chunk: Any, setting: _Setting, key: Array, num_runs: int) -> tuple[np.ndarray, Any]:
    """Return the noisy sums of runs, float64[runs, steps, coordinates], and their final states."""
    # As arrays, so that all settings share one compiled program.
    noise_multiplier, sampling_prob = np.asarray(setting[2:], np.float32)
    arrays = setting._replace(noise_multiplier=noise_multiplier, sampling_prob=sampling_prob)
    num_chunks = -(-num_runs // _CHUNK)
    keys = jax.random.split(key, num_chunks * _CHUNK).reshape(num_chunks, _CHUNK)
    chunks = [run_chunk(arrays, chunk_keys) for chunk_keys in keys]

    # Join the chunks, without the runs beyond the last that was asked for.
    released, state = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_runs], *chunks)
    expected_batch_size = setting.sampling_prob * len(setting.gradients)
    return released.astype(np.float64) * expected_batch_size, state


def noise_checks(z: np.ndarray) -> dict[str, StepCheck]:
    """Return the checks of noise that should be standard normal, float64[runs, steps, coordinates]."""
    num_runs, num_steps, num_coordinates = z.shape
    squares = z**2

    # Of the sums of squares half of the error goes to everything, which sees the smallest changes.
    everything = variance_p_value(squares.sum(), squares.size)
    each_step = variance_p_value(squares.sum(axis=(0, 2)), num_runs * num_coordinates)
    each_coordinate = variance_p_value(squares.sum(axis=(0, 1)), num_runs * num_steps)
    size = bonferroni([float(everything), bonferroni(np.concatenate([each_step, each_coordinate]))])

    # Squared lengths of steps and of runs are chi-square distributed; as normal scores they are tested like the draws.
    step_probabilities = scipy.special.gammainc(num_coordinates / 2, squares.sum(axis=2) / 2)
    run_probabilities = scipy.special.gammainc(num_steps * num_coordinates / 2, squares.sum(axis=(1, 2)) / 2)
    step_scores = scipy.special.ndtri(step_probabilities)
    laws = [scipy.special.ndtr(z), step_probabilities, run_probabilities]

    # The runs 2i and 2i + 1 are pairs; an odd run at the end has no partner.
    pairs = z[: num_runs // 2 * 2].reshape(num_runs // 2, 2, -1)
    columns = [
        z.swapaxes(1, 2).reshape(-1, num_steps),
        z.reshape(-1, num_coordinates),
        pairs.swapaxes(1, 2).reshape(-1, 2),
    ]
    stddev = np.sqrt(squares.mean())
    return {
        "noise size": StepCheck(size, f"{stddev:.4f} times the claimed stddev"),
        "noise shape": StepCheck(bonferroni([cdf_p_value(law) for law in laws]), "draws and lengths are normal"),
        "noise range": StepCheck(
            bonferroni([range_p_value(x.min(), x.max(), x.size) for x in (z, step_scores)]),
            f"values from {z.min():.2f} to {z.max():.2f}",
        ),
        "noise repeated": StepCheck(
            bonferroni([correlation_p_value(some) for some in columns]), "steps, coordinates, runs: independent"
        ),
    }


def _tail_check(key: Array, num_releases: int) -> StepCheck:
    """Check the noise of one large leaf; its summaries are made where the noise is."""
    zeros = jnp.zeros(_LEAF, jnp.float32)

    def summary(key: Array) -> tuple[Array, Array, Array]:
        batches = PoissonNumbers(1.0, expected_batch_size=1)
        tx = _worst_cases.privatize(Sensitivity(CLIP_NORM), noise_multiplier=1.0, batches=batches, key=key)
        released, _ = tx.update(zeros, tx.init(zeros), zeros)
        z = jnp.asarray(released) / CLIP_NORM
        num_beyond = [(side * z > threshold).sum() for side in (-1, 1) for threshold in _THRESHOLDS]
        return z.min(), z.max(), jnp.stack(num_beyond)

    num_keys = -(-num_releases * _DRAWS_PER_RELEASE // _LEAF)
    num_draws = num_keys * _LEAF
    summaries = jax.jit(lambda keys: jax.lax.map(summary, keys))(jax.random.split(key, num_keys))
    smallest, largest, num_beyond = (np.asarray(summary) for summary in summaries)
    lowest, highest = float(smallest.min()), float(largest.max())

    # Half of the error goes to the range, half to the counts below and above.
    counts = num_beyond.astype(np.int64).sum(axis=0).reshape(2, -1)
    of_counts = bonferroni(count_p_value(counts, num_draws, scipy.special.ndtr(-_THRESHOLDS)))
    of_range = range_p_value(lowest, highest, num_draws)
    return StepCheck(bonferroni([of_range, of_counts]), f"from {lowest:.2f} to {highest:.2f} in {num_draws:.2g} draws")


def _sum_check(noise: np.ndarray) -> StepCheck:
    """Check that the rest beside the known sum, float64[runs, steps, coordinates], has mean zero."""
    rows = noise.reshape(-1, NUM_COORDINATES)
    mean = rows.mean(axis=0)
    p_value = mean_p_value(mean, _LITTLE_NOISE * CLIP_NORM, len(rows), _TOLERANCE * CLIP_NORM)
    distance = np.linalg.norm(mean) / CLIP_NORM
    return StepCheck(p_value, f"off by {distance:.4f} C, at most {_TOLERANCE:g} C")


def sampling_check(is_in: np.ndarray, sampling_prob: float) -> StepCheck:
    """Check who was in the batches, bool[runs, steps, examples]."""
    num_batches = is_in.shape[0] * is_in.shape[1]

    # Count each example alone, with another one in the same batch, and in the batches 2t and 2t + 1 of a run.
    alone = is_in.sum(axis=(0, 1))
    together = (is_in & np.roll(is_in, 1, axis=2)).sum(axis=(0, 1))
    in_a_row = (is_in[:, 0::2] & is_in[:, 1::2]).sum(axis=(0, 1))
    p_values = [
        count_p_value(alone, num_batches, sampling_prob),
        count_p_value(together, num_batches, sampling_prob**2),
        count_p_value(in_a_row, num_batches // 2, sampling_prob**2),
    ]
    statement = f"probability {is_in.mean():.4f}, claimed {sampling_prob:g}"
    return StepCheck(bonferroni(np.concatenate(p_values)), statement)


def _ledger_check(settings: dict[str, _Setting], states: dict[str, Any]) -> StepCheck:
    """Check the ledgers in the final states. Nothing is random here: the p-value is 0 or 1."""
    for name, setting in settings.items():
        events = list(ledger_of(jax.tree.map(lambda leaf: leaf[0], states[name])).events)
        expected = [Event(setting.noise_multiplier, setting.sampling_prob, _NUM_STEPS)]
        if events != expected:
            return StepCheck(0.0, f"{events} instead of {expected}")
        if not all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(states[name].ledger)):
            return StepCheck(0.0, "runs of the same steps have different ledgers")
    return StepCheck(1.0, f"has the {_NUM_STEPS} steps that were made")
