"""Random allocation in a Ledger: alone, beside other events, with overflow and with an epoch that was not finished."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import optimize, special

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import certified, delta_bounds, epsilon_bounds, mu_bounds, tradeoff_bounds
from gdpjax.ledger import (
    AllocationEvent,
    ApproximateDPEvent,
    GaussianEvent,
    RandomizedResponseEvent,
    TruncatedPoissonEvent,
    UniformEvent,
    init_ledger,
    ledger_from_state,
    record_steps,
)
from tests.accounting.closed_forms import gaussian_delta
from tests.refused import refusals

EPSILONS = np.array([0.0, 0.4, 1.0, 2.0, 3.0])
FAILURE = 1e-6
RUN = AllocationEvent(1.0, steps_per_epoch=10, num_epochs=5)


def normal_density(x):
    return np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


class Truth:
    """Two steps of which an example is in one, a Poisson step, randomized response and Gaussian noise, by quadrature.

    The integrand is analytic thanks to the last of them, so that the trapezoid rule is right to many digits.
    """

    def __init__(self, noise, mu, poisson=None, response=0.0, num=60):
        self.mu = mu
        self.response = response
        # One step of the allocation: its outcomes, their probabilities without the example, and likelihood ratios.
        outcomes, spacing = np.linspace(-9.0, 9.0 + 1.0 / noise, num, retstep=True)
        density = normal_density(outcomes) * spacing
        of_step = np.exp(outcomes / noise - 0.5 / noise**2)
        ratio = 0.5 * (of_step[:, None] + of_step)
        self.q = density[:, None] * density

        if poisson is not None:
            sigma, p = poisson
            outcomes, spacing = np.linspace(-9.0, 9.0 + 1.0 / sigma, num, retstep=True)
            of_step = 1.0 - p + p * np.exp(outcomes / sigma - 0.5 / sigma**2)
            ratio = ratio[..., None] * of_step
            self.q = self.q[..., None] * (normal_density(outcomes) * spacing)

        # What has next to no mass says nothing.
        matters = self.q * (1.0 + ratio) > 1e-16
        self.q = self.q[matters]
        self.loss = np.log(ratio[matters])
        self.p = self.q * ratio[matters]

    def delta(self, epsilon):
        """The larger of the two directions."""
        truth = special.expit(self.response)
        remove = add = 0.0
        for share, moved in ((truth, -self.response), (1.0 - truth, self.response)):
            remove += share * np.sum(self.p * gaussian_delta(epsilon - self.loss + moved, self.mu))
            add += share * np.sum(self.q * gaussian_delta(epsilon + self.loss + moved, self.mu))
        return max(remove, add)


def check_delta(run, truth):
    """The bracket on delta has the truth in it and is narrow."""
    deltas = np.array([truth.delta(epsilon) for epsilon in EPSILONS])
    found = delta_bounds(run, epsilon=EPSILONS)
    assert (found.lower <= deltas * (1 + 1e-9)).all()
    assert (deltas <= found.upper * (1 + 1e-9)).all()
    assert (found.upper < 1.02 * found.lower).all()


def check_epsilon(run, truth):
    """The bracket on epsilon has the truth, which is returned, in it and is narrow."""
    found = epsilon_bounds(run, delta=1e-4)
    exact = optimize.brentq(lambda epsilon: np.log(truth.delta(epsilon) / 1e-4), 0.0, 20.0, xtol=1e-9)
    assert found.lower <= exact + 1e-8
    assert exact <= found.upper + 1e-8
    assert found.upper < 1.003 * found.lower
    return exact


def check_curve_and_mu(run, truth, end):
    """The curve and its mu are next to what the deltas on a grid of epsilon force, and not below."""
    grid = np.linspace(0.0, end, 40)
    on_grid = np.array([truth.delta(epsilon) for epsilon in grid])
    curve = certified(run)
    for alpha in (0.02, 0.3):
        steep = 1 - on_grid - np.exp(grid) * alpha
        flat = np.exp(-grid) * (1 - on_grid - alpha)
        # From below, since the grid is one.
        best = max(np.max(steep), np.max(flat))
        found = curve.tradeoff(alpha)
        assert best <= found.upper
        assert found.lower <= best + 2e-3
        assert 0 < found.upper - found.lower < 3e-3

    forced = 0.0
    for epsilon, delta in zip(grid, (on_grid - FAILURE) / (1 - FAILURE), strict=True):
        if delta > 1e-12:
            needed = optimize.brentq(lambda mu, e=epsilon, d=delta: gaussian_delta(e, mu) - d, 1e-3, 30.0, xtol=1e-10)
            forced = max(forced, needed)
    found = curve.mu(FAILURE)
    assert forced <= found.upper
    assert found.lower <= forced * (1 + 2e-3)
    assert found.upper < 1.01 * found.lower


def check_all(run, truth):
    """Every question's bracket has the truth in it and is narrow."""
    check_delta(run, truth)
    exact = check_epsilon(run, truth)
    check_curve_and_mu(run, truth, end=1.3 * exact)


def test_two_blocks_of_different_length():
    """Two of three steps: one of the first two, and the third, which is a Gaussian release."""
    check_all(AllocationEvent(1.3, steps_per_epoch=3, num_selected=2), Truth(1.3, 1 / 1.3))


def test_beside_every_other_kind_of_event():
    """Allocation, a Poisson step, Gaussian noise and randomized response are composed exactly."""
    events = [AllocationEvent(1.1, 2), Event(1.5, 0.3, 1), GaussianEvent(2.0), RandomizedResponseEvent(0.3)]
    check_all(Ledger(events), Truth(1.1, 0.5, (1.5, 0.3), 0.3, num=40))


def test_alone_it_agrees_with_the_composition():
    """Beside a release of next to nothing it is composed by the contour; alone the bracket is no wider."""
    for event in (RUN, AllocationEvent(0.8, 7, 2, 3), AllocationEvent(3.0, 20, 4, bins="fixed")):
        alone = np.array(epsilon_bounds(event, delta=1e-5))
        composed = np.array(epsilon_bounds(Ledger([event, RandomizedResponseEvent(1e-9)]), delta=1e-5))
        assert (alone[0] <= composed[1]) & (composed[0] <= alone[1])
        assert alone[1] - alone[0] <= composed[1] - composed[0]
        at_one_delta = epsilon_bounds(Ledger([event]), delta=np.array([1e-5, 1e-7]))
        np.testing.assert_array_equal(np.array(at_one_delta)[:, 0], alone)


def test_poisson_accounting_would_be_wrong():
    """Every example is surely in a step, where it may be in none of independent draws; and never in two."""
    allocation, poisson = AllocationEvent(0.5, 2), Event(0.5, 0.5, 2)
    assert delta_bounds(allocation, epsilon=0.0).lower > 1.2 * delta_bounds(poisson, epsilon=0.0).upper
    assert epsilon_bounds(allocation, delta=1e-2).upper < 0.8 * epsilon_bounds(poisson, delta=1e-2).lower
    # What always holds is the Gaussian release of a known step.
    assert epsilon_bounds(allocation, delta=1e-2).upper <= epsilon_bounds(GaussianEvent(0.5), delta=1e-2).upper


@pytest.mark.parametrize("bins", ["fresh", "fixed"])
def test_an_epoch_that_was_not_finished(bins):
    whole = AllocationEvent(1.0, 10, 5, bins=bins)
    begun = dataclasses.replace(whole, missing_steps=3)
    assert begun.num_steps == 47
    shorter = dataclasses.replace(whole, num_epochs=4)
    found = epsilon_bounds(begun, delta=1e-5)
    assert found.upper == epsilon_bounds(whole, delta=1e-5).upper
    assert found.lower == epsilon_bounds(shorter, delta=1e-5).lower
    curve = tradeoff_bounds(begun, alpha=0.1)
    assert curve.lower == tradeoff_bounds(whole, alpha=0.1).lower
    assert curve.upper == tradeoff_bounds(shorter, alpha=0.1).upper
    first = AllocationEvent(1.0, 10, 1, bins=bins, missing_steps=9)
    assert delta_bounds(first, epsilon=0.5).lower == 0
    assert tradeoff_bounds(first, alpha=0.25).upper == 0.75


def test_overflow_is_paid_for():
    tau = 1e-7
    silent, announced = (dataclasses.replace(RUN, overflow=tau, announced=said) for said in (False, True))
    ideal = epsilon_bounds(RUN, delta=np.array([(1e-5 - tau) / (1 - tau), 1e-5 + tau]))
    for event in (silent, announced):
        np.testing.assert_allclose(epsilon_bounds(event, delta=1e-5).upper, ideal.upper[0], rtol=1e-9)
        assert epsilon_bounds(event, delta=1e-8).upper == np.inf
    np.testing.assert_allclose(epsilon_bounds(announced, delta=1e-5).lower, ideal.lower[1], rtol=1e-9)
    assert epsilon_bounds(silent, delta=1e-5).lower < ideal.lower[1]
    two = delta_bounds(Ledger([announced, Event(2.0, 0.1, 5, overflow=tau, announced=True)]), epsilon=1e9)
    assert 2 * tau * 0.999 < two.upper < 2 * tau * 1.001


def test_a_guarantee_that_fails_beside_it():
    both = Ledger([RUN, ApproximateDPEvent(0.0, 1e-6)])
    np.testing.assert_allclose(delta_bounds(both, epsilon=30.0).upper, 1e-6, rtol=1e-6)
    assert epsilon_bounds(both, delta=1e-7).lower == np.inf


def test_without_noise():
    bare = AllocationEvent(0.0, 10, 2)
    assert epsilon_bounds(bare, delta=1e-5) == (np.inf, np.inf)
    assert delta_bounds(Ledger([bare, Event(1.0, 0.1, 2)]), epsilon=1.0) == (1.0, 1.0)
    assert tradeoff_bounds(bare, alpha=0.3) == (0.0, 0.0)
    assert mu_bounds(bare) == (np.inf, np.inf)
    begun = dataclasses.replace(bare, num_epochs=1, missing_steps=4)
    assert epsilon_bounds(begun, delta=1e-5) == (0.0, np.inf)


def test_very_little_noise_has_the_bound_without_allocation():
    tiny = AllocationEvent(0.02, 10)
    known = GaussianEvent(0.02)
    both = Ledger([tiny, GaussianEvent(1.0)])
    assert epsilon_bounds(tiny, delta=1e-5).upper == pytest.approx(epsilon_bounds(known, delta=1e-5).upper, rel=1e-6)
    whole = epsilon_bounds(Ledger([known, GaussianEvent(1.0)]), delta=1e-5).upper
    found = epsilon_bounds(both, delta=1e-5)
    assert found.lower <= found.upper == pytest.approx(whole, rel=1e-6)
    assert mu_bounds(tiny) == (0.0, pytest.approx(50.0, rel=1e-6))
    curve = tradeoff_bounds(tiny, alpha=0.1)
    assert 0 <= curve.lower <= curve.upper


TEN_STEPS = AllocationEvent(1.0, 10, announced=True)
THREE_OF_SEVEN = AllocationEvent(1.0, 7, num_selected=3, bins="fixed")


def state_after(num_steps, step=TEN_STEPS, noise=(1.0,)):
    state = init_ledger(4, step)
    for value in noise:
        state = record_steps(state, num_steps, value, 0.1, 1e-12)
    return state


def test_the_ledger_of_a_loop():
    assert ledger_from_state(state_after(0, noise=())) == Ledger([])
    with jax.enable_x64(True):
        (event,) = ledger_from_state(state_after(50)).events
        assert event == dataclasses.replace(RUN, overflow=event.overflow, announced=True)
        assert event.overflow == pytest.approx(5e-11)
        (event,) = ledger_from_state(state_after(31, THREE_OF_SEVEN)).events
    assert (event.num_epochs, event.missing_steps, event.num_steps) == (5, 4, 31)
    assert (event.num_selected, event.bins, event.announced) == (3, "fixed", False)
    with pytest.warns(UserWarning, match="10 steps of different noise multipliers"):
        (event,) = ledger_from_state(state_after(5, noise=(2.0, 1.0)))
    assert (event.noise_multiplier, event.num_epochs, event.is_exact) == (1.0, 1, False)


test_refusals = refusals(
    (lambda: epsilon_bounds(RUN, delta=1e-5, group_size=2), "leave group_size and rtol out"),
    (
        lambda: epsilon_bounds(Ledger([RUN, TruncatedPoissonEvent(1.0, 0.1, 3, 20, 4)]), delta=1e-5),
        "both Truncated",
    ),
    (lambda: certified(Ledger([RUN, UniformEvent(1.0, 0.1, 3)])), "share one neighboring relation"),
    (lambda: Ledger([RUN]).to_opacus_history(), "got AllocationEvent"),
    (lambda: AllocationEvent(1.0, 5, num_selected=6), "num_selected must be .* at most 5"),
    (lambda: AllocationEvent(1.0, 5, missing_steps=5), "missing_steps"),
    (lambda: AllocationEvent(1.0, 5, bins="poisson"), "bins"),
    (lambda: AllocationEvent(-1.0, 5), "noise_multiplier"),
    (lambda: AllocationEvent(1.0, 5, neighboring_relation=NeighboringRelation.REPLACE_ONE), "proved bound under"),
)
