"""The report is computed from the ledger, and the overflow is paid."""

import math

import jax
import jax.numpy as jnp
import pytest

import gdpjax
from gdpjax import accounting
from gdpjax.sampling import PoissonNumbers
from gdpjax.sweeps import UserError
from gdpjax.sweeps import _plans as privacy

RUN = (1.3, 1 / 128, 3)


def state_after_three_steps(overflow_per_step: float):
    """The optimizer state after three steps at noise 1.3 and probability 1/128."""
    grad_fn = gdpjax.clipped_grad(lambda w, x, y: jnp.sum(w * x * y), 1.0, batch_argnums=(1, 2))
    batches = PoissonNumbers(RUN[1], 2, overflow_per_step)
    tx = gdpjax.dpsgd(0.1, grad_fn, RUN[0], batches, jax.random.key(0))
    params = jnp.zeros(3)

    @jax.jit
    def step(state):
        _, state = tx.update(grad_fn(params, jnp.ones((2, 3)), jnp.ones(2)), state, params)
        return state

    state = tx.init(params)
    for _ in range(RUN[2]):
        state = step(state)
    return state


@pytest.fixture(scope="module")
def free():
    """A state without overflow."""
    return state_after_three_steps(0.0)


@pytest.fixture(scope="module")
def overflowing():
    """A state whose batches overflow with probability 9e-6 in all."""
    return state_after_three_steps(3e-6)


def test_cost_is_of_the_steps_that_were_made(free):
    cost = privacy.cost_of(free, 1e-5)
    assert (cost.num_steps, cost.sampling_prob, cost.overflow) == (3, 1 / 128, 0.0)
    assert cost.noise_multiplier == pytest.approx(1.3, rel=1e-6)
    assert cost.mu_clt == pytest.approx(math.sqrt(3 * math.expm1(1 / 1.3**2)) / 128, rel=1e-5)
    assert cost.neighboring_relation == "add_or_remove_one"
    assert cost.epsilon_clt > 0
    assert cost.epsilon_moments_accountant > 0


def test_overflow_is_paid_in_the_upper_bound(free, overflowing):
    cheap, paid = privacy.cost_of(free, 1e-5), privacy.cost_of(overflowing, 1e-5)
    assert paid.overflow == pytest.approx(9e-6, rel=1e-5)
    assert paid.epsilon_moments_accountant > cheap.epsilon_moments_accountant
    left = (1e-5 - paid.overflow) / (1 - paid.overflow)
    bound = accounting.moments_accountant_epsilon(cheap.noise_multiplier, *RUN[1:], left)
    assert paid.epsilon_moments_accountant == pytest.approx(float(bound), rel=1e-9)
    assert paid.epsilon_moments_accountant >= bound


def test_overflow_in_the_ledger_is_refused(overflowing):
    overflow = privacy.cost_of(overflowing, 1e-5).overflow
    for delta in (5e-6, overflow):
        with pytest.raises(UserError, match="delta must exceed"):
            privacy.cost_of(overflowing, delta)


def test_a_plan_costs_what_it_states():
    plan = gdpjax.make_plan(
        clip=1.0, max_examples=1000, expected_batch_size=20, num_steps=10, delta=1e-5, noise_multiplier=1.0
    )
    first, again = (privacy.cost_of_event(made.event, made.delta) for made in (plan, plan.replace(clip=2.0)))
    assert first == again
    assert (first.epsilon_lower, first.epsilon_upper) == plan.epsilon_bounds()
    assert first.overflow == plan.overflow


def test_the_certified_interval_lies_below_the_moments_accountant(free):
    cost = privacy.cost_of(free, 1e-5)
    assert 0 <= cost.epsilon_lower <= cost.epsilon_upper <= cost.epsilon_moments_accountant
