"""Calibration to membership advantage, true positive rates and Bayes success: met, and missed nearby."""

import numpy as np
import pytest
from scipy.special import ndtr

from gdpjax.accounting import calibrate_noise_multiplier, calibrate_num_steps, certified

RUN = {"noise_multiplier": 1.0, "sampling_prob": 0.01, "num_steps": 1000}
CALIBRATIONS = {
    "noise_multiplier": (calibrate_noise_multiplier, lambda value: 0.999 * value),
    "num_steps": (calibrate_num_steps, lambda value: value + 1),
}
TARGETS = {
    "advantage": ({"advantage": 0.1}, lambda curve: curve.advantage().upper),
    "tpr": ({"tpr": 0.05, "fpr": 0.01}, lambda curve: curve.tpr(0.01).upper),
    "bayes_success": ({"bayes_success": 0.6}, lambda curve: curve.bayes_success(0.5).upper),
    "bayes_success of a rare member": (
        {"bayes_success": 0.92, "prior": 0.1},
        lambda curve: curve.bayes_success(0.1).upper,
    ),
}


@pytest.mark.parametrize("unknown", CALIBRATIONS)
@pytest.mark.parametrize("name", TARGETS)
def test_the_target_is_met_and_a_riskier_value_misses_it(name, unknown):
    target, answer = TARGETS[name]
    calibrate, riskier = CALIBRATIONS[unknown]
    known = {key: value for key, value in RUN.items() if key != unknown}
    goal = next(iter(target.values()))
    found = calibrate(**target, **known)
    assert answer(certified(**{**known, unknown: found})) <= goal
    assert answer(certified(**{**known, unknown: riskier(found)})) > goal


def test_without_sampling_the_noise_is_that_of_the_gaussian_mechanism():
    once = {"sampling_prob": 1.0, "num_steps": 1}
    noise = calibrate_noise_multiplier(advantage=2 * ndtr(0.5) - 1, **once)
    assert noise == pytest.approx(1.0, rel=1e-5)
    assert calibrate_noise_multiplier(bayes_success=ndtr(0.5), **once) == pytest.approx(1.0, rel=1e-5)


def test_targets_broadcast():
    noise = calibrate_noise_multiplier(advantage=np.array([[0.05], [0.2]]), sampling_prob=[0.01, 0.02], num_steps=100)
    assert noise.shape == (2, 2)
    assert (noise[0] > noise[1]).all()


@pytest.mark.parametrize(
    "target",
    [
        {"advantage": 0.1, "epsilon": 1.0, "delta": 1e-5},
        {"advantage": 0.0},
        {"tpr": 0.1},
        {"tpr": 0.1, "fpr": 0.2},
        {"bayes_success": 0.5},
        {"bayes_success": 0.8, "prior": 0.1},
        {"advantage": 0.1, "accountant": "rdp"},
    ],
)
def test_incomplete_and_impossible_targets_are_refused(target):
    with pytest.raises(ValueError, match=r"target|must|bayes_success"):
        calibrate_noise_multiplier(**target, sampling_prob=0.01, num_steps=100)
