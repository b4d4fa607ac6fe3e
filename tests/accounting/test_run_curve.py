"""The certified curve of a run: the functions' answers, what follows from them, and mu with its regret."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
        assert curve.epsilon(1e-5) == curve.delta(0.0) == (0, 0)
        assert tuple(curve.advantage()) == (0, 0)
        assert tuple(curve.tpr(0.25)) == (0.25, 0.25)
        assert curve.bayes_success(0.3).upper == pytest.approx(0.7)
        assert tuple(curve.regret()) == (0, 0)


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
