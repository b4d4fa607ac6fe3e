"""Each error term covers its error: any contour gives true bounds, and each piece is checked by itself."""

import functools

import mpmath
import numpy as np
import pytest
from scipy import integrate
from scipy.special import erf, ndtr

from gdpjax.accounting._numeric import _characteristic_function, _contour, _contour_choice, _likelihood_ratio, _moments
from gdpjax.accounting._numeric._likelihood_ratio import SubsampledGaussian
from tests.accounting.numeric import reference


def bounds_of(run, window, contour, epsilon, names=("upper", "lower")):
    data = _characteristic_function.transform(run, window, contour)
    origin = float(epsilon[0])
    sums = _contour.make_sums(names, data, contour, origin)
    upper = _contour.log_upper_delta(data, contour, sums, origin, epsilon[0])
    return upper, _contour.log_lower_delta(data, contour, sums, origin, epsilon[1])


def planned(run, windows, epsilon, log_delta, width):
    return _contour_choice.make_plan(
        run, windows, _contour_choice.coarse_run(run, windows), epsilon, log_delta, width, of_delta=True
    )


def spoil(contour, rng, mode):
    """A good contour with all of its numbers changed by up to a large factor, or only one in a way that hurts."""
    if mode == "cutoff":
        return contour._replace(cutoff=contour.cutoff * np.exp(-rng.uniform(0.3, 2.0)))
    if mode == "panels":  # resolve next to nothing of the oscillation
        return contour._replace(log_error=contour.log_error + 60.0, cutoff=contour.cutoff * 1.3)
    if mode == "window":
        return contour
    factor = lambda spread: float(np.exp(rng.uniform(-spread, spread)))  # noqa: E731
    theta = contour.theta * factor(0.7)
    return contour._replace(
        theta=theta,
        period=contour.period * factor(1.5),
        eta=contour.eta * factor(1.5),
        cutoff=contour.cutoff * factor(1.5),
        below=theta * rng.uniform(0.1, 0.9),
        above=theta * rng.uniform(1.1, 3.0),
        log_error=contour.log_error + rng.uniform(0.0, 12.0),
    )


def violations(seed, mode, rows=reference.COMPOSED):
    """How often a spoiled contour's bounds miss the reference values, and how often they say anything."""
    rng = np.random.default_rng(seed)
    wrong, informative = [], 0
    with np.errstate(all="ignore"):
        for row in rows[:: 1 if mode == "all" else 2]:
            for direction in reference.DIRECTIONS:
                run = reference.run(row["noise_multiplier"], row["sampling_prob"], row["num_steps"], direction)
                log_delta = np.log(row["delta"])
                loss = rng.uniform(10.0, 16.0) if mode == "window" else rng.uniform(-5.0, 3.0)
                window = _contour_choice.choose_windows(run, log_delta + loss)
                around = np.array([row[direction]["lower"], row[direction]["upper"]])
                contour = planned(run, window, float(around[0]), log_delta, 1e-2).contour
                upper, lower = bounds_of(run, window, spoil(contour, rng, mode), around)
                informative += int(lower > log_delta - 1.0) + int(upper < log_delta + 1.0)
                if upper < log_delta or lower > log_delta:
                    wrong.append((row["noise_multiplier"], row["num_steps"], direction))
    return wrong, informative


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["all", "cutoff", "panels", "window"])
def test_any_contour_gives_true_bounds(mode, seed):
    wrong, informative = violations(seed, mode)
    assert wrong == []
    assert informative > 10


def ratio_exactly(u, sigma, p, group_size):
    """The likelihood ratio at the working precision."""
    p, sigma = mpmath.mpf(p), mpmath.mpf(sigma)
    weights = [mpmath.binomial(group_size, j) * p**j * (1 - p) ** (group_size - j) for j in range(group_size + 1)]
    return sum(w * mpmath.exp(j * (u - j / (2 * sigma)) / sigma) for j, w in enumerate(weights))


FREQUENCIES = (0.0, 3.0, 60.0)


@functools.cache
def moments_exactly(case, low, high):
    """The cut moment function at each frequency, to 20 digits, for both numbers of panels."""
    sigma, p, theta, sign, group_size = case
    shift = 1 if sign > 0 else 0

    @functools.cache
    def weight_and_loss(u):
        """What all frequencies share at a node."""
        r = ratio_exactly(u, sigma, p, group_size)
        loss = sign * mpmath.log(r)
        return mpmath.npdf(u) * r**shift * mpmath.exp(theta * loss), loss

    def moment(t):
        def integrand(u):
            weight, loss = weight_and_loss(u)
            return weight * mpmath.expj(t * loss)

        return mpmath.quad(integrand, mpmath.linspace(low, high, 25), method="gauss-legendre")

    with mpmath.workdps(20):
        return [moment(t) for t in FREQUENCIES]


CASES = [
    (0.5, 0.01, 2.0, 1.0, 1),
    pytest.param((1.3, 0.004, 20.0, 1.0, 1), marks=pytest.mark.slow),
    (0.7, 0.3, 3.0, -1.0, 1),
    pytest.param((4.0, 1.0, 5.0, 1.0, 1), marks=pytest.mark.slow),
    (2.0, 0.01, 4.0, 1.0, 3),
    (3.0, 0.2, 2.0, -1.0, 5),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("panels", [4, 40])
def test_quadrature_and_rounding_bounds_cover_the_error(case, panels):
    sigma, p, theta, sign, group_size = case
    low, high = -8.0, 8.0 + group_size / sigma
    step = SubsampledGaussian(sigma, p, 1.0, sign, group_size)
    edges = np.linspace(low, high, panels + 1)
    nodes = _moments.make_nodes(step, edges)
    exponent = nodes.log_weight + theta * nodes.loss
    sums = _moments.quadrature_error(step, edges, np.array([theta]), np.array(FREQUENCIES), exponent[None])
    fixed, slope = _moments.rounding_terms(step, nodes)
    weight = np.exp(exponent)
    rule = [complex(np.sum(weight * np.exp(1j * t * nodes.loss))) for t in FREQUENCIES]
    fixed, slope, total = float(np.sum(weight * fixed)), float(np.sum(weight * slope)), float(np.sum(weight))
    scale = float(np.exp(sums.log_rule[0]))
    for t, exact, value, bound in zip(
        FREQUENCIES, moments_exactly(case, low, high), rule, sums.log_error_at, strict=True
    ):
        rounding = 2.0**-53 * (fixed + (theta + 1 + t) * slope + 2 * nodes.loss.size * total)
        error = abs(complex(exact) - value)
        assert error <= np.exp(bound) + rounding
        if panels == 40 and t < 50:
            assert np.exp(bound) + rounding < 1e-10 * scale


@pytest.mark.parametrize("blocks", [1, 3])
def test_fourier_sums_match_direct_evaluation(blocks):
    loss, weight = np.linspace(-0.3, 2.0, 1500), np.exp(-(np.linspace(-3.0, 3.0, 1500) ** 2))
    frequency = 0.37 * np.arange(blocks * _characteristic_function.FREQUENCY_BLOCK)
    found = _characteristic_function._fourier(loss, weight, frequency)
    direct = np.exp(1j * frequency[:, None] * loss) @ weight
    np.testing.assert_allclose(found, direct, atol=1e-11)


@pytest.mark.parametrize("name", ["upper", "lower", "reject_p", "reject_q"])
def test_kernels_are_the_transforms_of_their_functions(name):
    eta, z = 0.4, 1.3 + 0.7j
    functions = {
        "upper": lambda x: ndtr(x / eta + eta / 2) - np.exp(-x) * ndtr(x / eta - eta / 2),
        "lower": lambda x: (1 - np.exp(-x)) * ndtr(x / eta),
        "reject_p": lambda x: ndtr(x / eta),
        "reject_q": lambda x: np.exp(-x) * ndtr(x / eta),
    }
    grid = np.linspace(-12.0, 40.0, 200001)
    values = integrate.simpson(functions[name](grid) * np.exp(-z * grid), x=grid)
    kernel, scale = _contour.kernel(name, np.asarray(z), eta)
    assert abs(complex(kernel) - values) < 1e-8
    assert abs(complex(kernel)) <= float(scale) * (1 + 1e-12)
    if name == "upper":
        assert np.all(functions[name](grid) >= np.maximum(-np.expm1(-grid), 0.0) - 1e-12)
    if name == "lower":
        assert np.all(functions[name](grid) <= np.maximum(-np.expm1(-grid), 0.0) + 1e-12)


@pytest.mark.parametrize("name", ["upper", "lower", "reject_p", "reject_q"])
def test_tail_bounds_cover_the_tails(name):
    for theta, eta, start in ((2.0, 0.1, 5.0), (2.0, 0.1, 50.0), (30.0, 0.01, 300.0), (0.1, 0.6, 2.0)):
        contour = _characteristic_function.Contour(theta, 1.0, eta, start, theta, theta, 0.0)
        t = np.linspace(start, start + 60.0 / eta, 400001)
        kernel, _ = _contour.kernel(name, theta + 1j * t, eta)
        exact = float(np.trapezoid(np.abs(kernel), t)) / np.pi
        assert exact <= np.exp(_contour.log_tail(name, contour, start)) * (1 + 1e-6)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_windows_lose_no_more_than_they_say(direction):
    for sigma, p in ((0.3, 1e-5), (1.0, 0.01), (20.0, 0.5), (0.7, 1.0)):
        (window,) = _contour_choice.choose_windows(reference.run(sigma, p, 10, direction), -12.0)
        base = ndtr(window.lower) + ndtr(-window.upper)
        moved = ndtr(window.lower - 1 / sigma) + ndtr(1 / sigma - window.upper)
        lost = (1 - p) * base + p * moved if direction == "remove" else base
        assert lost <= window.lost
        assert window.lost < 1e-10


@pytest.mark.parametrize("group_size", [1, 2, 7])
def test_log_ratio_is_accurate(group_size):
    rng = np.random.default_rng(0)
    for sigma, p in ((0.3, 1e-5), (1.0, 0.01), (50.0, 0.3), (0.5, 0.999999), (2.0, 1.0)):
        u = rng.uniform(-15.0, 15.0 + 1 / sigma, 100)
        step = SubsampledGaussian(sigma, p, 1.0, 1.0, group_size)
        with np.errstate(all="ignore"):
            value = _likelihood_ratio.log_ratio(u, step)
            errors = _likelihood_ratio.log_ratio_error(u, step, value)
            means = _likelihood_ratio.posterior_mean(u, step, value)
        for one, ell, error, mean in zip(u, value, errors, means, strict=True):
            with mpmath.workdps(60):
                truth = mpmath.log(ratio_exactly(mpmath.mpf(one), sigma, p, group_size))
                # What log_ratio_error says, and the rounding of u - j / (2 sigma), which counts as a displacement.
                slack = error + 3 * (abs(one) + group_size / sigma) / sigma * mean
                assert abs(ell - truth) <= float(slack) * 2.0**-53


@pytest.mark.parametrize("group_size", [1, 2, 7])
def test_the_ratio_off_the_axis_is_bounded_by_the_corners_of_the_rectangle(group_size):
    """|r| and arg r on a rectangle, against the two functions that the quadrature bound calls."""
    rng = np.random.default_rng(1)
    for sigma, p in ((0.5, 0.01), (1.0, 0.3), (5.0, 0.9), (2.0, 1.0)):
        step = SubsampledGaussian(sigma, p, 1.0, 1.0, group_size)
        with np.errstate(all="ignore"):
            height = float(_likelihood_ratio.largest_height(step)) * rng.uniform(0.1, 1.0)
            left, right = np.sort(rng.uniform(-6.0, 8.0, 2))
            x, y = rng.uniform(left, right, 80), rng.uniform(-height, height, 80)
            most = float(_likelihood_ratio.log_ratio(np.asarray(right), step))
            least = float(_likelihood_ratio.log_modulus(np.asarray(left), np.asarray(height), step))
            turn = float(_likelihood_ratio.argument(np.asarray(right), np.asarray(height), step))
        for a, b in zip(x, y, strict=True):
            r = complex(ratio_exactly(mpmath.mpc(a, b), sigma, p, group_size))
            assert least - 1e-9 <= np.log(abs(r)) <= most + 1e-9
            assert abs(np.angle(r)) <= turn + 1e-9


def test_erf_is_good_to_eight_ulp():
    """The assumption under the atom of a symmetric step."""
    points = np.geomspace(1e-3, 5.0, 200)
    values = erf(points)
    for x, value in zip(points, values, strict=True):
        with mpmath.workdps(40):
            assert abs(value - mpmath.erf(mpmath.mpf(float(x)))) <= 8 * 2.0**-53 * mpmath.erf(mpmath.mpf(float(x)))


def test_elementary_functions_are_good_to_four_ulp():
    """The assumption under the rounding bounds, for this machine's NumPy."""
    rng = np.random.default_rng(1)
    cases = [
        (np.exp, mpmath.exp, rng.uniform(-600, 600, 300)),
        (np.log, mpmath.log, np.exp(rng.uniform(-200, 200, 300))),
        (np.log1p, mpmath.log1p, np.append(rng.uniform(-0.25, 0.25, 300), np.exp(rng.uniform(-30, 300, 300)))),
        (np.expm1, mpmath.expm1, rng.uniform(-3, 3, 300)),
    ]
    for ours, exact, points in cases:
        values = ours(points)
        for x, value in zip(points, values, strict=True):
            with mpmath.workdps(40):
                truth = exact(mpmath.mpf(float(x)))
                assert abs(value - truth) <= 4.5 * 2.0**-52 * abs(truth)
    points = rng.uniform(-1e5, 1e5, 300)
    cos, sin = np.cos(points), np.sin(points)
    for x, c, s in zip(points, cos, sin, strict=True):
        with mpmath.workdps(40):
            assert abs(c - mpmath.cos(mpmath.mpf(float(x)))) < 4 * 2.0**-53
            assert abs(s - mpmath.sin(mpmath.mpf(float(x)))) < 4 * 2.0**-53
