"""Every error term covers its error: any contour gives true bounds, and each piece is checked by itself."""

import functools

import mpmath
import numpy as np
import pytest
from scipy import integrate
from scipy.special import erf, ndtr

from gdpjax._composition import _characteristic_function, _contour, _contour_choice, _likelihood_ratio, _moments
from gdpjax._composition._likelihood_ratio import SubsampledGaussian, side_by_side
from gdpjax._composition._run_description import RunDescription
from tests.accounting.numeric import reference


def bounds_of(run, window, contour, epsilon_of_upper, epsilon_of_lower):
    """Return an upper bound on log delta at one epsilon, and a lower bound at another."""
    data = _characteristic_function.transform(run, window, contour)
    sums = _contour.make_sums(("upper", "lower"), data, contour, epsilon_of_upper)
    upper = _contour.log_upper_delta(data, contour, sums, epsilon_of_upper, epsilon_of_upper)
    lower = _contour.log_lower_delta(data, contour, sums, epsilon_of_upper, epsilon_of_lower)
    return upper, lower


def planned_contour(run, windows, epsilon, log_delta, width):
    """Return the contour that the package would choose."""
    coarse = _contour_choice.coarse_run(run, windows)
    plan = _contour_choice.make_plan(run, windows, coarse, epsilon, log_delta, width, of_delta=True)
    return plan.contour


def spoil(contour, rng, mode):
    """Return a good contour with all of its numbers changed by large factors, or only one in a way that hurts."""
    if mode == "cutoff":
        return contour._replace(cutoff=contour.cutoff * np.exp(-rng.uniform(0.3, 2.0)))
    if mode == "panels":  # resolve next to nothing of the oscillation
        return contour._replace(log_error=contour.log_error + 60.0, cutoff=contour.cutoff * 1.3)
    if mode == "window":
        return contour

    def random_factor(log_range):
        return float(np.exp(rng.uniform(-log_range, log_range)))

    theta = contour.theta * random_factor(0.7)
    return contour._replace(
        theta=theta,
        period=contour.period * random_factor(1.5),
        eta=contour.eta * random_factor(1.5),
        cutoff=contour.cutoff * random_factor(1.5),
        below=theta * rng.uniform(0.1, 0.9),
        above=theta * rng.uniform(1.1, 3.0),
        log_error=contour.log_error + rng.uniform(0.0, 12.0),
    )


def violations(seed, mode, rows=reference.COMPOSED):
    """Return the runs whose bounds by a spoiled contour miss the reference, and the number of informative bounds."""
    rng = np.random.default_rng(seed)
    violated = []
    num_informative = 0
    every = 1 if mode == "all" else 2
    for row in rows[::every]:
        for direction in reference.DIRECTIONS:
            run = reference.run(row["noise_multiplier"], row["sampling_prob"], row["num_steps"], direction)
            log_delta = np.log(row["delta"])
            loss_range = (10.0, 16.0) if mode == "window" else (-5.0, 3.0)
            log_loss = rng.uniform(*loss_range)
            window = _contour_choice.choose_windows(run, log_delta + log_loss)
            low = row[direction]["lower"]
            high = row[direction]["upper"]
            contour = planned_contour(run, window, float(low), log_delta, 1e-2)
            upper, lower = bounds_of(run, window, spoil(contour, rng, mode), float(low), np.float64(high))
            num_informative += int(lower > log_delta - 1.0)
            num_informative += int(upper < log_delta + 1.0)
            if upper < log_delta or lower > log_delta:
                violated.append((row["noise_multiplier"], row["num_steps"], direction))
    return violated, num_informative


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["all", "cutoff", "panels", "window"])
def test_any_contour_gives_true_bounds(mode, seed):
    """The bounds of a spoiled contour are true, and many of them say something."""
    with np.errstate(all="ignore"):
        violated, num_informative = violations(seed, mode)
    assert violated == []
    assert num_informative > 10


def exact_ratio(u, noise_multiplier, sampling_prob, group_size):
    """Return the likelihood ratio at the working precision."""
    p = mpmath.mpf(sampling_prob)
    s = mpmath.mpf(noise_multiplier)
    total = 0
    for j in range(group_size + 1):
        weight = mpmath.binomial(group_size, j) * p**j * (1 - p) ** (group_size - j)
        total += weight * mpmath.exp(j * (u - j / (2 * s)) / s)
    return total


FREQUENCIES = (0.0, 3.0, 60.0)


@functools.cache
def exact_moments(case, low, high):
    """Return the cut moment function at each frequency, to 20 digits, for both numbers of panels."""
    noise_multiplier, sampling_prob, theta, sign, group_size, replaced = case
    shift = 1 if sign > 0 else 0

    @functools.cache
    def weight_and_loss(u):
        """Return the factors of a node that all frequencies share."""
        ratio = exact_ratio(u, noise_multiplier, sampling_prob, group_size)
        loss = sign * mpmath.log(ratio)
        if replaced:
            loss -= mpmath.log(exact_ratio(-u, noise_multiplier, sampling_prob, group_size))
        weight = mpmath.npdf(u) * ratio**shift * mpmath.exp(theta * loss)
        return weight, loss

    def moment(frequency):
        def integrand(u):
            weight, loss = weight_and_loss(u)
            return weight * mpmath.expj(frequency * loss)

        return mpmath.quad(integrand, mpmath.linspace(low, high, 25), method="gauss-legendre")

    with mpmath.workdps(20):
        return [moment(frequency) for frequency in FREQUENCIES]


CASES = [
    (0.5, 0.01, 2.0, 1.0, 1, False),
    pytest.param((1.3, 0.004, 20.0, 1.0, 1, False), marks=pytest.mark.slow),
    (0.7, 0.3, 3.0, -1.0, 1, False),
    pytest.param((4.0, 1.0, 5.0, 1.0, 1, False), marks=pytest.mark.slow),
    (2.0, 0.01, 4.0, 1.0, 3, False),
    (3.0, 0.2, 2.0, -1.0, 5, False),
    (0.7, 0.3, 3.0, 1.0, 1, True),
    (0.5, 0.05, 12.0, 1.0, 1, True),
    pytest.param((1.3, 0.004, 20.0, 1.0, 1, True), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("panels", [4, 12, 40])
def test_quadrature_and_rounding_bounds_cover_the_error(case, panels):
    """The error of each moment is at most the two bounds, which are tiny with many panels."""
    noise_multiplier, sampling_prob, theta, sign, group_size, replaced = case
    low = -8.0
    high = 8.0 + group_size / noise_multiplier
    step = SubsampledGaussian(noise_multiplier, sampling_prob, 1.0, sign, group_size, replaced=replaced)
    another = SubsampledGaussian(2.0 * noise_multiplier, 0.5 * sampling_prob, 3.0, sign, group_size, replaced=replaced)
    steps = side_by_side((another, step))
    edges = np.stack([np.linspace(-9.0, 10.0, panels + 1), np.linspace(low, high, panels + 1)])
    nodes = _moments.make_nodes(steps, edges)
    exponent = nodes.log_weight + theta * nodes.loss
    sums = _moments.quadrature_error(steps, edges, np.array([[theta]]), np.array([FREQUENCIES]), exponent[:, None])
    scale = float(np.exp(sums.log_rule[1, 0]))

    # The parts of the rounding error, added up over the nodes.
    weight = np.exp(exponent[1])
    fixed_of_nodes, slope_of_nodes = _moments.rounding_terms(steps, nodes)
    fixed = float(np.sum(weight * fixed_of_nodes[1]))
    slope = float(np.sum(weight * slope_of_nodes[1]))
    per_node = 2 * weight.size * float(np.sum(weight))

    exact = exact_moments(case, low, high)
    for frequency, exact_moment, log_bound in zip(FREQUENCIES, exact, sums.log_error_at[1], strict=True):
        by_rule = complex(np.sum(weight * np.exp(1j * frequency * nodes.loss[1])))
        rounding = 2.0**-53 * (fixed + (theta + 1 + frequency) * slope + per_node)
        allowed = np.exp(log_bound) + rounding
        assert abs(complex(exact_moment) - by_rule) <= allowed
        if panels == 40 and frequency < 50:
            assert allowed < 1e-10 * scale


@pytest.mark.parametrize("count", [32, 33, 700, 16384])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_fourier_sums_match_direct_evaluation(count, scale):
    """The fast sums are the sums term by term, up to the bound on their errors; losses may go around the grid."""
    rng = np.random.default_rng(count)
    loss = scale * rng.standard_normal(600)
    weight = np.exp(5.0 * rng.standard_normal(600))
    frequency = 0.37 / scale * np.arange(count)
    losses, weights = np.stack([-loss, loss]), np.stack([2.0 * weight, weight])
    (_, sums), relative_error = _characteristic_function._fourier(losses, weights, frequency)

    some = np.unique([0, 1, count // 2, count - 2, count - 1, *rng.integers(0, count, 20)])
    phase = some[:, None] * np.longdouble(frequency[1]) * loss.astype(np.longdouble)
    directly = (np.cos(phase) + 1j * np.sin(phase)) @ weight.astype(np.longdouble)
    placing = 4.0 * 2.0**-53 * frequency[some] * (weight @ np.abs(loss))
    allowed = relative_error[some] * weight.sum() + placing
    assert np.all(np.abs(sums[some] - directly) <= 0.5 * allowed)
    assert np.all(relative_error < 3e-13)


@pytest.mark.parametrize("name", ["upper", "lower", "reject_p", "reject_q"])
def test_kernels_are_the_transforms_of_their_functions(name):
    """Each kernel is the Laplace transform of its function, and the functions of delta are on their side of it."""
    eta = 0.4
    z = 1.3 + 0.7j
    x = np.linspace(-12.0, 40.0, 200001)
    smooth_step = ndtr(x / eta)
    functions = {
        "upper": ndtr(x / eta + eta / 2) - np.exp(-x) * ndtr(x / eta - eta / 2),
        "lower": (1 - np.exp(-x)) * smooth_step,
        "reject_p": smooth_step,
        "reject_q": np.exp(-x) * smooth_step,
    }
    values = functions[name]
    transform = integrate.simpson(values * np.exp(-z * x), x=x)
    kernel, scale = _contour.kernel(name, np.asarray(z), eta)
    assert abs(complex(kernel) - transform) < 1e-8
    assert abs(complex(kernel)) <= float(scale) * (1 + 1e-12)

    # The function whose mean is delta.
    exact = np.maximum(-np.expm1(-x), 0.0)
    if name == "upper":
        assert np.all(values >= exact - 1e-12)
    if name == "lower":
        assert np.all(values <= exact + 1e-12)


@pytest.mark.parametrize("name", ["upper", "lower", "reject_p", "reject_q"])
def test_tail_bounds_cover_the_tails(name):
    """The integral of a kernel beyond the cutoff is at most its bound."""
    for theta, eta, start in ((2.0, 0.1, 5.0), (2.0, 0.1, 50.0), (30.0, 0.01, 300.0), (0.1, 0.6, 2.0)):
        contour = _characteristic_function.Contour(theta, 1.0, eta, start, theta, theta, 0.0)
        t = np.linspace(start, start + 60.0 / eta, 400001)
        kernel, _ = _contour.kernel(name, theta + 1j * t, eta)
        exact = float(np.trapezoid(np.abs(kernel), t)) / np.pi
        bound = np.exp(_contour.log_tail(name, contour, start))
        assert exact <= bound * (1 + 1e-6)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_moments_fall_with_the_frequency(direction):
    """|A(theta + it)| is at most V / t, and V is hardly more than the variation of the density of the loss."""
    for case in ((0.5, 1e-3, 3.0), (1.0, 0.02, 8.0), (1.0, 0.5, 0.3), (3.0, 0.01, 60.0), (2.0, 1.0, 1.5)):
        noise_multiplier, sampling_prob, theta = case
        run = reference.run(noise_multiplier, sampling_prob, 1, direction)
        window = _contour_choice.choose_windows(run, np.log(1e-6))
        variation = np.exp(_moments.log_variation(run.side_by_side, window, theta)[0])

        u = np.linspace(window.lower[0], window.upper[0], 2**17 + 1)
        ratio = 1 - sampling_prob + sampling_prob * np.exp((u - 0.5 / noise_multiplier) / noise_multiplier)
        loss = np.log(ratio) if direction == "remove" else -np.log(ratio)
        weight = np.exp((theta + (direction == "remove")) * loss - u**2 / 2) / np.sqrt(2 * np.pi)
        density = np.abs(weight / np.gradient(loss, u))
        exact = density[0] + density[-1] + np.sum(np.abs(np.diff(density)))
        assert exact * (1 - 1e-3) <= variation <= 1.25 * exact
        for t in variation / np.trapezoid(weight, u) * np.array([0.5, 1.0, 2.0]):
            assert np.abs(np.trapezoid(weight * np.exp(1j * t * loss), u)) <= variation / t


def test_frequencies_beyond_the_cutoff_are_bounded():
    """Every |M(theta + it) / M(theta)| beyond the cutoff is at most what is said, little after 200 steps."""
    run = reference.run(1.0, 0.02, 200, "remove")
    windows = _contour_choice.choose_windows(run, np.log(1e-5))
    contour = planned_contour(run, windows, 1.0, np.log(1e-5), 1e-3)
    data = _characteristic_function.transform(run, windows, contour)
    further = _characteristic_function.transform(run, windows, contour._replace(cutoff=4.0 * contour.cutoff))
    beyond = further.modulus[further.frequency > contour.cutoff]
    assert np.max(beyond) <= data.log_beyond < -10.0


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_windows_lose_no_more_than_they_say(direction):
    """The mass outside a window is at most what the window states, which is tiny."""
    for noise_multiplier, sampling_prob in ((0.3, 1e-5), (1.0, 0.01), (20.0, 0.5), (0.7, 1.0)):
        run = reference.run(noise_multiplier, sampling_prob, 10, direction)
        window = _contour_choice.choose_windows(run, -12.0)
        shift = 1 / noise_multiplier
        without_example = ndtr(window.lower) + ndtr(-window.upper)
        with_example = ndtr(window.lower - shift) + ndtr(shift - window.upper)
        if direction == "remove":
            lost = (1 - sampling_prob) * without_example + sampling_prob * with_example
        else:
            lost = without_example
        assert lost <= window.lost[0]
        assert window.lost[0] < 1e-10


@pytest.mark.parametrize("group_size", [1, 2, 7])
def test_log_ratio_is_accurate(group_size):
    """The log ratio is off by at most its stated error and the rounding of its argument."""
    rng = np.random.default_rng(0)
    for noise_multiplier, sampling_prob in ((0.3, 1e-5), (1.0, 0.01), (50.0, 0.3), (0.5, 0.999999), (2.0, 1.0)):
        points = rng.uniform(-15.0, 15.0 + 1 / noise_multiplier, 100)
        steps = side_by_side((SubsampledGaussian(noise_multiplier, sampling_prob, 1.0, 1.0, group_size),))
        with np.errstate(all="ignore"):
            log_ratios = _likelihood_ratio.log_ratio(points[None], steps)
            errors = _likelihood_ratio.log_ratio_error(points[None], steps, log_ratios)
            means = _likelihood_ratio.posterior_mean(points[None], steps, log_ratios)
        for u, log_ratio, error, mean in zip(points, log_ratios[0], errors[0], means[0], strict=True):
            with mpmath.workdps(60):
                truth = mpmath.log(exact_ratio(mpmath.mpf(u), noise_multiplier, sampling_prob, group_size))
                # The rounding of u - j / (2 sigma) counts as a displacement.
                displacement = (abs(u) + group_size / noise_multiplier) / noise_multiplier
                allowed = error + 3 * displacement * mean
                assert abs(log_ratio - truth) <= float(allowed) * 2.0**-53


@pytest.mark.parametrize("group_size", [1, 2, 7])
def test_the_ratio_off_the_axis_is_bounded_by_the_corners_of_the_rectangle(group_size):
    """The modulus and the argument of the ratio on a rectangle are within the bounds that the quadrature uses."""
    rng = np.random.default_rng(1)
    for noise_multiplier, sampling_prob in ((0.5, 0.01), (1.0, 0.3), (5.0, 0.9), (2.0, 1.0)):
        steps = side_by_side((SubsampledGaussian(noise_multiplier, sampling_prob, 1.0, 1.0, group_size),))
        with np.errstate(all="ignore"):
            height = _likelihood_ratio.largest_height(steps).item() * rng.uniform(0.1, 1.0)
            left, right = np.sort(rng.uniform(-6.0, 8.0, 2))
            real_parts = rng.uniform(left, right, 80)
            imaginary_parts = rng.uniform(-height, height, 80)
            left_end, right_end, top = np.array([[[left]], [[right]], [[height]]])
            largest = _likelihood_ratio.log_ratio(right_end, steps).item()
            smallest = _likelihood_ratio.log_modulus(left_end, top, steps).item()
            largest_argument = _likelihood_ratio.argument(right_end, top, steps).item()
        for x, y in zip(real_parts, imaginary_parts, strict=True):
            ratio = complex(exact_ratio(mpmath.mpc(x, y), noise_multiplier, sampling_prob, group_size))
            assert smallest - 1e-9 <= np.log(abs(ratio)) <= largest + 1e-9
            assert abs(np.angle(ratio)) <= largest_argument + 1e-9


def test_erf_is_good_to_eight_ulp():
    """SciPy's erf is right to eight ulp, which the atom of a symmetric step assumes."""
    points = np.geomspace(1e-3, 5.0, 200)
    values = erf(points)
    for x, value in zip(points, values, strict=True):
        with mpmath.workdps(40):
            truth = mpmath.erf(mpmath.mpf(float(x)))
            assert abs(value - truth) <= 8 * 2.0**-53 * truth


def test_elementary_functions_are_good_to_four_ulp():
    """NumPy's functions on this machine are right to four ulp, which the rounding bounds assume."""
    rng = np.random.default_rng(1)
    for_exp = rng.uniform(-600, 600, 300)
    for_log = np.exp(rng.uniform(-200, 200, 300))
    for_log1p = np.append(rng.uniform(-0.25, 0.25, 300), np.exp(rng.uniform(-30, 300, 300)))
    for_expm1 = rng.uniform(-3, 3, 300)
    for function, exact_function, points in (
        (np.exp, mpmath.exp, for_exp),
        (np.log, mpmath.log, for_log),
        (np.log1p, mpmath.log1p, for_log1p),
        (np.expm1, mpmath.expm1, for_expm1),
    ):
        values = function(points)
        for x, value in zip(points, values, strict=True):
            with mpmath.workdps(40):
                truth = exact_function(mpmath.mpf(float(x)))
                assert abs(value - truth) <= 4.5 * 2.0**-52 * abs(truth)

    points = rng.uniform(-1e5, 1e5, 300)
    cosines = np.cos(points)
    sines = np.sin(points)
    for x, cosine, sine in zip(points, cosines, sines, strict=True):
        with mpmath.workdps(40):
            exact_x = mpmath.mpf(float(x))
            assert abs(cosine - mpmath.cos(exact_x)) < 4 * 2.0**-53
            assert abs(sine - mpmath.sin(exact_x)) < 4 * 2.0**-53


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_phases_side_by_side_are_the_product_of_phases_alone(sign, group_size, symmetric):
    """The moments along a line of a run in phases, one of them without sampling, and those of each phase by itself."""
    if symmetric and group_size > 1:
        return
    numbers = [(1.0, 0.01, 30.0), (0.7, 0.4, 3.0), (9.0, 1.0, 2.0), (1.3, 1e-6, 500.0)]
    steps = tuple(SubsampledGaussian(*row, sign, group_size, symmetric) for row in numbers)
    with np.errstate(all="ignore"):
        run = RunDescription(steps)
        windows = _contour_choice.choose_windows(run, -14.0)
        contour = planned_contour(run, windows, 2.0, -12.0, 1e-2)
        whole = _characteristic_function.transform(run, windows, contour)
        parts = []
        for step in steps:
            alone = RunDescription((step,))
            window = _moments.choose_windows(alone.side_by_side, -14.0 + np.log(1e-6) - np.log(4 * 535.0))
            parts.append(_characteristic_function.transform(alone, window, contour))
    for name in ("modulus", "log_size", "log_below", "log_above"):
        expected = sum(getattr(part, name) for part in parts)
        near = np.exp(np.minimum(whole.modulus, 0.0)) > 1e-6 if name == "modulus" else True
        np.testing.assert_allclose(np.where(near, getattr(whole, name) - expected, 0.0), 0.0, atol=1e-9)
    lost = -np.expm1(sum(np.log1p(-part.lost) for part in parts))
    np.testing.assert_allclose(whole.lost, lost, rtol=1e-6)
