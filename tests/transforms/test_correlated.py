"""`privatize` with correlated noise: its covariance, its state, its ledger, sweeps, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import correlated
from gdpjax.accounting import certified, gdp_epsilon, gdp_tradeoff
from gdpjax.auditing import audit_step
from gdpjax.ledger import CorrelatedGaussianEvent, CyclicPoissonEvent, ledger_of

SUM = gdpjax.Sensitivity(1.0)
STEPS = 12
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
    options = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 1.0,
        "key": jax.random.key(3),
        "correlation": strategy,
        "participation": PROMISE,
        "num_steps": STEPS,
    }
    return gdpjax.privatize(SUM, **{**options, **changes})


def released(tx, params, num_steps=STEPS, state=None, step=None):
    """The noise of a run on zero gradients, [num_steps, coordinates] of every leaf, and the last state."""
    state = tx.init(params) if state is None else state
    step = jax.jit(tx.update) if step is None else step
    zero = jax.tree.map(jnp.zeros_like, params)
    outputs = []
    for _ in range(num_steps):
        noise, state = step(zero, state, params)
        outputs.append(noise)
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *outputs), state


def matrix_of(strategy):
    if isinstance(strategy, correlated.Dense):
        return DENSE
    column = strategy.column(STEPS).values
    lag = np.subtract.outer(np.arange(STEPS), np.arange(STEPS))
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_noise_has_the_covariance_of_the_strategy(name):
    strategy, size = STRATEGIES[name], 60_000
    noise, _ = released(make(strategy), {"w": jnp.zeros(size), "b": jnp.zeros((2, 3))})
    inverse = np.linalg.inv(matrix_of(strategy)) * strategy.sensitivity(STEPS, PROMISE)
    expected = inverse @ inverse.T
    found = noise["w"] @ noise["w"].T / size
    # The covariance of entries i, j has the variance (E_ii E_jj + E_ij^2) / size.
    deviation = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / size)
    assert np.max(np.abs(found - expected) / deviation) < 5.0
    # Undone, the noise is that of independent draws.
    draws = np.linalg.solve(inverse, noise["w"])
    assert abs(np.std(draws) - 1) < 0.01


def test_draws_that_are_kept_are_those_that_are_made_again():
    kept, _ = released(make(STRATEGIES["buffer"]), jnp.zeros(1000))
    again, _ = released(make(STRATEGIES["regenerate"]), jnp.zeros(1000))
    np.testing.assert_allclose(kept, again, atol=1e-5)


@pytest.mark.parametrize("name", STRATEGIES)
def test_eager_jit_and_scan_agree(name):
    tx, params = make(STRATEGIES[name]), {"w": jnp.zeros(50)}
    compiled, _ = released(tx, params)
    eager, _ = released(tx, params, 4, step=tx.update)
    np.testing.assert_allclose(eager["w"], compiled["w"][:4], rtol=1e-5, atol=1e-6)

    def body(state, _):
        noise, state = tx.update({"w": jnp.zeros(50)}, state, params)
        return state, noise

    _, scanned = jax.jit(lambda state: jax.lax.scan(body, state, None, length=STEPS))(tx.init(params))
    np.testing.assert_allclose(scanned["w"], compiled["w"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_that_goes_on_from_its_state_is_the_same_run(name):
    tx, params = make(STRATEGIES[name]), {"w": jnp.zeros(40)}
    whole, _ = released(tx, params)
    first, state = released(tx, params, 5)
    saved = jax.tree.map(np.asarray, state)
    rest, _ = released(make(STRATEGIES[name]), params, STEPS - 5, state=saved)
    np.testing.assert_array_equal(np.concatenate([first["w"], rest["w"]]), whole["w"])


def test_frozen_and_integer_leaves_leave_as_zeros():
    grad_fn = gdpjax.clipped_grad(lambda p, x: jnp.vdot(p["w"] + p["f"], x), 1.0, trainable={"w": True, "f": False})
    params = {"w": jnp.ones(3), "f": jnp.ones(3)}
    tx = gdpjax.privatize(
        grad_fn,
        noise_multiplier=1.0,
        expected_batch_size=4.0,
        key=jax.random.key(0),
        correlation=STRATEGIES["banded"],
        participation=PROMISE,
        num_steps=STEPS,
    )
    state = tx.init(params)
    assert [leaf.shape for leaf in jax.tree.leaves(state.past_noise)] == [(2, 3)]
    update, _ = tx.update(grad_fn(params, jnp.ones((4, 3))), state, params)
    np.testing.assert_array_equal(update["f"], np.zeros(3))
    assert np.all(np.asarray(update["w"]) != 0)


def test_steps_beyond_the_planned_ones_release_nothing():
    noise, state = released(make(STRATEGIES["banded"]), jnp.zeros(5), STEPS + 2)
    assert np.all(np.isfinite(noise[:STEPS]))
    assert np.all(np.isnan(noise[STEPS:]))
    (event,) = ledger_of(state)
    assert event.num_steps == STEPS


def test_the_ledger_holds_one_gaussian_release():
    noise_multiplier = 2.0
    tx = make(STRATEGIES["lambda"], noise_multiplier=noise_multiplier)
    _, state = released(tx, jnp.zeros(5), 7)
    (event,) = ledger_of(state)
    assert event == CorrelatedGaussianEvent(2.0, 7, STEPS, 3, 4)
    assert certified(event).epsilon(1e-5).lower == 0.0  # fewer steps than planned
    _, state = released(tx, jnp.zeros(5))
    bracket = certified(ledger_of(state)).epsilon(1e-5)
    truth = gdp_epsilon(1e-5, 1 / noise_multiplier)
    assert bracket.lower <= truth <= bracket.upper < bracket.lower * (1 + 1e-6)


def test_only_an_upper_bound_is_not_called_exact():
    rising = correlated.BandedToeplitz([1.0, -0.9, 0.8])
    tx = make(rising, participation=correlated.MinSep(4, 1))
    _, state = released(tx, jnp.zeros(5))
    (event,) = ledger_of(state)
    assert not event.is_exact
    assert certified(event).epsilon(1e-5).lower == 0.0


def test_cyclic_poisson_is_recorded_with_its_groups():
    tx = gdpjax.privatize(
        SUM,
        noise_multiplier=1.5,
        expected_batch_size=10.0,
        key=jax.random.key(0),
        sampling="cyclic_poisson",
        sampling_prob=0.25,
        scheme={"num_groups": 3},
        correlation=STRATEGIES["banded"],
        num_steps=STEPS,
    )
    _, state = released(tx, jnp.zeros(5), 10)
    assert ledger_of(state)[0] == CyclicPoissonEvent(1.5, 0.25, 10, 3)
    event = ledger_of(state)[0]
    bracket = certified(event).epsilon(1e-5)
    assert bracket.upper == certified(1.5, 0.25, 4).epsilon(1e-5).upper
    assert certified(1.5, 0.25, 3).epsilon(1e-5).lower * 0.999 <= bracket.lower <= bracket.upper


def test_a_sweep_over_coefficients_and_noise_is_one_program():
    lams, noise, keys = jnp.linspace(0.0, 0.9, 4), jnp.linspace(1.0, 2.0, 4), jax.random.split(jax.random.key(1), 4)
    compiled = []

    def run(lam, noise_multiplier, key):
        compiled.append(1)
        tx = make(correlated.lambda_cgd(lam), noise_multiplier=noise_multiplier, key=key)

        def body(state, _):
            released, state = tx.update(jnp.zeros(500), state, jnp.zeros(500))
            return state, released

        return jax.lax.scan(body, tx.init(jnp.zeros(500)), None, length=STEPS)[1]

    swept = jax.jit(jax.vmap(run))(lams, noise, keys)
    assert len(compiled) == 1
    for i in range(4):
        tx = make(correlated.lambda_cgd(float(lams[i])), noise_multiplier=float(noise[i]), key=keys[i])
        alone, _ = released(tx, jnp.zeros(500))
        np.testing.assert_allclose(swept[i], alone, rtol=1e-5, atol=1e-5)


def test_a_shared_key_under_vmap_is_refused():
    def run(lam):
        tx = make(correlated.lambda_cgd(lam))
        return tx.update(jnp.zeros(5), tx.init(jnp.zeros(5)), jnp.zeros(5))[0]

    with pytest.raises(ValueError, match="share one noise key"):
        jax.jit(jax.vmap(run))(jnp.linspace(0.1, 0.9, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": None}, "num_steps"),
        ({"participation": None}, "participation="),
        ({"participation": "single"}, "participation="),
        ({"correlation": "bisr"}, "correlation must be a strategy"),
        ({"correlation": None}, "belong to correlated noise"),
        ({"sampling_prob": 0.1}, "leave sampling_prob out"),
        ({"sampling": "poisson"}, "takes no sampling"),
        ({"scheme": {"steps_per_epoch": 4}}, "leave scheme= out"),
        ({"noise_multiplier": lambda step: 1.0 + step}, "one noise_multiplier"),
        ({"num_steps": 0}, "num_steps"),
        ({"participation": correlated.FixedEpochs(5)}, "multiple of num_epochs"),
        ({"sampling": "cyclic_poisson", "scheme": {"num_groups": 3}, "sampling_prob": 0.1}, "leave participation= out"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(STRATEGIES["banded"], **changes)


@pytest.mark.parametrize("strategy", [correlated.BandedToeplitz([1.0, 0.5, 0.2, 0.1]), correlated.bisr(2)])
def test_noise_that_reaches_over_a_cycle_is_refused(strategy):
    with pytest.raises(ValueError, match="do not overlap"):
        make(
            strategy,
            participation=None,
            sampling="cyclic_poisson",
            sampling_prob=0.1,
            scheme={"num_groups": 3},
        )


@pytest.mark.parametrize("overflow_per_step", [1e-3, 0.1])
def test_batches_that_may_not_fit_are_refused(overflow_per_step):
    """The ledger's event of a participation has no place for them, so that epsilon would leave them out."""
    with pytest.raises(ValueError, match="overflow_per_step belongs to random batches"):
        make(correlated.lambda_cgd(0.5), overflow_per_step=overflow_per_step)


@pytest.mark.parametrize("strategy", [correlated.BandedToeplitz([1.0, 2.0]), correlated.BufferedToeplitz([0.5], [2.5])])
def test_noise_that_outgrows_its_newest_draw_is_refused(strategy):
    """After 40 steps the draw that hides a step's own sum is below the rounding of float32."""
    make(strategy, num_steps=10)
    with pytest.raises(ValueError, match="grows more than 100000 times in 40 steps"):
        make(strategy, num_steps=40)


def test_several_noise_multipliers_are_recorded_by_the_least():
    def optimizer(noise_multiplier):
        return make(STRATEGIES["banded"], noise_multiplier=noise_multiplier)

    tx = optax.inject_hyperparams(optimizer)(noise_multiplier=2.0)
    _, state = released(tx, jnp.zeros(5), 3)
    state.hyperparams["noise_multiplier"] = jnp.asarray(1.0)
    _, state = released(tx, jnp.zeros(5), STEPS - 3, state=state)
    (event,) = ledger_of(state)
    assert event.noise_multiplier == 1.0
    assert not event.is_exact


@pytest.mark.parametrize(("share", "refuted"), [(1.0, False), (0.9, True)])
def test_the_audit_sees_a_sensitivity_that_is_too_small(share, refuted, monkeypatch):
    """The best test of a run is its projection on the change that one example makes, with the noise whitened."""
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
        claimed=lambda alpha: gdp_tradeoff(alpha, 1 / noise_multiplier),
        num_releases=2**14,
        confidence=0.999,
    )
    assert report.refuted is refuted
