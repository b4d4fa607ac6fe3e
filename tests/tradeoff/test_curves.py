"""Trade-off curves by themselves: values against mpmath, axioms, pytrees, gradients, refusals."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpjax.tradeoff import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    biconjugate,
    convex_conjugate,
    delta,
    epsilon,
    from_probabilities,
    group,
    inverse,
    mixture,
    parallel,
    subsample,
    symmetrize,
)

ALPHA = np.array([0.0, 1e-9, 1e-4, 0.03, 0.2, 0.37, 0.5, 0.8, 0.999, 1.0])
SKEW = PiecewiseLinear([0.0, 0.1, 0.5, 1.0], [0.95, 0.4, 0.1, 0.0])
CURVES = {
    "gaussian": Gaussian(1.3),
    "laplace": Laplace(0.8),
    "approximate": ApproximateDP(0.7, 0.05),
    "identity": Identity(),
    "polygon": SKEW,
    "mixture": mixture(Gaussian(1.5), 0.3),
    "inverse": inverse(mixture(Gaussian(1.5), 0.3)),
    "subsampled": subsample(Gaussian(1.5), 0.3),
    "subsampled_laplace": subsample(Laplace(1.5), 0.3),
    "subsampled_pair": subsample(ApproximateDP(1.5, 0.1), 0.3),
    "group": group(ApproximateDP(0.5, 0.01), 3),
    "hull": biconjugate(Gaussian(1.0), Laplace(1.2)),
    "symmetrized": symmetrize(mixture(SKEW, 0.4)),
}

# Other kinds are made of the same parts: the inverse of a mixture is the mixture, and two kinds are subsampled.
SLOW = ("mixture", "subsampled_laplace", "subsampled_pair")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CURVES]


POINTS = 1024


def at(function, x):
    """``function`` at points [n], so many at a time that it is compiled once for each kind of curve."""
    rows = np.pad(x, (0, -x.size % POINTS), mode="edge").reshape(-1, POINTS)
    return np.concatenate([function(row) for row in rows])[: x.size]


def phi_inverse(p):
    return -mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(p)) if p > 1e-5 else mp.findroot(lambda x: mp.ncdf(x) - p, -6.0)


def test_gaussian_and_laplace_against_thirty_digits():
    with mp.workdps(30):
        for a in ALPHA[1:-1]:
            exact = mp.ncdf(-phi_inverse(mp.mpf(float(a))) - mp.mpf("1.3"))
            assert Gaussian(1.3)(a) == pytest.approx(float(exact), rel=1e-13)
            theta, x = mp.mpf(0.8), mp.mpf(float(a))  # T = F(F^-1(1 - a) - theta) for the Laplace law F
            upper = -mp.log(2 * x) if x < 0.5 else mp.log(2 * (1 - x))
            moved = upper - theta
            exact = mp.exp(moved) / 2 if moved < 0 else 1 - mp.exp(-moved) / 2
            assert Laplace(0.8)(a) == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_axioms(name):
    curve = CURVES[name]
    x = np.concatenate([[0.0], np.geomspace(1e-8, 0.5, 150), 1.0 - np.geomspace(0.5, 1e-8, 150)[1:], [1.0]])
    y = at(curve, x)
    assert np.all((y >= 0) & (y <= 1 - x))
    assert y[-1] == 0
    assert np.all(np.diff(y) <= 1e-15)
    slopes = np.diff(y) / np.diff(x)
    assert np.all(np.diff(slopes) >= -1e-7 * (1 + np.abs(slopes[1:])))


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_the_derivative(name):
    curve, step = CURVES[name], 1e-6
    x = np.array([0.011, 0.123, 0.291, 0.413, 0.61, 0.77, 0.9])
    finite = (at(curve, x + step) - at(curve, x - step)) / (2 * step)
    np.testing.assert_allclose(curve.slope(x), finite, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_inverse_and_symmetry(name):
    curve = CURVES[name]
    back = inverse(curve)
    x = np.linspace(0.02, 0.9, 23)
    inner = x[x < curve(0.0)]
    np.testing.assert_allclose(at(curve, at(back, inner)), inner, atol=1e-12)
    assert curve.is_symmetric() == (back is curve)
    if curve.is_symmetric():
        np.testing.assert_allclose(at(back, x), at(curve, x))
    else:
        assert np.max(np.abs(at(back, x) - at(curve, x))) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_conjugate_and_biconjugate(name):
    """f* is the supremum of the definition, and f** = f."""
    curve = CURVES[name]
    x = np.concatenate([[0.0], np.geomspace(1e-12, 0.5, 4000), 1 - np.geomspace(0.5, 1e-12, 4000), [1.0]])
    y = -np.exp(np.linspace(-4, 4, 33))
    values = at(curve, x)
    brute = np.max(y[:, None] * x - values, axis=1)
    got = at(functools.partial(convex_conjugate, curve), y)
    assert np.all(got >= brute - 1e-13)
    np.testing.assert_allclose(got, brute, atol=2e-3)  # the brute force misses the kinks
    assert convex_conjugate(curve, 0.7) == 0.7
    # The supremum over slopes, among which are those at which it is attained.
    alpha = ALPHA[2:-1]
    slopes = np.append(-np.exp(np.linspace(-10, 10, 1000)), curve.slope(alpha))
    conjugate = at(functools.partial(convex_conjugate, curve), slopes)
    again = np.max(slopes * alpha[:, None] - conjugate, axis=1)
    assert np.all(again <= at(curve, alpha) + 1e-13)
    np.testing.assert_allclose(again, at(curve, alpha), atol=2e-4)
    assert biconjugate(curve) is curve


@pytest.mark.parametrize("name", NAMES)
def test_delta_and_epsilon_are_inverse_to_each_other(name):
    curve = CURVES[name]
    grid = np.array([0.0, 0.05, 0.3, 0.45])
    deltas = delta(curve, grid)
    assert np.all(np.diff(deltas) <= 0)
    strict = (grid > 0) & (deltas > delta(curve, grid + 1e-3))
    np.testing.assert_allclose(epsilon(curve, np.minimum(deltas, 0.99))[strict], grid[strict], rtol=1e-9)
    # the statement holds for both orders of the two laws: f and f^-1 are both above f_{epsilon, delta}
    x = np.linspace(0, 1, 101)
    weaker = np.minimum(at(curve, x), at(inverse(curve), x))
    for e, d in zip(grid, deltas, strict=True):
        weakest = np.maximum(0, np.maximum(1 - d - np.exp(e) * x, np.exp(-e) * (1 - d - x)))
        assert np.all(weaker >= weakest - 1e-12)


def test_symmetrize_is_the_largest_symmetric_curve_below():
    for curve in (SKEW, mixture(Gaussian(1.5), 0.3), mixture(SKEW, 0.4), inverse(mixture(Laplace(1.0), 0.5))):
        symmetric, back = symmetrize(curve), inverse(curve)
        x = np.linspace(0, 1, 401)
        assert symmetric.is_symmetric()
        low = np.minimum(at(curve, x), at(back, x))
        assert np.all(at(symmetric, x) <= low + 1e-12)
        # the lower hull of the pointwise minimum, by brute force
        slopes = -np.exp(np.linspace(-8, 8, 16001))
        conjugate = np.max(slopes[:, None] * x - low, axis=1)
        np.testing.assert_allclose(at(symmetric, x), np.max(slopes * x[:, None] - conjugate, axis=1), atol=5e-4)
    assert symmetrize(Gaussian(1.0)).mu == 1.0
    assert type(symmetrize(mixture(Gaussian(1.5), 0.3))) is type(subsample(Gaussian(1.5), 0.3))


def test_subsampling_has_its_straight_middle_piece():
    for f in (Gaussian(1.5), Laplace(1.5), ApproximateDP(1.0, 0.05)):
        p, x = 0.3, np.linspace(0, 1, 2001)
        f_p = p * at(f, x) + (1 - p) * (1 - x)
        curve = subsample(f, p)
        star = float(x[np.argmin(np.abs(at(f, x) - x))])  # to 5e-4
        end = p * f(star) + (1 - p) * (1 - star)
        left, middle, right = x < star - 1e-3, (x > star + 1e-3) & (x < end - 1e-3), x > end + 1e-3
        assert middle.sum() > 100
        values = at(curve, x)
        np.testing.assert_allclose(values[left], f_p[left], rtol=1e-14)
        np.testing.assert_allclose(values[middle] + x[middle], star + end, atol=2e-6)
        last = right & (values > 0)
        y = values[last]
        np.testing.assert_allclose(p * at(f, y) + (1 - p) * (1 - y), x[last], rtol=1e-13)
        np.testing.assert_allclose(curve.slope(x[middle][:7]), -1.0)
    np.testing.assert_allclose(at(subsample(Gaussian(1.5), 1.0), ALPHA), at(Gaussian(1.5), ALPHA), atol=1e-14)
    np.testing.assert_allclose(at(subsample(Gaussian(1.5), 0.0), ALPHA), 1 - ALPHA, atol=1e-14)


def test_subsampling_amplifies_approximate_dp():
    """(epsilon, delta) -> (log(1 - p + p e^epsilon), p delta) holds, and the curve is strictly above it."""
    e, d, p = 1.0, 0.05, 0.3
    curve = subsample(ApproximateDP(e, d), p)
    implied = np.log(1 - p + p * np.exp(e))
    assert delta(curve, implied) == pytest.approx(p * d, rel=1e-12)
    x = np.linspace(0.01, 0.9, 50)
    assert np.all(curve(x) >= ApproximateDP(implied, p * d)(x) - 1e-15)
    assert np.max(curve(x) - ApproximateDP(implied, p * d)(x)) > 0.02


def test_groups():
    assert group(Gaussian(0.5), 3).mu == 1.5
    assert group(Laplace(0.5), 3).epsilon == 1.5
    x = np.linspace(0, 1, 101)
    for f in (Gaussian(0.5), Laplace(0.5)):  # the closed forms are the iterates
        iterate = x
        for _ in range(3):
            iterate = 1 - f(iterate)
        np.testing.assert_allclose(group(f, 3)(x), 1 - iterate, atol=1e-14)
    pair = group(ApproximateDP(0.5), 2)
    assert np.all(pair(x) >= ApproximateDP(1.0)(x) - 1e-15)
    assert pair(0.3) > ApproximateDP(1.0)(0.3) + 1e-3
    np.testing.assert_allclose(group(ApproximateDP(0.5, 0.01), 1)(x), ApproximateDP(0.5, 0.01)(x))


def test_parallel_composition_is_the_worst_part():
    assert parallel(Gaussian(0.5), Gaussian(1.0), Gaussian(0.2)).mu == 1.0
    x = np.linspace(0, 1, 201)
    both = parallel(Gaussian(1.0), Laplace(1.2))
    pointwise = np.minimum(Gaussian(1.0)(x), Laplace(1.2)(x))
    assert np.all(both(x) <= pointwise + 1e-12)
    slopes = -np.exp(np.linspace(-8, 8, 16001))
    conjugate = np.maximum(convex_conjugate(Gaussian(1.0), slopes), convex_conjugate(Laplace(1.2), slopes))
    np.testing.assert_allclose(both(x), np.max(slopes * x[:, None] - conjugate, axis=1), atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_postprocessing_never_lowers_the_curve(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 7, 2)
    null, alternative = rng.dirichlet(np.full(n, 0.5)), rng.dirichlet(np.full(n, 0.5))
    channel = rng.dirichlet(np.full(m, 0.3), n)
    before, after = from_probabilities(null, alternative), from_probabilities(null @ channel, alternative @ channel)
    x = np.linspace(0, 1, 101)
    assert np.all(after(x) >= before(x) - 1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_a_discrete_pair_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    null, alternative = rng.dirichlet(np.full(n, 0.5)), rng.dirichlet(np.full(n, 0.5))
    curve = from_probabilities(null, alternative)
    subsets = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    errors = np.minimum(subsets @ null, 1.0), 1 - subsets @ alternative
    assert np.all(curve(np.clip(errors[0], 0, 1)) <= errors[1] + 1e-12)  # no deterministic test is better
    on = [np.min(np.abs(errors[0] - a) + np.abs(errors[1] - b)) for a, b in zip(curve.alpha, curve.beta, strict=True)]
    assert max(on) < 1e-9  # and every vertex is a test
    e = 0.3
    assert convex_conjugate(curve, -np.exp(e)) + 1 == pytest.approx(
        np.sum(np.maximum(alternative - np.exp(e) * null, 0)), abs=1e-12
    )


MAKERS = {
    "gaussian": (Gaussian, (1.3,)),
    "laplace": (Laplace, (0.8,)),
    "approximate": (ApproximateDP, (0.7, 0.05)),
    "subsampled": (lambda mu, p: subsample(Gaussian(mu), p), (1.5, 0.3)),
    "other_direction": (lambda mu, p: inverse(mixture(Gaussian(mu), p)), (1.5, 0.3)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "other_direction")) for name in MAKERS]
)
def test_vmap_is_loop_jit_is_eager_gradient_is_finite_difference(name):
    make, point = MAKERS[name]

    def both(*arguments):
        curve = make(*arguments[:-1])
        return curve(arguments[-1]), delta(curve, 0.2)

    batch = [np.linspace(x, 1.2 * x, 3) for x in (*point, 0.23)]
    loop = np.array([both(*values) for values in zip(*batch, strict=True)]).T
    with jax.enable_x64(True):
        mapped = jax.jit(jax.vmap(both))(*batch)
        np.testing.assert_allclose(np.array(mapped), loop, rtol=1e-11)
        slopes = jax.jit(jax.jacobian(both, argnums=tuple(range(len(batch)))))
        gradients = slopes(*(np.float64(x) for x in (*point, 0.23)))
    single = jax.jit(jax.vmap(both))(*(b.astype(np.float32) for b in batch))
    assert single[0].dtype == jnp.float32
    np.testing.assert_allclose(np.array(single), loop, rtol=3e-6)
    for index in range(len(batch)):
        step = 1e-6
        up, down = ([x + s * (i == index) for i, x in enumerate((*point, 0.23))] for s in (step, -step))
        finite = (np.array(both(*up)) - np.array(both(*down))) / (2 * step)
        np.testing.assert_allclose([float(g[index]) for g in gradients], finite, rtol=1e-5, atol=1e-8)


def test_curves_are_pytrees():
    curve = subsample(Gaussian(1.5), 0.3)
    leaves, structure = jax.tree.flatten(curve)
    assert leaves == [1.5, 0.3]
    assert jax.tree.unflatten(structure, leaves)(0.2) == curve(0.2)
    assert jax.jit(lambda c: c)(curve)(0.2) == pytest.approx(curve(0.2), rel=1e-6)
    many = jax.vmap(lambda c: c(0.2))(Gaussian(jnp.array([0.5, 1.0])))
    np.testing.assert_allclose(many, [Gaussian(0.5)(0.2), Gaussian(1.0)(0.2)], rtol=1e-6)
    polygons = PiecewiseLinear(np.tile(SKEW.alpha, (2, 1)), np.tile(SKEW.beta, (2, 1)))
    np.testing.assert_allclose(jax.vmap(lambda c: c(0.2))(polygons), SKEW(0.2), rtol=1e-6)
    np.testing.assert_allclose(Gaussian([0.5, 1.0])(0.2), [Gaussian(0.5)(0.2), Gaussian(1.0)(0.2)])
    with jax.enable_x64(True):
        grad = jax.grad(lambda c: c(0.2))(Gaussian(jnp.float64(1.0)))
    assert grad.mu == pytest.approx((Gaussian(1 + 1e-6)(0.2) - Gaussian(1 - 1e-6)(0.2)) / 2e-6, rel=1e-6)


def test_bounds_are_rounded_to_their_side_in_float32():
    lower, upper = (PiecewiseLinear(SKEW.alpha, SKEW.beta, rounding) for rounding in ("down", "up"))
    x = np.linspace(0, 1, 300).astype(np.float32)
    exact = SKEW(x)
    assert np.all(np.float64(jax.jit(lambda a: lower(a))(x)) <= exact)
    assert np.all(np.float64(jax.jit(lambda a: upper(a))(x)) >= exact)


@pytest.mark.parametrize(
    ("alpha", "beta", "message"),
    [
        ([0, 0.5, 1], [1, 0.5, np.nan], r"beta must be a number in \[0, 1\], got nan at index \(2,\)"),
        ([0, 0.2, 0.5, 1], [1, 0.7, 0.5, 0], r"convex; .* alpha = 0.5, beta = 0.5, at index \(2,\)"),
        ([0, 0.2, 0.5, 1], [1, 0.3, 0.4, 0], r"non-increasing; .* alpha = 0.5, beta = 0.4, at index \(2,\)"),
        ([0, 0.2, 0.5, 1], [1, 0.9, 0.4, 0], r"at most 1 - alpha; .* alpha = 0.2, beta = 0.9, at index \(1,\)"),
        ([0, 0.5, 0.5, 1], [1, 0.3, 0.2, 0], r"strictly increasing alpha; .* at index \(2,\)"),
        ([0.1, 0.5, 1], [0.8, 0.3, 0], r"from alpha = 0 to alpha = 1; .* at index \(0,\)"),
        ([0, 0.5], [0.8, 0.3], r"from alpha = 0 to alpha = 1; .* at index \(1,\)"),
        ([0, 1], [1, 0, 0], "equal shape"),
    ],
)
def test_what_is_no_tradeoff_curve_is_refused_with_the_first_offending_point(alpha, beta, message):
    with pytest.raises(ValueError, match=message):
        PiecewiseLinear(alpha, beta)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Gaussian(-1.0), "mu must be a number >= 0"),
        (lambda: Gaussian(np.nan), "mu must be .* got nan"),
        (lambda: Laplace(np.inf), "epsilon must be a finite number"),
        (lambda: ApproximateDP(1.0, 1.5), r"delta must be a number in \[0, 1\]"),
        (lambda: Gaussian(1.0)(1.5), r"alpha must be a number in \[0, 1\], got 1.5"),
        (lambda: Gaussian([1.0, 2.0])([0.1, 0.2, 0.3]), "broadcast"),
        (lambda: subsample(SKEW, 0.5), "subsampling needs a symmetric curve, got PiecewiseLinear; use symmetrize"),
        (lambda: group(mixture(Gaussian(1.0), 0.5), 2), "group privacy needs a symmetric curve"),
        (lambda: parallel(SKEW), "parallel composition needs a symmetric curve"),
        (lambda: group(Gaussian(1.0), 1.5), "k must be a whole number >= 1"),
        (lambda: mixture(Gaussian(1.0), 1.5), "sampling_prob must be"),
        (lambda: inverse(0.5), "f must be a trade-off curve such as"),
        (lambda: biconjugate(), "at least one curve"),
        (lambda: delta(Gaussian(1.0), -0.5), "epsilon must be a finite number >= 0"),
        (lambda: from_probabilities([0.5, 0.4], [0.5, 0.5]), "sum to 1"),
        (lambda: PiecewiseLinear([0, 1], [1, 0], "sideways"), "rounding must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_traced_parameters_out_of_range_give_nan():
    assert np.isnan(jax.jit(lambda mu: Gaussian(mu)(0.2))(-1.0))
    assert np.isnan(jax.jit(lambda p: subsample(Gaussian(1.0), p)(0.2))(1.5))
    assert np.isnan(jax.jit(lambda a: Gaussian(1.0)(a))(1.5))
    with pytest.raises(ValueError, match="symmetric depends on its points, which are traced"):
        jax.jit(lambda b: subsample(PiecewiseLinear(SKEW.alpha, b), 0.5)(0.2))(SKEW.beta)
    with pytest.raises(ValueError, match="take it outside compiled code"):
        jax.jit(lambda b: inverse(PiecewiseLinear(SKEW.alpha, b))(0.2))(SKEW.beta)


@pytest.mark.parametrize("k", [np.timedelta64(3, "s"), True, 0, 2**53])
def test_a_group_has_a_whole_number_of_people(k):
    with pytest.raises(ValueError, match="k must be"):
        group(Gaussian(1.0), k)
