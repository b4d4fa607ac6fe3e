"""The certified curve of a run: the functions' answers, what follows from them, and mu with its regret."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from gdpjax import Event, Ledger
from gdpjax.accounting import (
    certified,
    delta_bounds,
    epsilon_bounds,
    mu_and_regret,
    mu_bounds,
    tradeoff_bounds,
    with_overflow,
)
from gdpjax.ledger import GaussianEvent
from gdpjax.tradeoff import CertifiedCurve

RUN = 9.4, 0.328, 2000
"""The run whose mu and regret arXiv:2503.10945 reports."""


EVENT = Event(1.0, 0.01, 1000, overflow=1e-9)


@pytest.mark.parametrize("run", [RUN, (EVENT,)], ids=["array", "event"])
def test_the_functions_are_questions_to_the_curve(run):
    """Each function of a run is a method of its curve."""
    curve = certified(*run)
    assert isinstance(curve, CertifiedCurve)
    assert curve.epsilon(1e-5) == epsilon_bounds(*run, delta=1e-5)
    assert curve.delta(1.0) == delta_bounds(*run, epsilon=1.0)
    assert curve.tradeoff(0.1) == tradeoff_bounds(*run, alpha=0.1)
    assert curve.mu() == mu_bounds(*run)


def test_the_curve_of_a_group_is_that_of_the_functions():
    """The size of the group is passed on."""
    assert certified(*RUN, group_size=2).epsilon(1e-5) == epsilon_bounds(*RUN, 1e-5, group_size=2)


@pytest.fixture(scope="module")
def of_the_paper():
    """Mu and regret of RUN."""
    return mu_and_regret(*RUN)


def test_mu_and_regret_of_the_paper(of_the_paper):
    """They are what a convolution of the loss on a grid of 2.5e-5 gives: 0.0010362."""
    mu, regret = of_the_paper
    assert mu.upper < 1.0003 * mu.lower
    assert abs(mu.lower - 1.56856) < 5e-4
    lower, upper = certified(*RUN).regret(1.56856)
    assert lower <= 0.0010362 <= upper
    assert upper < 1.02 * lower
    assert lower < regret.lower <= regret.upper < 0.0012


def test_a_run_without_sampling_is_gaussian():
    """Its attacks and its regret are those of G_mu."""
    curve = certified(GaussianEvent(0.8))
    assert curve.advantage().upper == pytest.approx(2 * ndtr(0.625) - 1, rel=1e-8)
    lower, upper = curve.bayes_success(0.5)
    assert lower <= ndtr(0.625) <= upper
    lower, upper = curve.regret(1.25)
    assert lower <= 1e-9
    assert upper < 5e-4


def test_a_run_without_privacy():
    """Without noise whoever is sampled is seen."""
    curve = certified(0.0, 0.1, 3)
    shown = 1 - 0.9**3
    assert curve.epsilon(1e-5).lower == np.inf
    assert curve.advantage().lower == pytest.approx(shown)
    assert curve.tpr(0.1).upper == pytest.approx(0.1 + shown)
    assert curve.mu().lower == np.inf
    lower, upper = curve.regret()
    assert lower <= (1 - shown) / 2 <= upper < lower + 1e-9


def test_a_run_that_releases_nothing():
    """Nobody is ever sampled: no attack is better than guessing."""
    for run in ((1.0, 0.0, 10), (Event(0.0, 0.0, 3),), (Ledger([]),)):
        curve = certified(*run)
        assert tuple(curve.advantage()) == (0, 0)
        assert tuple(curve.tpr(0.25)) == (0.25, 0.25)
        assert curve.bayes_success(0.3).upper == pytest.approx(0.7)
        assert tuple(curve.regret()) == (0, 0)


def test_wide_brackets_stay_brackets():
    """Uniform sampling and overflow: the derived brackets are as wide as what they come from, and ordered."""
    poisson = certified(1.0, 0.01, 1000)
    wide = certified(1.0, 0.01, 1000, sampling="uniform")
    assert wide.advantage().lower <= poisson.advantage().upper
    lost = certified(Event(1.0, 0.01, 1000, overflow=1e-4))
    assert lost.advantage().lower < poisson.advantage().lower < poisson.advantage().upper < lost.advantage().upper
    for curve in (wide, lost):
        mu = 0.6
        lower, upper = curve.regret(mu)
        assert lower <= poisson.regret(mu).upper
        assert upper >= poisson.regret(mu).lower
        assert lower <= upper


@pytest.mark.parametrize("announced", [False, True])
def test_overflow_around_a_curve_is_that_of_an_event(announced):
    """Each answer of the wrapped curve is that of the event with the overflow."""
    run = 2.0, 0.1, 20
    around = with_overflow(certified(*run), 1e-7, announced=announced)
    event = certified(Event(*run, overflow=1e-7, announced=announced))
    assert isinstance(around, CertifiedCurve)
    questions = {"epsilon": [1e-8, 1e-5], "delta": [0.0, 1.0], "tradeoff": [0.0, 0.3], "mu": 1e-5, "regret": 0.6}
    for question, argument in questions.items():
        found = getattr(around, question)(argument)
        expected = getattr(event, question)(argument)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert with_overflow(around, 0.0) is around


def test_overflow_of_a_group():
    """The bracket with overflow is around that without, and a pair loses more than one person."""
    alone = certified(1.0, 0.01, 1000).epsilon(1e-5)
    pair = certified(1.0, 0.01, 1000, group_size=2)
    found = with_overflow(pair, 1e-7, announced=True).epsilon(1e-5)
    without = pair.epsilon(1e-5)
    assert alone.upper < found.lower < without.lower < without.upper < found.upper


def test_what_is_no_curve_or_no_probability_is_refused():
    """The overflow is a probability below 1."""
    pair = certified(1.0, 0.01, 1000, group_size=2)
    for curve, overflow in [(1.0, 1e-7), (pair, 1.0), (pair, -1e-9)]:
        with pytest.raises(ValueError, match=r"CertifiedCurve|overflow"):
            with_overflow(curve, overflow)


def test_the_regret_of_several_mu():
    """It is an array, of the regrets one by one."""
    for curve in (certified(1.0, 0.01, 100), certified(Event(1.0, 0.01, 100, overflow=1e-9))):
        lower, upper = curve.regret([0.2, 0.4])
        assert lower.shape == upper.shape == (2,)
        assert (lower[1], upper[1]) == tuple(curve.regret(0.4))


def test_arrays_of_runs(of_the_paper):
    """Every answer about an array of runs is an array, of the answers one by one."""
    noise = np.array([9.4, 12.0])
    _, regret = mu_and_regret(noise, 0.328, 2000)
    assert regret.lower.shape == (2,)
    assert regret.upper[0] == of_the_paper[1].upper
    curve = certified(noise, 0.328, 2000)
    assert curve.bayes_success([0.5, 0.4]).lower.shape == (2,)
    assert curve.advantage().lower.shape == (2,)


def test_incomplete_calls_are_refused():
    for call in (
        lambda: certified(1.0),
        lambda: certified(-1.0, 0.1, 10),
        lambda: certified(1.0, 0.1, 10.5),
        lambda: certified(Event(1.0, 0.1, 10), 0.1),
        lambda: certified(1.0, 0.1, 10, sampling="uniform", group_size=2),
        lambda: certified("a run", 0.1, 10),
        lambda: mu_and_regret(1.0, 2.0, 10),
    ):
        with pytest.raises(ValueError, match=r"must|missing|of a Ledger|available|outside"):
            call()


def test_attack_risks_in_compiled_code():
    """Bounds of a traced run contain those of the same run outside."""

    def risks(noise):
        curve = certified(noise, 0.01, 1000)
        return curve.tpr(0.01), curve.bayes_success(0.3), curve.bayes_success(1.0), curve.advantage()

    outside = risks(1.5)
    for inside in (jax.jit(risks)(1.5), jax.tree.map(lambda end: end[1], jax.vmap(risks)(jnp.array([0.9, 1.5])))):
        for wide, narrow in zip(inside, outside, strict=True):
            assert float(wide.lower) <= narrow.lower
            assert narrow.upper <= float(wide.upper)
            assert float(wide.upper) - float(wide.lower) < narrow.upper - narrow.lower + 2e-6
