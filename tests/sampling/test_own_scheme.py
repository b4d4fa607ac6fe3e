"""A sampling scheme of one's own is one class: plans, transforms, loaders and ledgers take it as any other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import NeighboringRelation
from gdpjax.accounting import epsilon_bounds
from gdpjax.correlated import FixedEpochs
from gdpjax.ledger import CyclicPoissonEvent, Event, TruncatedPoissonEvent
from gdpjax.sampling import AbstractBatches, BatchOverflowError
from gdpjax.training import batch_source, private_training

SPECIAL = NeighboringRelation.REPLACE_SPECIAL


@dataclasses.dataclass(frozen=True)
class EveryThird(AbstractBatches):
    """Row i takes part in the steps t with t = i modulo 3."""

    num_examples: int
    num_steps: int
    sampling_prob = 1.0

    @property
    def expected_batch_size(self):
        return self.num_examples / 3

    @property
    def capacity(self):
        return -(-self.num_examples // 3)

    def sample(self, key, step, *, num_valid=None):
        rows = jnp.arange(self.num_examples)
        included = rows % 3 == step % 3
        if num_valid is not None:
            included &= rows < num_valid
        return self.padded(included)

    def step_event(self, neighboring_relation=None):
        return CyclicPoissonEvent(1.0, 1.0, 1, 3, neighboring_relation or SPECIAL)

    def describe(self, unit, neighboring_relation, *, is_correlated):
        return f"Sampling: every {unit} takes part in each third step."


BATCHES = EveryThird(num_examples=20, num_steps=6)
PLAN = gdpjax.make_plan(BATCHES, clip=1.0, delta=1e-5, noise_multiplier=4.0)


def test_a_plan_of_it_trains_and_its_ledger_costs_what_the_plan_says():
    training = private_training(PLAN, lambda w, x: w @ x, optax.sgd(0.1), num_arrays=1)
    state = training.init(jnp.zeros(2), jax.random.key(0))
    state, info = training.run_steps(state, training.place(jnp.ones((20, 2))), 6)
    assert (~info.is_padding).sum(axis=1).tolist() == [7, 7, 6, 7, 7, 6]
    (event,) = gdpjax.ledger_of(state.opt_state)
    assert event == dataclasses.replace(PLAN.event, noise_multiplier=event.noise_multiplier)
    assert (event.num_rounds, event.neighboring_relation) == (2, SPECIAL)
    upper = epsilon_bounds(event, delta=1e-5).upper
    assert upper == pytest.approx(PLAN.epsilon_bounds().upper, rel=1e-4)


def test_the_host_draws_what_the_device_draws():
    state = private_training(PLAN, lambda w, x: w @ x, optax.sgd(0.1), num_arrays=1).init(
        jnp.zeros(2), jax.random.key(0)
    )
    host = batch_source(PLAN, state, 20)
    for step in range(6):
        on_device = jax.jit(BATCHES.sample)(jax.random.key(5), step)
        np.testing.assert_array_equal(host[step].indices, on_device.indices)


def test_the_plan_says_it_and_survives_json():
    assert PLAN.statement().splitlines()[1] == "Sampling: every example takes part in each third step."
    assert gdpjax.Plan.from_json(PLAN.to_json()) == PLAN
    assert PLAN.replace(num_steps=9).event.num_rounds == 3


def test_what_is_not_said_of_it_is_refused():
    with pytest.raises(ValueError, match="proved bound under"):
        PLAN.replace(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match="not for EveryThird"):
        PLAN.replace(group_size=2)
    with pytest.raises(ValueError, match="correlated noise goes with batches that promise"):
        PLAN.replace(noise=gdpjax.correlated.bisr(2))


@dataclasses.dataclass(frozen=True)
class SometimesLost(EveryThird):
    """Batches that may not fit, charged as what never fails to."""

    overflow_per_step = 1e-3

    def limits(self):
        return FixedEpochs(2)

    def step_event(self, neighboring_relation=None):
        return TruncatedPoissonEvent(1.0, 1.0, 1, self.num_examples, self.capacity, neighboring_relation)


def test_an_overflow_that_the_event_cannot_hold_is_refused():
    """Trap 83: it would not be accounted for, with correlated noise either."""
    batches = SometimesLost(20, 6)
    with pytest.raises(ValueError, match="TruncatedPoissonEvent holds no overflow"):
        batches.event(1.0)
    for noise in (gdpjax.IndependentGaussian(), gdpjax.correlated.bisr(2)):
        with pytest.raises(ValueError, match="Event holds no overflow"):
            gdpjax.privatize(gdpjax.Sensitivity(1.0), 1.0, batches, jax.random.key(0), noise=noise)
        with pytest.raises(ValueError, match="Event holds no overflow"):
            gdpjax.make_plan(batches, clip=1.0, delta=1e-2, noise_multiplier=4.0, noise=noise)


@dataclasses.dataclass(frozen=True)
class MayNotFit(EveryThird):
    """Batches that may not fit, and say so once."""

    overflow_per_step: float = 1e-7

    def step_event(self, neighboring_relation=None):
        return Event(1.0, 1.0, 1, neighboring_relation)


def test_the_overflow_of_a_step_is_that_of_the_run():
    """Trap 91: stated in two places, one of them was 0, which a plan or a ledger read."""
    batches = MayNotFit(20, 6)
    plan = gdpjax.make_plan(batches, clip=1.0, delta=1e-2, noise_multiplier=4.0)
    assert plan.overflow == batches.event(1.0).overflow == pytest.approx(6e-7, rel=1e-12)
    grad_fn = gdpjax.clipped_grad(lambda w, x: w * x, 1.0)
    tx = gdpjax.privatize(grad_fn, 1.0, batches, jax.random.key(0))
    params = jnp.zeros(())
    total = grad_fn(params, jnp.ones(7), is_padding=jnp.zeros(7, bool))
    _, state = tx.update(total, tx.init(params), params)
    assert gdpjax.ledger_of(state)[0].overflow == pytest.approx(1e-7, rel=1e-6)

    with pytest.raises(ValueError, match="Half has to state overflow_per_step"):
        type("Half", (EveryThird,), {"overflow": 1e-3})


@dataclasses.dataclass(frozen=True)
class StatedElsewhere(MayNotFit):
    """Batches whose event of a step states an overflow that is not the class's."""

    def step_event(self, neighboring_relation=None):
        return Event(1.0, 1.0, 1, neighboring_relation, overflow=1e-3)


def test_an_overflow_of_the_step_event_is_refused():
    """It would be dropped for that of the class."""
    batches = StatedElsewhere(20, 6)
    for make in (
        lambda: batches.event(1.0),
        lambda: gdpjax.make_plan(batches, clip=1.0, delta=1e-2, noise_multiplier=4.0),
    ):
        with pytest.raises(ValueError, match=r"step_event of StatedElsewhere holds an overflow of 0\.001"):
            make()


def test_a_batch_too_large_of_a_scheme_that_never_has_one():
    """The epsilon does not account for it, so the message does not say so."""

    class Larger(EveryThird):
        capacity = 1

    with pytest.raises(BatchOverflowError, match=r"their overflow_per_step.* is wrong, and the epsilon does not hold"):
        Larger(20, 6).on_host(jax.random.key(0))[0]


def test_a_name_that_is_taken_is_refused():
    """A plan's JSON form would be read as the other one."""
    with pytest.raises(ValueError, match=r"Poisson is the name of other batches, of gdpjax\.sampling"):
        type("Poisson", (EveryThird,), {"__module__": "elsewhere"})
