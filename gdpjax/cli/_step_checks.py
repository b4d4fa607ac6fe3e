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

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.types import Array
from gdpjax.auditing import _p_values
from gdpjax.cli import _worst_cases
from gdpjax.cli._worst_cases import CLIP_NORM, NUM_COORDINATES
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
_THRESHOLDS = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], np.float32)


class StepCheck(NamedTuple):
    """One check of the step.

    Attributes:
      p_value: at most x with probability at most x for a sound step.
      statement: what was compared, in words.
    """

    p_value: float
    statement: str


class Setting(NamedTuple):
    """Three examples with known gradients, and the mechanism that they go through.

    Attributes:
      gradients: float32[3, coordinates].
      is_masked: bool[3], examples that must not count in any batch.
      noise_multiplier, sampling_prob: of the mechanism.
    """

    gradients: np.ndarray
    is_masked: np.ndarray
    noise_multiplier: float = 1.0
    sampling_prob: float = 1.0


class Runs(NamedTuple):
    """The results of n runs of `_NUM_STEPS` steps.

    Attributes:
      sums: float64[n, steps, coordinates], the noisy sums.
      state: the final optimizer states, with a leading axis of n.
    """

    sums: np.ndarray
    state: Any


def step_checks(key: Array, num_releases: int) -> dict[str, StepCheck]:
    """Return every check by name, from ``num_releases`` runs of several steps."""
    noise_key, sampling_key, tail_key, sums_key = jax.random.split(key, 4)
    run = _compiled_runs()
    settings = _sum_settings()
    checks = {}

    # The noise, beside a sum that is known.
    noise_setting = settings["small"]._replace(noise_multiplier=1.0)
    noise_runs = _make_runs(run, noise_setting, noise_key, num_releases)
    z = (noise_runs.sums - _known_sum(noise_setting)) / CLIP_NORM
    checks.update(noise_checks(z))
    checks["noise tail"] = _tail_check(tail_key, num_releases)

    # The sums, beside noise that is small.
    recorded = [(noise_setting, noise_runs.state)]
    for index, (name, setting) in enumerate(settings.items()):
        setting_key = jax.random.fold_in(sums_key, index)
        runs = _make_runs(run, setting, setting_key, _CHUNK)
        recorded.append((setting, runs.state))
        checks[f"sum: {name}"] = _sum_check(runs.sums - _known_sum(setting))

    # The batches, seen through sums of examples at right angles.
    directions = _directions()
    setting = Setting(
        gradients=CLIP_NORM * directions,
        is_masked=np.zeros(3, bool),
        noise_multiplier=_LITTLE_NOISE,
        sampling_prob=_SAMPLING_PROB,
    )
    runs = _make_runs(run, setting, sampling_key, num_releases)
    recorded.append((setting, runs.state))
    projections = runs.sums @ directions.T / CLIP_NORM
    checks["sampling"] = sampling_check(projections > 0.5, _SAMPLING_PROB)

    checks["ledger"] = _ledger_check(recorded)
    return checks


def _directions() -> np.ndarray:
    """Return three unit vectors at right angles, float32[3, coordinates], each in all of both leaves."""
    first = np.ones(NUM_COORDINATES)
    second = np.tile([1, 1, -1, -1], 3)
    third = np.tile([1, -1, 1, -1], 3)
    directions = np.stack([first, second, third]) / np.sqrt(NUM_COORDINATES)
    return directions.astype(np.float32)


def _sum_settings() -> dict[str, Setting]:
    """Return data whose clipped sum shows one kind of mistake each."""
    first, second, third = _directions()
    nobody = np.zeros(3, bool)
    last = np.array([False, False, True])

    def setting(rows: list[np.ndarray], is_masked: np.ndarray = nobody) -> Setting:
        return Setting(np.stack(rows).astype(np.float32), is_masked, _LITTLE_NOISE)

    return {
        "small": setting([0.3 * first, 0.5 * second, 0.9 * third]),
        "large": setting([1e4 * first, 3 * second, 0.5 * third]),
        "opposed": setting([-10 * first, 20 * first, 20 * second]),
        "overflowing": setting([1e30 * first, 0.5 * second, -1e30 * third]),
        "missing": setting([0.3 * first, 0.5 * second, np.nan * third]),
        "masked": setting([0.3 * first, 0.5 * second, 1e4 * third], last),
        "masked, missing": setting([0.3 * first, 0.5 * second, np.nan * third], last),
    }


def _known_sum(setting: Setting) -> np.ndarray:
    """Return the sum of the clipped gradients, each row scaled by min(1, C / norm), float64[coordinates]."""
    rows = setting.gradients.astype(np.float64)

    # Rows that are masked or not finite count as zero.
    is_finite = np.isfinite(rows).all(axis=1)
    is_counted = is_finite & ~setting.is_masked
    rows = np.where(is_counted[:, None], rows, 0.0)

    # C / max(norm, C) is min(1, C / norm).
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scales = np.minimum(1.0, CLIP_NORM / np.maximum(norms, CLIP_NORM))
    return (rows * scales).sum(axis=0)


def _compiled_runs() -> Any:
    """Return the compiled program: a chunk of runs of one setting, given as arrays, one for each key."""
    steps = _worst_cases.linear_steps()

    @jax.jit
    def run_chunk(setting: Setting, keys: Array) -> tuple[Array, Any]:
        # The same examples in every step.
        gradients = jnp.broadcast_to(setting.gradients, (_NUM_STEPS, *setting.gradients.shape))

        def run_once(key: Array) -> tuple[Array, Any]:
            updates, state = steps(gradients, setting.is_masked, setting.noise_multiplier, setting.sampling_prob, key)
            leaves = [leaf.reshape(_NUM_STEPS, -1) for leaf in jax.tree.leaves(updates)]
            return jnp.concatenate(leaves, axis=1), state

        return jax.vmap(run_once)(keys)

    return run_chunk


def _make_runs(run_chunk: Any, setting: Setting, key: Array, num_runs: int) -> Runs:
    """Return the runs of one setting, as many as asked for, made in chunks of one size."""
    # As arrays, so that all settings share one compiled program.
    arrays = setting._replace(
        noise_multiplier=np.float32(setting.noise_multiplier),
        sampling_prob=np.float32(setting.sampling_prob),
    )
    num_chunks = -(-num_runs // _CHUNK)
    keys = jax.random.split(key, num_chunks * _CHUNK).reshape(num_chunks, _CHUNK)
    chunks = [run_chunk(arrays, chunk_keys) for chunk_keys in keys]

    # Join the chunks, without the runs beyond the last that was asked for.
    released, state = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_runs], *chunks)
    expected_batch_size = setting.sampling_prob * len(setting.gradients)
    return Runs(sums=released.astype(np.float64) * expected_batch_size, state=state)


def noise_checks(z: np.ndarray) -> dict[str, StepCheck]:
    """Return the checks of noise that should be standard normal, float64[runs, steps, coordinates]."""
    squares = z**2
    stddev = np.sqrt(squares.mean())
    step_probabilities = _length_probabilities(squares.sum(axis=2), z.shape[2])
    run_probabilities = _length_probabilities(squares.sum(axis=(1, 2)), z.shape[1] * z.shape[2])
    return {
        "noise size": StepCheck(
            _size_p_value(squares),
            f"standard deviation {stddev:.4f} of what it should be, over {z.size} draws",
        ),
        "noise shape": StepCheck(
            _shape_p_value(z, step_probabilities, run_probabilities),
            "normal, by the empirical distribution function",
        ),
        "noise range": StepCheck(
            _range_p_value(z, step_probabilities),
            f"values from {z.min():.2f} to {z.max():.2f}",
        ),
        "noise repeated": StepCheck(
            _repetition_p_value(z),
            "steps, coordinates and runs are independent",
        ),
    }


def _length_probabilities(squared_lengths: np.ndarray, num_draws: int) -> np.ndarray:
    """Return the chi-square cdf of the squared lengths of vectors of ``num_draws`` standard normal draws."""
    return scipy.special.gammainc(num_draws / 2, squared_lengths / 2)


def _size_p_value(squares: np.ndarray) -> float:
    """Test the sum of squares, float64[runs, steps, coordinates], of everything, each step and each coordinate."""
    num_runs, num_steps, num_coordinates = squares.shape
    everything = _p_values.variance_p_value(squares.sum(), squares.size)
    each_step = _p_values.variance_p_value(squares.sum(axis=(0, 2)), num_runs * num_coordinates)
    each_coordinate = _p_values.variance_p_value(squares.sum(axis=(0, 1)), num_runs * num_steps)

    # Half of the error goes to everything, which sees the smallest changes.
    whole = _p_values.bonferroni(everything)
    parts = _p_values.bonferroni(np.concatenate([each_step, each_coordinate]))
    return _p_values.bonferroni([whole, parts])


def _shape_p_value(z: np.ndarray, step_probabilities: np.ndarray, run_probabilities: np.ndarray) -> float:
    """Test the distribution of the draws, and of their lengths in each step and in each run."""
    return _p_values.bonferroni(
        [
            _p_values.cdf_p_value(scipy.special.ndtr(z)),
            _p_values.cdf_p_value(step_probabilities),
            _p_values.cdf_p_value(run_probabilities),
        ]
    )


def _range_p_value(z: np.ndarray, step_probabilities: np.ndarray) -> float:
    """Test the smallest and the largest draw, and the shortest and the longest step."""
    # As normal scores, lengths have the same test as the draws.
    step_scores = scipy.special.ndtri(step_probabilities)
    of_draws = _p_values.range_p_value(z.min(), z.max(), z.size)
    of_steps = _p_values.range_p_value(step_scores.min(), step_scores.max(), step_scores.size)
    return _p_values.bonferroni([of_draws, of_steps])


def _repetition_p_value(z: np.ndarray) -> float:
    """Test the correlations between the steps, between the coordinates and between neighbouring runs."""
    num_runs, num_steps, num_coordinates = z.shape
    steps = z.swapaxes(1, 2).reshape(-1, num_steps)
    coordinates = z.reshape(-1, num_coordinates)

    # Pair the runs 2i and 2i + 1; an odd run at the end has no partner.
    num_pairs = num_runs // 2
    pairs = z[: 2 * num_pairs].reshape(num_pairs, 2, num_steps * num_coordinates)
    runs = pairs.swapaxes(1, 2).reshape(-1, 2)
    return _p_values.bonferroni(
        [
            _p_values.correlation_p_value(steps),
            _p_values.correlation_p_value(coordinates),
            _p_values.correlation_p_value(runs),
        ]
    )


@functools.partial(jax.jit, static_argnums=0)
def _summaries(make_noise: Any, keys: Array) -> tuple[Array, Array, Array]:
    """Summarise the noise of each key where it is made.

    Returns:
        The smallest draw of each key, float32[keys]; the largest one, float32[keys]; and how many draws lie beyond
        each threshold, first below its negative and then above it, int32[keys, 2 * thresholds].
    """

    def summarise(carry: None, key: Array) -> tuple[None, tuple[Array, Array, Array]]:
        z = make_noise(key)
        num_below = [(-z > threshold).sum() for threshold in _THRESHOLDS]
        num_above = [(z > threshold).sum() for threshold in _THRESHOLDS]
        return carry, (z.min(), z.max(), jnp.stack(num_below + num_above))

    _, summaries = jax.lax.scan(summarise, None, keys)
    return summaries


def _tail_check(key: Array, num_releases: int) -> StepCheck:
    """Check the noise of one large leaf; its summaries are made where the noise is."""
    zeros = jnp.zeros(_LEAF, jnp.float32)

    def make_noise(key: Array) -> Array:
        tx = _worst_cases.privatize(
            Sensitivity(CLIP_NORM),
            noise_multiplier=1.0,
            batches=PoissonNumbers(1.0, expected_batch_size=1),
            key=key,
        )
        released, _ = tx.update(zeros, tx.init(zeros), zeros)
        return jnp.asarray(released) / CLIP_NORM

    num_keys = -(-num_releases * _DRAWS_PER_RELEASE // _LEAF)
    num_draws = num_keys * _LEAF
    smallest, largest, num_beyond = _summaries(make_noise, jax.random.split(key, num_keys))
    lowest = float(np.asarray(smallest).min())
    highest = float(np.asarray(largest).max())

    # Half of the error goes to the range, half to the counts.
    counts = np.asarray(num_beyond).astype(np.int64).sum(axis=0).reshape(2, -1)
    tail_probabilities = scipy.special.ndtr(-_THRESHOLDS.astype(np.float64))
    of_counts = _p_values.bonferroni(_p_values.count_p_value(counts, num_draws, tail_probabilities))
    of_range = _p_values.range_p_value(lowest, highest, num_draws)
    return StepCheck(
        _p_values.bonferroni([of_range, of_counts]),
        f"values from {lowest:.2f} to {highest:.2f} in {num_draws} draws",
    )


def _sum_check(noise: np.ndarray) -> StepCheck:
    """Check that what remains beside the known sum, float64[runs, steps, coordinates], has mean zero."""
    rows = noise.reshape(-1, NUM_COORDINATES)
    mean = rows.mean(axis=0)
    stddev = _LITTLE_NOISE * CLIP_NORM
    tolerance = _TOLERANCE * CLIP_NORM
    p_value = _p_values.mean_p_value(mean, stddev, len(rows), tolerance)
    distance = np.linalg.norm(mean) / CLIP_NORM
    return StepCheck(p_value, f"off by {distance:.4f} clip norms, at most {_TOLERANCE:g}")


def sampling_check(is_in: np.ndarray, sampling_prob: float) -> StepCheck:
    """Check who was in the batches, bool[runs, steps, examples]."""
    num_runs, num_steps, _ = is_in.shape
    num_batches = num_runs * num_steps

    # Count each example alone, with another one in the same batch, and in the batches 2t and 2t + 1 of a run.
    alone = is_in.sum(axis=(0, 1))
    together = (is_in & np.roll(is_in, 1, axis=2)).sum(axis=(0, 1))
    in_a_row = (is_in[:, 0::2] & is_in[:, 1::2]).sum(axis=(0, 1))

    p_values = np.concatenate(
        [
            _p_values.count_p_value(alone, num_batches, sampling_prob),
            _p_values.count_p_value(together, num_batches, sampling_prob**2),
            _p_values.count_p_value(in_a_row, num_batches // 2, sampling_prob**2),
        ]
    )
    return StepCheck(
        _p_values.bonferroni(p_values),
        f"probability {is_in.mean():.4f}, {sampling_prob:g} is accounted for",
    )


def _ledger_check(recorded: list[tuple[Setting, Any]]) -> StepCheck:
    """Check the ledgers in the final states. Nothing is random here: the p-value is 0 or 1."""
    for setting, state in recorded:
        first_state = jax.tree.map(lambda leaf: leaf[0], state)
        events = list(ledger_of(first_state).events)
        expected = [Event(setting.noise_multiplier, setting.sampling_prob, _NUM_STEPS)]
        if events != expected:
            return StepCheck(0.0, f"{events} instead of {expected}")
        if not _all_equal(state):
            return StepCheck(0.0, "runs of the same steps have different ledgers")
    return StepCheck(1.0, f"{_NUM_STEPS} steps with their noise multiplier and sampling probability")


def _all_equal(state: Any) -> bool:
    """Return whether all runs counted the same; their keys differ."""
    return all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(state.ledger))
