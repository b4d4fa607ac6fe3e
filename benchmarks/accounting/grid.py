"""The common grid: DP-SGD runs drawn from one seed, the same for everybody."""

from typing import NamedTuple

import numpy as np

from benchmarks.accounting import paper

SEED = 20191126
DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
NOISE_MULTIPLIER, SAMPLING_PROB, NUM_STEPS = (0.5, 8.0), (0.004, 0.2), (100, 100_000)
CLT_EPSILON = (0.05, 30.0)
BLOCK = 4096
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

    def __getitem__(self, index):  # pyright: ignore[reportIncompatibleMethodOverride]
        return Grid(*(column[index] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        return tuple(self)

    def run(self, i: int) -> tuple[float, float, int, float]:
        """Configuration i as Python numbers."""
        noise_multiplier, sampling_prob, num_steps, delta = (column[i].item() for column in self.columns())
        return noise_multiplier, sampling_prob, int(num_steps), delta

    def describe(self, i: int) -> dict[str, float]:
        return dict(zip(self._fields, self.run(i), strict=True))


def make_grid(size: int) -> Grid:
    """Return the first ``size`` configurations; a smaller grid is the beginning of a larger one."""
    share = -(-size // len(DELTAS))
    strata = [_stratum(share, delta, i) for i, delta in enumerate(DELTAS)]
    columns = [np.stack(parts, axis=1).ravel()[:size] for parts in zip(*strata, strict=True)]
    return Grid(*columns)


def _stratum(size: int, delta: float, index: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([SEED, index])
    kept = [np.empty((3, 0))]
    while sum(block.shape[1] for block in kept) < size:
        block = np.stack([_log_uniform(rng, *NOISE_MULTIPLIER), _log_uniform(rng, *SAMPLING_PROB), _steps(rng)])
        mu = paper.clt_mu(*block)
        inside = (paper.delta(CLT_EPSILON[0], mu) >= delta) & (paper.delta(CLT_EPSILON[1], mu) <= delta)
        kept.append(block[:, inside])
    return (*np.concatenate(kept, axis=1)[:, :size], np.full(size, delta))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), BLOCK))


def _steps(rng: np.random.Generator) -> np.ndarray:
    return np.round(_log_uniform(rng, *NUM_STEPS))


class Points(NamedTuple):
    """Points for the elementwise functions; delta runs from about 1e-1 to 1e-10."""

    alpha: np.ndarray
    mu: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray
    noise_multiplier: np.ndarray
    sampling_prob: np.ndarray
    num_steps: np.ndarray


def make_points(size: int) -> Points:
    rng = np.random.default_rng(SEED)
    mu = np.exp(rng.uniform(np.log(0.1), np.log(5.0), size))
    return Points(
        alpha=rng.uniform(0.0, 1.0, size),
        mu=mu,
        epsilon=mu * rng.uniform(1.0, 6.0, size) + mu**2 / 2,
        delta=10.0 ** rng.uniform(-10.0, -2.0, size),
        noise_multiplier=rng.uniform(*NOISE_MULTIPLIER, size),
        sampling_prob=rng.uniform(*SAMPLING_PROB, size),
        num_steps=np.round(rng.uniform(*NUM_STEPS, size)),
    )
