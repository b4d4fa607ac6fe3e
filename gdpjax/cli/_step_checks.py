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
    """What n runs of `_NUM_STEPS` steps gave.

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
    found = {}

    # The noise, beside a sum that is known.
    noise_setting = settings["small"]._replace(noise_multiplier=1.0)
    noise_runs = _make_runs(run, noise_setting, noise_key, num_releases)
    z = (noise_runs.sums - _known_sum(noise_setting)) / CLIP_NORM
    found.update(noise_checks(z))
    found["noise tail"] = StepCheck(*_tail_check(tail_key, num_releases))

    # The sums, beside noise that is small.
    recorded = [(noise_setting, noise_runs.state)]
    for index, (name, setting) in enumerate(settings.items()):
        runs = _make_runs(run, setting, jax.random.fold_in(sums_key, index), _CHUNK)
        recorded.append((setting, runs.state))
        found[f"sum: {name}"] = _sum_check(runs.sums - _known_sum(setting))

    # The batches, seen through sums of examples at right angles.
    setting = Setting(CLIP_NORM * _directions(), np.zeros(3, bool), _LITTLE_NOISE, _SAMPLING_PROB)
    runs = _make_runs(run, setting, sampling_key, num_releases)
    recorded.append((setting, runs.state))
    found["sampling"] = sampling_check(runs.sums @ _directions().T / CLIP_NORM > 0.5, _SAMPLING_PROB)

    found["ledger"] = _ledger_check(recorded)
    return found


def _directions() -> np.ndarray:
    """Return three unit vectors at right angles, each in all of both leaves or nearly so."""
    rows = [np.ones(NUM_COORDINATES), np.tile([1, 1, -1, -1], 3), np.tile([1, -1, 1, -1], 3)]
    return (np.stack(rows) / np.sqrt(NUM_COORDINATES)).astype(np.float32)


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
    """Return the sum of the clipped gradients, each row scaled by min(1, C / norm)."""
    rows = setting.gradients.astype(np.float64)
    counts = np.isfinite(rows).all(axis=1) & ~setting.is_masked
    rows = np.where(counts[:, None], rows, 0.0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows * np.minimum(1.0, CLIP_NORM / np.maximum(norms, CLIP_NORM))).sum(axis=0)


def _compiled_runs() -> Any:
    """Return the compiled program: a chunk of runs of one setting, given as arrays, one for each key."""
    steps = _worst_cases.linear_steps()

    @jax.jit
    def run(setting: Setting, keys: Array) -> tuple[Array, Any]:
        gradients = jnp.broadcast_to(setting.gradients, (_NUM_STEPS, *setting.gradients.shape))

        def one(key: Array) -> tuple[Array, Any]:
            updates, state = steps(gradients, setting.is_masked, setting.noise_multiplier, setting.sampling_prob, key)
            leaves = [leaf.reshape(_NUM_STEPS, -1) for leaf in jax.tree.leaves(updates)]
            return jnp.concatenate(leaves, axis=1), state

        return jax.vmap(one)(keys)

    return run


def _make_runs(run: Any, setting: Setting, key: Array, num_runs: int) -> Runs:
    """Return the runs of one setting, as many as asked for, made in chunks of one size."""
    arrays = setting._replace(
        noise_multiplier=np.float32(setting.noise_multiplier), sampling_prob=np.float32(setting.sampling_prob)
    )
    num_chunks = -(-num_runs // _CHUNK)
    keys = jax.random.split(key, num_chunks * _CHUNK).reshape(num_chunks, _CHUNK)
    parts = [run(arrays, chunk) for chunk in keys]
    released, state = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_runs], *parts)
    expected_batch_size = setting.sampling_prob * len(setting.gradients)
    return Runs(released.astype(np.float64) * expected_batch_size, state)


def noise_checks(z: np.ndarray) -> dict[str, StepCheck]:
    """Return the checks of noise that should be standard normal, float64[runs, steps, coordinates]."""
    num_runs, num_steps, num_coordinates = z.shape
    squares = z**2
    size = [
        *np.atleast_1d(_p_values.variance_p_value(squares.sum(), z.size)),
        *_p_values.variance_p_value(squares.sum(axis=(0, 2)), num_runs * num_coordinates),
        *_p_values.variance_p_value(squares.sum(axis=(0, 1)), num_runs * num_steps),
    ]
    # The squared length of a step, and of a run, is chi-square distributed.
    step_probabilities = scipy.special.gammainc(num_coordinates / 2, squares.sum(axis=2) / 2)
    run_probabilities = scipy.special.gammainc(num_steps * num_coordinates / 2, squares.sum(axis=(1, 2)) / 2)
    shape = [
        _p_values.cdf_p_value(scipy.special.ndtr(z)),
        _p_values.cdf_p_value(step_probabilities),
        _p_values.cdf_p_value(run_probabilities),
    ]
    # As normal scores, lengths have the same test of their range as the draws.
    step_scores = scipy.special.ndtri(step_probabilities)
    in_range = [
        _p_values.range_p_value(z.min(), z.max(), z.size),
        _p_values.range_p_value(step_scores.min(), step_scores.max(), step_scores.size),
    ]
    halves = z[: num_runs // 2 * 2].reshape(-1, 2, num_steps * num_coordinates)
    repeated = [
        _p_values.correlation_p_value(z.swapaxes(1, 2).reshape(-1, num_steps)),
        _p_values.correlation_p_value(z.reshape(-1, num_coordinates)),
        _p_values.correlation_p_value(halves.swapaxes(1, 2).reshape(-1, 2)),
    ]
    stddev = np.sqrt(squares.mean())
    return {
        "noise size": StepCheck(
            _p_values.bonferroni([_p_values.bonferroni(size[:1]), _p_values.bonferroni(size[1:])]),
            f"standard deviation {stddev:.4f} of what it should be, over {z.size} draws",
        ),
        "noise shape": StepCheck(_p_values.bonferroni(shape), "normal, by the empirical distribution function"),
        "noise range": StepCheck(_p_values.bonferroni(in_range), f"values from {z.min():.2f} to {z.max():.2f}"),
        "noise repeated": StepCheck(_p_values.bonferroni(repeated), "steps, coordinates and runs are independent"),
    }


@functools.partial(jax.jit, static_argnums=0)
def _summaries(make_noise: Any, keys: Array) -> tuple[Array, Array, Array]:
    """Return the smallest and the largest draw of each key, and how many lie beyond each threshold on either side."""

    def one(carry: None, key: Array) -> tuple[None, tuple[Array, Array, Array]]:
        z = make_noise(key)
        beyond = [(sign * z > threshold).sum() for sign in (-1, 1) for threshold in _THRESHOLDS]
        return carry, (z.min(), z.max(), jnp.stack(beyond))

    return jax.lax.scan(one, None, keys)[1]


def _tail_check(key: Array, num_releases: int) -> tuple[float, str]:
    """Check the noise of one large leaf; its summaries are made where the noise is."""
    zeros = jnp.zeros(_LEAF, jnp.float32)

    def noise(key: Array) -> Array:
        tx = _worst_cases.privatize(
            Sensitivity(CLIP_NORM),
            noise_multiplier=1.0,
            sampling_prob=1.0,
            expected_batch_size=1,
            key=key,
            overflow_per_step=0.0,
        )
        released = jnp.asarray(tx.update(zeros, tx.init(zeros), zeros)[0])
        return released / CLIP_NORM

    num_keys = -(-num_releases * _DRAWS_PER_RELEASE // _LEAF)
    smallest, largest, beyond = map(np.asarray, _summaries(noise, jax.random.split(key, num_keys)))
    num_draws = num_keys * _LEAF
    counts = beyond.astype(np.int64).sum(axis=0).reshape(2, -1)
    p_values = _p_values.count_p_value(counts, num_draws, scipy.special.ndtr(-_THRESHOLDS.astype(np.float64)))
    in_range = _p_values.range_p_value(float(smallest.min()), float(largest.max()), num_draws)
    # Half of the error goes to the range, half to the counts.
    p_value = _p_values.bonferroni([in_range, _p_values.bonferroni(p_values)])
    return p_value, f"values from {smallest.min():.2f} to {largest.max():.2f} in {num_draws} draws"


def _sum_check(noise: np.ndarray) -> StepCheck:
    """Check that what remains beside the known sum has mean zero."""
    rows = noise.reshape(-1, NUM_COORDINATES)
    mean = rows.mean(axis=0)
    p_value = _p_values.mean_p_value(mean, _LITTLE_NOISE * CLIP_NORM, len(rows), _TOLERANCE * CLIP_NORM)
    return StepCheck(p_value, f"off by {np.linalg.norm(mean) / CLIP_NORM:.4f} clip norms, at most {_TOLERANCE:g}")


def sampling_check(is_in: np.ndarray, sampling_prob: float) -> StepCheck:
    """Check who was in the batches, bool[runs, steps, examples]."""
    num_batches = is_in.shape[0] * is_in.shape[1]
    alone = _p_values.count_p_value(is_in.sum(axis=(0, 1)), num_batches, sampling_prob)
    # Two examples in one batch, one example in the batches 2t and 2t + 1 of a run.
    together = (is_in & np.roll(is_in, 1, axis=2)).sum(axis=(0, 1))
    in_a_row = (is_in[:, 0::2] & is_in[:, 1::2]).sum(axis=(0, 1))
    p_values = [
        *alone,
        *_p_values.count_p_value(together, num_batches, sampling_prob**2),
        *_p_values.count_p_value(in_a_row, num_batches // 2, sampling_prob**2),
    ]
    return StepCheck(
        _p_values.bonferroni(p_values), f"probability {is_in.mean():.4f}, {sampling_prob:g} is accounted for"
    )


def _ledger_check(recorded: list[tuple[Setting, Any]]) -> StepCheck:
    """Check the ledgers in the final states. Nothing is random here: the p-value is 0 or 1."""
    for setting, state in recorded:
        events = list(ledger_of(jax.tree.map(lambda leaf: leaf[0], state)).events)
        run = Event(setting.noise_multiplier, setting.sampling_prob, _NUM_STEPS)
        if events != [run]:
            return StepCheck(0.0, f"{events} instead of {[run]}")
        if not _all_equal(state):
            return StepCheck(0.0, "runs of the same steps have different ledgers")
    return StepCheck(1.0, f"{_NUM_STEPS} steps with their noise multiplier and sampling probability")


def _all_equal(state: Any) -> bool:
    """Whether all runs counted the same; their keys differ."""
    return all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(state.ledger))
