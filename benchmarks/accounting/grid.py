"""The common grid: DP-SGD runs drawn from one seed, the same for everybody."""

from typing import NamedTuple

import numpy as np

from benchmarks.accounting import paper

SEED = 20191126
DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
NOISE_MULTIPLIER = (0.5, 8.0)
SAMPLING_PROB = (0.004, 0.2)
NUM_STEPS = (100, 100_000)
CLT_EPSILON = (0.05, 30.0)
BLOCK = 4096
"""Runs that are drawn at a time."""
TEXT = (
    f"seed {SEED}; noise_multiplier, sampling_prob, num_steps log-uniform in {NOISE_MULTIPLIER}, {SAMPLING_PROB}, "
    f"{NUM_STEPS}; delta in turn 1e-5 ... 1e-10; kept where the central limit theorem's epsilon is in {CLT_EPSILON}"
)


class Grid(NamedTuple):
    """Runs, one per element."""

    noise_multiplier: np.ndarray
    sampling_prob: np.ndarray
    num_steps: np.ndarray
    delta: np.ndarray

    def run(self, i: int) -> tuple[float, float, int, float]:
        """Return configuration i as Python numbers."""
        noise_multiplier = self.noise_multiplier[i].item()
        sampling_prob = self.sampling_prob[i].item()
        num_steps = int(self.num_steps[i].item())
        delta = self.delta[i].item()
        return noise_multiplier, sampling_prob, num_steps, delta

    def describe(self, i: int) -> dict[str, float]:
        """Return configuration i, by name."""
        return dict(zip(self._fields, self.run(i), strict=True))


def make_grid(size: int) -> Grid:
    """Return the first ``size`` configurations; a smaller grid is the beginning of a larger one."""
    per_delta = -(-size // len(DELTAS))
    strata = [_stratum(per_delta, delta, index) for index, delta in enumerate(DELTAS)]

    # One configuration of each delta, then the next one of each.
    columns = []
    for of_strata in zip(*strata, strict=True):
        in_turn = np.stack(of_strata, axis=1).ravel()
        columns.append(in_turn[:size])
    return Grid(*columns)


def _stratum(size: int, delta: float, index: int) -> tuple[np.ndarray, ...]:
    """Draw the configurations of one delta, as columns."""
    rng = np.random.default_rng([SEED, index])
    blocks: list[np.ndarray] = [np.empty((3, 0))]
    num_runs = 0
    while num_runs < size:
        noise_multiplier = _log_uniform(rng, *NOISE_MULTIPLIER)
        sampling_prob = _log_uniform(rng, *SAMPLING_PROB)
        num_steps = np.round(_log_uniform(rng, *NUM_STEPS))
        block = np.stack([noise_multiplier, sampling_prob, num_steps])

        # delta falls with epsilon: epsilon lies between the two ends where delta lies between theirs.
        mu = paper.clt_mu(*block)
        at_least = paper.delta(CLT_EPSILON[0], mu) >= delta
        at_most = paper.delta(CLT_EPSILON[1], mu) <= delta
        inside = block[:, at_least & at_most]
        blocks.append(inside)
        num_runs += inside.shape[1]
    runs = np.concatenate(blocks, axis=1)[:, :size]
    return (*runs, np.full(size, delta))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Draw a block of numbers whose logarithms are uniform."""
    logarithms = rng.uniform(np.log(low), np.log(high), BLOCK)
    return np.exp(logarithms)
