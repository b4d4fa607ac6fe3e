"""`privatize` with correlated noise: its covariance, its state, its ledger, sweeps, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import correlated
from gdpjax.accounting import certified, gdp_epsilon
from gdpjax.auditing import audit_step
from gdpjax.ledger import CorrelatedGaussianEvent, CyclicPoissonEvent, ledger_of
from gdpjax.sampling import CyclicPoisson, Poisson, Promised
from gdpjax.tradeoff import Gaussian
from tests.transforms.recorded import recorded

SUM = gdpjax.Sensitivity(1.0)
STEPS = 12
ZEROS = jnp.zeros(5)
PROMISE = correlated.MinSep(3, 4)
DENSE = np.eye(STEPS) + np.tril(np.full((STEPS, STEPS), 0.2), -1)
STRATEGIES = {
    "lambda": correlated.lambda_cgd(0.5),
    "regenerate": correlated.BandedInverse([1.0, -0.5, -0.125], memory="regenerate"),
    "buffer": correlated.BandedInverse([1.0, -0.5, -0.125], memory="buffer"),
    "banded": correlated.BandedToeplitz([1.0, 0.5, 0.3]),
    "buffered": correlated.BufferedToeplitz([0.9, 0.5], [0.2, 0.3]),
    "dense": correlated.Dense(DENSE),
}


def make(strategy, **changes):
    sizes = {"expected_batch_size": 1.0, "num_steps": STEPS, "participation": PROMISE}
    sizes = {name: changes.pop(name, value) for name, value in sizes.items()}
    options = {"noise_multiplier": 1.0, "batches": Promised(**sizes), "key": jax.random.key(3), "noise": strategy}
    return gdpjax.privatize(SUM, **{**options, **changes})


SIZE = 16_000
PARAMS = np.zeros(SIZE, np.float32)


def released(step, state, num_steps=STEPS):
    """The noise of some steps on zero gradients, [num_steps, SIZE], and the last state."""
    outputs = []
    for _ in range(num_steps):
        noise, state = step(PARAMS, state, PARAMS)
        outputs.append(np.asarray(noise))
    return np.stack(outputs), state


@functools.cache
def compiled(name):
    """A strategy's transformation, its compiled step for `PARAMS`, and the noise of a whole run."""
    tx = make(STRATEGIES[name])
    step = jax.jit(tx.update)
    noise, _ = released(step, tx.init(PARAMS))
    return tx, step, noise


def matrix_of(strategy):
    if isinstance(strategy, correlated.Dense):
        return DENSE
    column = strategy.column(STEPS).values
    lag = np.subtract.outer(np.arange(STEPS), np.arange(STEPS))
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_noise_has_the_covariance_of_the_strategy(name):
    strategy, noise = STRATEGIES[name], compiled(name)[2].astype(np.float64)
    inverse = np.linalg.inv(matrix_of(strategy)) * strategy.sensitivity(STEPS, PROMISE)
    expected = inverse @ inverse.T
    found = noise @ noise.T / SIZE

    # The covariance of entries i, j has the variance (E_ii E_jj + E_ij^2) / SIZE.
    variances = np.diag(expected)
    deviation = np.sqrt((np.outer(variances, variances) + expected**2) / SIZE)
    assert np.max(np.abs(found - expected) / deviation) < 5.0

    # Undone, the noise is that of independent draws.
    draws = np.linalg.solve(inverse, noise)
    assert abs(np.std(draws) - 1) < 0.01


def test_draws_that_are_kept_are_those_that_are_made_again():
    np.testing.assert_allclose(compiled("buffer")[2], compiled("regenerate")[2], atol=1e-5)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_that_goes_on_from_its_state_is_the_same_run(name):
    tx, step, whole = compiled(name)
    first, state = released(step, tx.init(PARAMS), 5)
    saved = jax.tree.map(np.array, state)
    rest, _ = released(step, saved, STEPS - 5)
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole)


def test_frozen_and_integer_leaves_leave_as_zeros():
    grad_fn = gdpjax.clipped_grad(lambda p, x: jnp.vdot(p["w"] + p["f"], x), 1.0, trainable={"w": True, "f": False})
    params = {"w": jnp.ones(3), "f": jnp.ones(3)}
    tx = gdpjax.privatize(
        grad_fn,
        noise_multiplier=1.0,
        batches=Promised(4.0, STEPS, PROMISE),
        key=jax.random.key(0),
        noise=STRATEGIES["banded"],
    )
    state = tx.init(params)
    assert [leaf.shape for leaf in jax.tree.leaves(state.past_noise)] == [(2, 3)]

    @jax.jit
    def step(state):
        return tx.update(grad_fn(params, jnp.ones((4, 3))), state, params)

    update, _ = step(state)
    np.testing.assert_array_equal(update["f"], np.zeros(3))
    assert np.all(np.asarray(update["w"]) != 0)


def test_steps_beyond_the_planned_ones_release_nothing():
    tx, step, _ = compiled("banded")
    noise, state = released(step, tx.init(PARAMS), STEPS + 2)
    assert np.all(np.isfinite(noise[:STEPS]))
    assert np.all(np.isnan(noise[STEPS:]))
    (event,) = ledger_of(state)
    assert event.num_steps == STEPS


def test_a_run_that_goes_on_with_another_strategy_has_no_ledger():
    """It would take back noise that was added at another scale; neither strategy has anything in its state."""
    state, other = make(correlated.lambda_cgd(0.5)).init(ZEROS), make(correlated.lambda_cgd(0.9)).init(ZEROS)
    restored = jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(state))
    with pytest.raises(ValueError, match="recorded for other steps"):
        ledger_of(restored)
    assert len(ledger_of(other)) == 0


def test_the_ledger_holds_one_gaussian_release():
    noise_multiplier = 2.0
    tx = make(STRATEGIES["lambda"], noise_multiplier=noise_multiplier)
    (event,) = recorded(tx, ZEROS, 7)
    assert event == CorrelatedGaussianEvent(2.0, 7, STEPS, 3, 4)
    assert certified(event).epsilon(1e-5).lower == 0.0  # fewer steps than planned
    bracket = certified(recorded(tx, ZEROS, STEPS)).epsilon(1e-5)
    truth = gdp_epsilon(1e-5, 1 / noise_multiplier)
    assert bracket.lower <= truth <= bracket.upper < bracket.lower * (1 + 3e-6)


def test_only_an_upper_bound_is_not_called_exact():
    rising = correlated.BandedToeplitz([1.0, -0.9, 0.8])
    (event,) = recorded(make(rising, participation=correlated.MinSep(4, 1)), ZEROS, STEPS)
    assert not event.is_exact
    assert certified(event).epsilon(1e-5).lower == 0.0


def test_cyclic_poisson_is_recorded_with_its_groups():
    batches = CyclicPoisson(120, 10, STEPS, num_groups=3, capacity=41)
    tx = gdpjax.privatize(SUM, 1.5, batches, jax.random.key(0), noise=STRATEGIES["banded"])
    (event,) = recorded(tx, ZEROS, 10)
    assert event == CyclicPoissonEvent(1.5, 0.25, 10, 3, overflow=event.overflow)
    assert event.overflow < 1e-30
    bracket = certified(event).epsilon(1e-5)
    assert bracket.upper == pytest.approx(certified(1.5, 0.25, 4).epsilon(1e-5).upper, rel=1e-12)
    assert certified(1.5, 0.25, 3).epsilon(1e-5).lower * 0.999 <= bracket.lower <= bracket.upper


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"participation": None}, "participation must be"),
        ({"noise": "bisr"}, "noise must be an IndependentGaussian"),
        ({"noise": gdpjax.IndependentGaussian()}, "only correlated noise is accounted for"),
        ({"batches": Poisson(100, 10, 20)}, "correlated noise goes with batches that promise how often"),
        ({"noise_multiplier": lambda step: 1.0 + step}, "one noise_multiplier"),
        ({"participation": correlated.FixedEpochs(5)}, "multiple of num_epochs"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(STRATEGIES["banded"], **changes)


@pytest.mark.parametrize(
    ("strategy", "got"),
    [(correlated.BandedToeplitz([1.0, 0.5, 0.2, 0.1]), "one of 4"), (correlated.bisr(2), "an object of")],
)
def test_noise_that_reaches_over_a_cycle_is_refused(strategy, got):
    with pytest.raises(ValueError, match=f"do not overlap.*got {got}"):
        make(strategy, batches=CyclicPoisson(100, 10, STEPS, num_groups=3))


@pytest.mark.parametrize("strategy", [correlated.BandedToeplitz([1.0, 2.0]), correlated.BufferedToeplitz([0.5], [2.5])])
def test_noise_that_outgrows_its_newest_draw_is_refused(strategy):
    """After 40 steps the draw that hides a step's own sum is below the rounding of float32."""
    make(strategy, num_steps=10)
    with pytest.raises(ValueError, match="grows more than 100000 times in 40 steps"):
        make(strategy, num_steps=40)


@pytest.mark.parametrize(("num_steps", "is_noised"), [(10, True), (40, False)])
def test_traced_noise_that_outgrows_its_newest_draw_is_nan(num_steps, is_noised):
    @jax.jit
    def first_release(coefficients):
        tx = make(correlated.BandedToeplitz(coefficients), num_steps=num_steps)
        return tx.update(ZEROS, tx.init(ZEROS), ZEROS)[0]

    assert np.all(np.isfinite(first_release(jnp.array([1.0, 2.0]))) == is_noised)


def test_several_noise_multipliers_are_recorded_by_the_least():
    def optimizer(noise_multiplier):
        return make(STRATEGIES["regenerate"], noise_multiplier=noise_multiplier)

    tx = optax.inject_hyperparams(optimizer)(noise_multiplier=2.0)
    step = jax.jit(lambda state: tx.update(ZEROS, state, ZEROS)[1])
    state = tx.init(ZEROS)
    for number in range(STEPS):
        if number == 3:
            state.hyperparams["noise_multiplier"] = jnp.asarray(1.0)
        state = step(state)
    with pytest.warns(UserWarning, match="share one event"):
        (event,) = ledger_of(state)
    assert event.noise_multiplier == 1.0
    assert not event.is_exact


@pytest.mark.parametrize(
    ("share", "refuted", "num_releases"),
    [(1.0, False, 2**11), (0.7, True, 2**11), pytest.param(0.9, True, 2**14, marks=pytest.mark.slow)],
)
def test_the_audit_sees_a_sensitivity_that_is_too_small(share, refuted, num_releases, monkeypatch):
    """The best test of a run is its projection on the change that one example makes, with the noise whitened.

    `test_the_noise_has_the_covariance_of_the_strategy` sees a sensitivity that is wrong by two hundredths.
    """
    strategy, noise_multiplier = STRATEGIES["banded"], 1.0
    stated = correlated.BandedToeplitz.sensitivity
    monkeypatch.setattr(correlated.BandedToeplitz, "sensitivity", lambda *args: share * stated(*args))
    matrix = matrix_of(strategy)
    taking_part = np.zeros(STEPS)
    taking_part[[0, 4, 8]] = 1.0
    projection = jnp.asarray(taking_part @ matrix.T @ matrix, jnp.float32)

    def release(key, included):
        tx = make(strategy, noise_multiplier=noise_multiplier, key=key)

        def body(state, gradient):
            noisy, state = tx.update(gradient, state, jnp.zeros(()))
            return state, noisy

        gradients = jnp.asarray(taking_part, jnp.float32) * jnp.asarray(included, jnp.float32)
        return projection @ jax.lax.scan(body, tx.init(jnp.zeros(())), gradients)[1]

    report = audit_step(
        release,
        jax.random.key(5),
        delta=1e-5,
        claimed=Gaussian(1 / noise_multiplier),
        num_releases=num_releases,
        confidence=0.999,
    )
    assert report.refuted is refuted
