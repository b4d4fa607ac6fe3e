"""What is computed where a program is lowered for a TPU: on its host in float64, by a callback, or there in float32.

No TPU is needed. The branch for one is chosen on the CPU, where all of its program can be seen and run.
"""

import jax
import mpmath as mp
import numpy as np
import pytest

from gdpjax import accounting, mechanisms, tradeoff

KEY = jax.random.key(0)
NOISE = np.float32([0.9, 1.4])
DELTA = np.float32([1e-5, 1e-3])
EPSILON = np.float32([0.3, 1.0])
ALPHA = np.float32([0.05, 0.4])
ORDERS = np.float32([1.5, 8.0])
RUN = (NOISE, np.float32(0.01), np.float32(1000.0))


def moments(sampling):
    return lambda *run: accounting.moments_accountant_epsilon(*run, sampling=sampling)


def rdp(sampling):
    return lambda noise, prob: accounting.rdp_subsampled_gaussian(noise, prob, [2.5, 8.0], sampling=sampling)


def subsampled(mu):
    return tradeoff.subsample(tradeoff.Gaussian(mu), 0.1)


ACCOUNTING = {
    "gdp_delta": (accounting.gdp_delta, EPSILON, NOISE),
    "gdp_log_delta": (accounting.gdp_log_delta, EPSILON, NOISE),
    "gdp_epsilon": (accounting.gdp_epsilon, DELTA, NOISE),
    "gdp_mu": (accounting.gdp_mu, EPSILON, DELTA),
    "gdp_compose": (accounting.gdp_compose, NOISE),
    "clt_mu_poisson": (accounting.clt_mu_poisson, *RUN),
    "clt_mu_uniform": (accounting.clt_mu_uniform, *RUN),
    "clt_epsilon": (accounting.clt_epsilon, *RUN, DELTA),
    "moments": (moments("poisson"), *RUN, DELTA),
    "moments of uniform batches": (moments("uniform"), *RUN, DELTA),
    "rdp": (rdp("poisson"), *RUN[:2]),
    "rdp of uniform batches": (rdp("uniform"), *RUN[:2]),
    "rdp_epsilon": (accounting.rdp_epsilon, np.ones((2, 2), np.float32), ORDERS, DELTA),
    "mean_num_runs": (accounting.mean_num_runs, NOISE, np.float32(0.1)),
    "gamma_for_mean_num_runs": (accounting.gamma_for_mean_num_runs, np.float32([10.0, 3.0]), NOISE),
    "tuning_epsilon": (lambda *run: accounting.tuning_epsilon(*run, eta=1.0, gamma=0.1), *RUN, DELTA),
    "tuning_epsilon of choices": (
        lambda *run: accounting.tuning_epsilon(*run, 1e-5, eta=1.0, gamma=0.1, axis=0),
        *RUN,
    ),
    "epsilon_bounds": (lambda noise: accounting.epsilon_bounds(noise, 0.01, 100, 1e-5), NOISE),
}
CURVES = {
    "Gaussian": tradeoff.Gaussian,
    "Laplace": tradeoff.Laplace,
    "ApproximateDP": lambda mu: tradeoff.ApproximateDP(mu, 1e-5),
    "subsample": subsampled,
    "one direction": lambda mu: subsampled(mu).one_direction,
    "inverse": lambda mu: subsampled(mu).one_direction.inverse(),
    "symmetrize": lambda mu: tradeoff.symmetrize(subsampled(mu).one_direction),
    "group": lambda mu: tradeoff.group(tradeoff.Laplace(mu), 2),
}
MU = np.float32(1.0)
QUESTIONS = {
    **{name: (lambda mu, alpha, curve=curve: curve(mu)(alpha), MU, ALPHA) for name, curve in CURVES.items()},
    "slope": (lambda mu, alpha: subsampled(mu).slope(alpha), MU, ALPHA),
    "delta": (lambda mu, epsilon: tradeoff.delta(subsampled(mu), epsilon), MU, EPSILON),
    "epsilon": (lambda mu, delta: tradeoff.epsilon(subsampled(mu), delta), MU, DELTA),
    "epsilon by search": (lambda mu, delta: tradeoff.epsilon(tradeoff.Laplace(mu), delta), MU, DELTA),
    "points": (lambda beta, alpha: tradeoff.PiecewiseLinear([0.0, 0.2, 1.0], [1.0, beta, 0.0])(alpha), ALPHA[1], ALPHA),
}
PROGRAMS = {**ACCOUNTING, **QUESTIONS}


def choose_tpu(monkeypatch):
    """Take the branch that a TPU gets."""

    def of_tpu(*arguments, tpu=None, default=None, **others):
        return (tpu or default)(*arguments)

    monkeypatch.setattr(jax.lax, "platform_dependent", of_tpu)


@pytest.fixture
def on_a_tpu(monkeypatch):
    choose_tpu(monkeypatch)


def close(answer, expected, rtol=2e-7):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=0), answer, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_float64_is_in_a_program_for_a_tpu(on_a_tpu, name):
    function, *arguments = PROGRAMS[name]
    program = jax.jit(lambda *arguments: function(*arguments)).lower(*arguments).as_text()
    assert "f64" not in program


IN_FLOAT32 = [name for name in ACCOUNTING if name.startswith(("gdp", "clt"))]


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_gaussian_privacy_needs_no_host(name):
    """Nor does its program for a TPU hold float64; for a CPU it holds nothing but float64, as before."""
    function, *arguments = PROGRAMS[name]

    def text(platform):
        traced = jax.jit(lambda *arguments: function(*arguments)).trace(*arguments)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    program = text("tpu")
    assert "f64" not in program
    assert "callback" not in program
    assert "f64" in text("cpu")


def in_float32(function, *arguments):
    return np.asarray(jax.jit(lambda *arguments: function(*arguments))(*arguments), np.float64)


# Settings (x, mu) of a mechanism: where its tail is, and how private.
X, PRIVACY = (axis.ravel() for axis in np.meshgrid(np.linspace(-5.03, 11.27, 18), np.geomspace(1e-3, 50, 10)))
PRIVACY = PRIVACY.astype(np.float32)
LOSSES = np.clip(PRIVACY * (X + PRIVACY / 2), 0, 700).astype(np.float32)


def exact_delta(epsilon, mu):
    epsilon, mu = mp.mpf(epsilon), mp.mpf(mu)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.fixture(scope="module")
def deltas():
    """Return the exact deltas of `LOSSES`, where they are numbers of float32, as float64."""
    with mp.workdps(400):
        found = [exact_delta(float(e), float(mu)) for e, mu in zip(LOSSES, PRIVACY, strict=True)]
        logarithms = [float(mp.log(delta)) for delta in found]
    return np.array([float(delta) for delta in found]), np.array(logarithms)


def test_float32_delta_against_mpmath(on_a_tpu, deltas):
    exact, log_exact = deltas
    is_normal = exact > 1e-36
    found = in_float32(accounting.gdp_delta, LOSSES, PRIVACY)
    np.testing.assert_allclose(found[is_normal], exact[is_normal], rtol=1e-6)
    np.testing.assert_allclose(in_float32(accounting.gdp_log_delta, LOSSES, PRIVACY), log_exact, rtol=5e-6)


def test_float32_inverses_against_mpmath(on_a_tpu, deltas):
    """The residual in delta is held against its slope; epsilon has an error of its own, relative to mu, near 0."""
    delta = deltas[0].astype(np.float32)
    usable = (delta > 1e-30) & (delta < 0.9)
    delta, mu, epsilon = delta[usable], PRIVACY[usable], LOSSES[usable]
    epsilon_found = in_float32(accounting.gdp_epsilon, delta, mu)
    mu_found = in_float32(accounting.gdp_mu, epsilon, delta)
    with mp.workdps(60):
        for i, exact in enumerate(map(float, delta)):
            e, m = map(float, (epsilon[i], mu[i]))

            # One step of Newton's method from the answers, by the closed forms of the derivatives.
            y = mp.mpf(epsilon_found[i]) / m + mp.mpf(m) / 2
            slope = mp.exp(epsilon_found[i]) * mp.ncdf(-y)
            move = (exact_delta(epsilon_found[i], m) - exact) / slope
            if epsilon_found[i] > 0:
                assert abs(move) < 1e-5 * epsilon_found[i] + 1e-6 * m
            move = (exact_delta(e, mu_found[i]) - exact) / mp.npdf(e / mu_found[i] - mu_found[i] / 2)
            assert abs(move) < 1e-5 * mu_found[i]


def test_float32_clt_against_float64(on_a_tpu):
    rng = np.random.default_rng(0)
    noise, prob, delta = (
        np.exp(rng.uniform(*np.log(span), 3000)).astype(np.float32) for span in ((0.3, 50), (1e-5, 1), (1e-30, 0.9))
    )
    steps = np.exp(rng.uniform(0, np.log(1e6), 3000)).astype(np.int32)
    for sampling in ("poisson", "uniform"):
        mu_of = accounting.clt_mu_poisson if sampling == "poisson" else accounting.clt_mu_uniform
        mu = mu_of(noise, prob, steps)
        np.testing.assert_allclose(in_float32(mu_of, noise, prob, steps), mu, rtol=2e-6)

        def epsilon_of(*run, sampling=sampling):
            return accounting.clt_epsilon(*run, sampling=sampling)

        exact = epsilon_of(noise, prob, steps, delta)
        error = np.abs(in_float32(epsilon_of, noise, prob, steps, delta) - exact)
        assert np.all(error <= 1e-5 * exact + 2e-6 * mu)


def test_float32_at_the_ends(on_a_tpu):
    """What is no number of float32 is NaN if traced, and sent to the host if known."""
    mus = np.float32([0.0, np.inf])
    np.testing.assert_array_equal(in_float32(accounting.gdp_delta, np.float32(1), mus), [0, 1])
    np.testing.assert_array_equal(in_float32(accounting.gdp_epsilon, np.float32(1e-5), mus), [0, np.inf])
    assert np.all(np.isnan(in_float32(accounting.gdp_epsilon, np.float32([0, 1, np.nan]), MU)))
    tiny = jax.jit(lambda mu: accounting.gdp_epsilon(1e-100, mu))(MU)
    assert tiny == pytest.approx(accounting.gdp_epsilon(1e-100, 1.0), rel=1e-7)


def test_an_upper_bound_is_rounded_up_on_the_host(on_a_tpu):
    noise = np.linspace(0.8, 4.0, 64, dtype=np.float32)
    bound = jax.jit(lambda noise: accounting.moments_accountant_epsilon(noise, 0.01, 1000, 1e-5))(noise)
    exact = accounting.moments_accountant_epsilon(noise.astype(np.float64), 0.01, 1000, 1e-5)
    assert bound.dtype == np.float32
    assert np.all(np.asarray(bound, np.float64) >= exact)
    close(bound, exact)


DIFFERENTIATED = ["gdp_delta", "rdp", "gdp_compose", "Gaussian", "points"]


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_are_those_of_the_cpu(monkeypatch, name):
    function, *arguments = PROGRAMS[name]
    places = tuple(range(len(arguments)))

    def forward_and_back():
        forward = jax.jit(jax.jacfwd(function, places))(*arguments)
        back = jax.jit(jax.jacrev(function, places))(*arguments)
        return forward, back

    expected = forward_and_back()
    choose_tpu(monkeypatch)
    close(forward_and_back(), expected, rtol=2e-6)


def scan_of_deltas(mu):
    return jax.lax.scan(lambda mu, _: (mu + accounting.gdp_delta(1.0, mu), mu), mu, None, length=3)[0]


COMPILED = {
    "vmap over arrays of several ranks": (jax.vmap(lambda mu, e: accounting.gdp_delta(e, mu)), NOISE, np.ones((2, 3))),
    "vmap of points": (jax.vmap(QUESTIONS["points"][0]), ALPHA, ALPHA),
    "hessian": (jax.hessian(lambda mu: accounting.gdp_delta(1.0, mu)), MU),
    "derivative of a scan": (jax.grad(scan_of_deltas), MU),
    "whole numbers": (jax.grad(lambda noise, n: accounting.clt_mu_poisson(noise, 0.01, n)), MU, np.int32(1000)),
    "outside the range": (accounting.gdp_delta, np.float32([-1.0, 1.0]), MU),
}


@pytest.mark.parametrize("name", COMPILED)
def test_transformations_are_those_of_the_cpu(monkeypatch, name):
    function, *arguments = COMPILED[name]
    expected = jax.jit(lambda *arguments: function(*arguments))(*arguments)
    choose_tpu(monkeypatch)
    close(jax.jit(lambda *arguments: function(*arguments))(*arguments), expected, rtol=2e-6)


def test_known_numbers_are_answered_before_the_program_runs(on_a_tpu):
    """So no step of a loop waits for them; an upper bound is rounded up nevertheless."""

    noise = np.linspace(1.0, 2.0, 20)

    def scaled(x):
        return x * accounting.rdp_subsampled_gaussian(noise, 0.01, 8.0)

    program = jax.jit(scaled).lower(MU).as_text()
    assert "callback" not in program
    bound = np.asarray(jax.jit(scaled)(MU), np.float64)
    exact = accounting.rdp_subsampled_gaussian(noise, 0.01, 8.0)
    assert np.all((exact <= bound) & (bound <= exact * (1 + 2e-7)))


def test_the_moments_accountant_of_known_numbers_is_rounded_up_within_a_program():
    """Found by a reader of the code: as float64 the number was rounded to the nearest where it met a traced one."""
    run = (1.3, 256 / 60000, 3516, 1e-5)
    within = jax.jit(lambda zero: zero + accounting.moments_accountant_epsilon(*run))(np.float32(0))
    assert float(within) >= accounting.moments_accountant_epsilon(*run)


def test_traced_and_known_sampling_probabilities_draw_the_same_examples():
    values = np.ones((1000, 1), np.float32)

    def draw(p):
        mechanism = mechanisms.PoissonSubsampled(mechanisms.GaussianMechanism(1e-9), p)
        return mechanism.sample(KEY, values, 1.0)

    p = np.float32(0.25)
    np.testing.assert_allclose(jax.jit(draw)(p), draw(p), rtol=1e-6)
    np.testing.assert_allclose(draw(np.float32(1.0)), [1000.0], rtol=1e-6)
    np.testing.assert_allclose(draw(np.float32(0.0)), [0.0], atol=1e-6)
