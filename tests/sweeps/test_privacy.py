"""The cost of a trial is that of its plan, overflow included."""

import math

import pytest

from gdpjax import accounting
from gdpjax.sweeps import list_trials, plan_trials
from tests.sweeps.sweeps import spec_of


def planned(noise_multiplier, delta):
    """The only trial of three epochs of 100 steps on 10,000 examples."""
    settings = f"batch_size = 100\nepochs = 3\nnoise_multiplier = {noise_multiplier}\n"
    spec = spec_of(f'dataset = "digits"\ndelta = {delta}\n[hyperparameters]\n{settings}')
    (trial,) = plan_trials(spec, list_trials(spec), 10_000)
    return trial


def test_a_trial_costs_what_its_plan_states():
    trial = planned(1.3, 1e-5)
    cost = trial.cost
    assert (cost.num_steps, cost.delta, cost.sampling_prob) == (300, 1e-5, pytest.approx(0.01))
    assert cost.noise_multiplier == pytest.approx(1.3, rel=1e-6)
    assert cost.mu_clt == pytest.approx(0.01 * math.sqrt(300 * math.expm1(1 / 1.3**2)), rel=1e-5)
    assert cost.neighboring_relation == "replace_special"
    assert (cost.epsilon_lower, cost.epsilon_upper) == trial.plan.epsilon_bounds()
    assert 0 < cost.epsilon_lower <= cost.epsilon_upper <= cost.epsilon_moments_accountant
    assert cost.epsilon_clt == pytest.approx(cost.epsilon_upper, rel=0.2)
    assert cost.overflow == trial.plan.overflow


def test_overflow_is_paid_in_the_upper_bound():
    """Batches that do not fit are charged to delta, of which they take a part in 10^5 here."""
    cost = planned(500.0, 6e-14).cost
    run = (cost.noise_multiplier, cost.sampling_prob, cost.num_steps)
    left = (6e-14 - cost.overflow) / (1 - cost.overflow)
    bound = float(accounting.moments_accountant_epsilon(*run, left))
    assert cost.epsilon_moments_accountant == pytest.approx(bound, rel=1e-9)
    assert cost.epsilon_moments_accountant > accounting.moments_accountant_epsilon(*run, 6e-14)
