"""p-values of known laws: not too small under the law, tiny for each departure that they are for."""

import numpy as np
import pytest
from scipy import special

from gdpjax.auditing import _p_values, _step_checks

RUNS, STEPS, COORDINATES = 256, 20, 12


def draws(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def mean(seed):
    return _p_values.mean_p_value(0.001 + 0.5 * draws(seed, 50, 4).mean(axis=0), 0.5, 50, 0.002)


def spread(seed):
    z = draws(seed, 200)
    return _p_values.range_p_value(z.min(), z.max(), z.size)


def count(seed):
    return float(_p_values.count_p_value(np.random.default_rng(seed).binomial(40, 0.3), 40, 0.3))


LAWS = {
    "variance": lambda seed: float(_p_values.variance_p_value((draws(seed, 30) ** 2).sum(), 30)),
    "mean": mean,
    "cdf": lambda seed: _p_values.cdf_p_value(special.ndtr(draws(seed, 100))),
    "range": spread,
    "count": count,
    "correlation": lambda seed: _p_values.correlation_p_value(draws(seed, 20, 3)),
}


@pytest.mark.parametrize("law", LAWS)
def test_p_values_are_at_most_as_small_as_they_say(law):
    repeats = 2000
    p_values = np.array([LAWS[law](seed) for seed in range(repeats)])
    assert (p_values >= 0).all()
    assert (p_values <= 1).all()
    for level in (0.01, 0.1, 0.5):
        slack = 4 * np.sqrt(level * (1 - level) / repeats)
        assert np.mean(p_values <= level) <= level + slack


def test_known_values():
    assert _p_values.variance_p_value(3.841459, 1) == pytest.approx(0.1, rel=1e-5)
    assert _p_values.mean_p_value(np.array([1.959964]), 1.0, 1, 0.0) == pytest.approx(0.05, rel=1e-5)
    assert _p_values.count_p_value(10, 10, 0.5) == pytest.approx(2 * 0.5**10)
    assert _p_values.count_p_value(0, 10, 0.5) == pytest.approx(2 * 0.5**10)
    assert _p_values.count_p_value(5, 10, 0.5) == 1
    # The range of one draw: below -3 with probability Phi(-3), twice for two sides, three times for three statistics.
    assert _p_values.range_p_value(-3.0, -3.0, 1) == pytest.approx(6 * special.ndtr(-3.0))
    assert _p_values.bonferroni([0.02, 0.5]) == 0.04
    assert _p_values.bonferroni([0.5, np.nan]) == 0


def test_what_is_not_finite_follows_no_law():
    for bad in (np.nan, np.inf):
        assert _p_values.variance_p_value(bad, 10) == 0
        assert _p_values.mean_p_value(np.array([0.0, bad]), 1.0, 10, 1.0) == 0
        assert _p_values.cdf_p_value(np.array([0.5, bad])) == 0
        assert _p_values.range_p_value(-1.0, bad, 10) == 0
        assert _p_values.correlation_p_value(np.array([[1.0, bad], [2.0, 0.0]])) == 0


def replaced(z, place, value):
    """Return draws [runs, steps, coordinates] of which some are others."""
    changed = z.copy()
    changed[place] = value
    return changed


DEPARTURES = {
    "0.95": (lambda z: 0.95 * z, "noise size"),
    "half of one step": (lambda z: replaced(z, np.s_[:, 9], z[:, 9] / 2), "noise size"),
    "half of one run in ten": (lambda z: replaced(z, np.s_[::10], z[::10] / 2), "noise size"),
    "cut at 3": (lambda z: np.clip(z, -3, 3), "noise range"),
    "outlier": (lambda z: replaced(z, (3, 4, 5), 8.0), "noise range"),
    "one step without noise": (lambda z: replaced(z, (17, 3), 1e-6), "noise range"),
    "uniform": (lambda z: np.sqrt(3) * (2 * special.ndtr(z) - 1), "noise shape"),
    "signs": (np.sign, "noise shape"),
    "shifted": (lambda z: z + 0.05, "noise shape"),
    "all of length sqrt(d)": (
        lambda z: z * np.sqrt(COORDINATES) / np.linalg.norm(z, axis=2, keepdims=True), "noise shape",
    ),
    "two steps alike": (lambda z: replaced(z, np.s_[:, 7], z[:, 3]), "noise repeated"),
    "two runs alike": (lambda z: replaced(z, np.s_[1::2], z[::2]), "noise repeated"),
    "two coordinates opposed": (lambda z: replaced(z, np.s_[:, :, 11], -z[:, :, 0]), "noise repeated"),
    "NaN": (lambda z: np.where(z > 4, np.nan, z), "noise shape"),
}  # fmt: skip


def test_sound_noise_passes():
    found = _step_checks.noise_checks(draws(0, RUNS, STEPS, COORDINATES))
    assert min(check.p_value for check in found.values()) > 1e-3


@pytest.mark.parametrize("departure", DEPARTURES)
def test_each_check_of_the_noise_sees_what_it_is_for(departure):
    change, name = DEPARTURES[departure]
    assert _step_checks.noise_checks(change(draws(0, RUNS, STEPS, COORDINATES)))[name].p_value < 1e-6


def test_the_check_of_the_batches_sees_what_it_is_for():
    uniform = np.random.default_rng(0).random((RUNS, STEPS, 3))
    assert _step_checks.sampling_check(uniform < 0.25, 0.25).p_value > 1e-3
    one_of_three = np.eye(3, dtype=bool)[np.random.default_rng(0).integers(3, size=(RUNS, STEPS))]
    for batches, prob in (
        (uniform < 0.3, 0.25),
        (uniform < 0.2, 0.25),
        (uniform[:, :, :1] < [0.25] * 3, 0.25),  # all examples or none
        (np.repeat(uniform[:, ::2], 2, axis=1) < 0.25, 0.25),  # every batch twice
        (one_of_three, 1 / 3),  # a batch of fixed size
    ):
        assert _step_checks.sampling_check(batches, prob).p_value < 1e-6
