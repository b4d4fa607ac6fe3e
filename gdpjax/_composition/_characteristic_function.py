"""The moments of a whole run along a vertical line, with a bound on every error.

A run is a product of independent events. On the line z = theta + it its moments are therefore

    M(theta + it) = prod_j A_j(theta + it)^{T_j},        t = 0, h, 2h, ...,        h = 2 pi / D,

where A_j are the moments of one event of kind j and T_j is its number. `transform` evaluates them on the line of a
`Contour`, for the trapezoid sums of `_contour`. The result for each kind of event is one `EventsOnLine`, whatever its
distribution is:

* the quadrature nodes of a subsampled Gaussian step (`_moments`), or the outcomes of an event (`_atoms`), give
  A_j(theta + it) / A_j(theta) = sum_i w_i e^{i t L_i} with positive weights w_i;
* events of bounded loss have a formula (`_bounded_losses`).

docs/theory/contour.md has the proofs: "The product along the line" for the errors of the product and for the fast
transform by which the sums over i are evaluated, "Where the panels go" for the panels of the quadrature.
"""

from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._composition import _atoms, _bounded_losses, _likelihood_ratio, _moments
from gdpjax._composition._atoms import OutcomeEvents
from gdpjax._composition._bounded_losses import BoundedLossEvents
from gdpjax._composition._likelihood_ratio import Steps
from gdpjax._composition._moments import UNIT_ROUNDOFF, QuadratureNodes, QuadratureTotals, Windows
from gdpjax._composition._run_description import RunDescription
from gdpjax._core.types import Array

MAX_PANELS = 512
LEAST_FREQUENCIES = 32
MAX_FREQUENCIES = 16384
_LEVELS = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
"""The frequencies up to which the error of the quadrature is bounded, relative to the cutoff."""
_CELLS = 128
"""The number of cells of a window on which the density of panels is evaluated."""
_FINE = -40.0
"""The `Contour.log_error` where no line is evaluated."""
_OVERSAMPLING = 8
"""Cells of the grid of a Fourier sum for each frequency, at least."""
_KERNEL_WIDTH = 1.55
"""Standard deviation of the kernel of a Fourier sum, in cells."""
_TAPS = np.arange(-12, 16)
"""The cells that a kernel reaches, from the one to the left of its centre: seven times four."""
_KERNEL_RATE = 0.5 / _KERNEL_WIDTH**2
_KERNEL = np.exp(-_KERNEL_RATE * _TAPS**2)
"""The kernel of a loss in the middle of its cell."""
_MOST_NUMBERS = 2**19
"""About so many numbers an array may have, and still be in the cache."""


class Contour(NamedTuple):
    """A vertical line and how finely it is sampled. Any values give true bounds, and good ones give tight bounds.

    Each is a number, or an array [runs] of runs side by side.

    Attributes:
        theta: The real part of the line.
        period: D. Frequencies are multiples of 2 pi / D.
        eta: The smoothing.
        cutoff: The largest frequency.
        below: An exponent below theta, for the aliases on the left.
        above: An exponent above theta, for the aliases on the right.
        log_error: The log of the relative error of M that the quadrature aims at.
    """

    theta: Array
    period: Array
    eta: Array
    cutoff: Array
    below: Array
    above: Array
    log_error: Array

    @property
    def exponents(self) -> Array:
        """Theta, and the two alias exponents [1 or runs, 3]."""
        return np.array([self.theta, self.below, self.above]).T.reshape(-1, 3)


class RunOnLine(NamedTuple):
    """The moments of a run along a line, relative to M(theta). Runs side by side have one more axis, the first.

    Attributes:
        frequency: t [n].
        modulus: The log-modulus of M(theta + it) / M(theta) [n].
        angle: Its angle [n].
        error: A bound on its absolute error [n].
        log_size: log M(theta).
        log_size_error: A bound on the error of that.
        log_below: An upper bound on log M at `Contour.below`.
        log_above: An upper bound on log M at `Contour.above`.
        lost: A bound on the P-mass that is not in M.
        log_beyond: The log of a bound on |M(theta + it) / M(theta)| for t from `last_frequency` on.
        phase_rounding: A bound on the rounding of the angles.
        least: The epsilon from which on upper bounds hold.
    """

    frequency: Array
    modulus: Array
    angle: Array
    error: Array
    log_size: Array
    log_size_error: Array
    log_below: Array
    log_above: Array
    lost: Array
    log_beyond: Array
    phase_rounding: Array
    least: float = -np.inf


class EventsOnLine(NamedTuple):
    """The moments A of some kinds of events along a line.

    Attributes:
        num_steps: The number of events of each kind [kinds].
        ratio: A(theta + it) / A(theta) [kinds, n].
        error: A bound on its absolute error [kinds, n].
        log_a: log A(theta) [kinds].
        at_zero: A bound on the relative error of A(theta) [kinds].
        alias: Upper bounds on log A at the two alias exponents [kinds, 2].
        log_variation: log V, where |A(theta + it)| <= V / |t| for every t [kinds].
    """

    num_steps: Array
    ratio: Array
    error: Array
    log_a: Array
    at_zero: Array
    alias: Array
    log_variation: Array


def transform(run: RunDescription, windows: Windows, contour: Contour) -> RunOnLine:
    """Evaluate M along the line.

    Args:
        run: The run.
        windows: The windows of its subsampled Gaussian steps.
        contour: The line.
    """
    frequency = frequencies(contour)
    lines = []
    if run.steps:
        lines.extend(step_lines(run.side_by_side, windows, contour, frequency))
    for event in run.finite:
        lines.append(_finite_line(event, contour, frequency))
    for event in run.atoms:
        lines.append(_atoms_line(event, contour, frequency))

    # The product over the lines. Of ratios chi with errors u and m = |chi| + u it needs log prod |chi|^T, the sum of
    # the angles, log prod m^T, and sum T u / m.
    modulus = np.zeros(frequency.shape)
    angle = np.zeros(frequency.shape)
    log_largest = np.zeros(frequency.shape)
    relative_error = np.zeros(frequency.shape)
    log_size = np.float64(0.0)
    log_size_error = np.float64(0.0)
    alias = np.zeros(2)
    log_beyond = np.float64(0.0)
    log_last = np.log(last_frequency(frequency, contour))
    total_steps = 0.0
    num_kinds = 0
    is_trusted = np.True_
    for line in lines:
        count = line.num_steps
        size = np.abs(line.ratio)
        # The exact ratio is at most 1, and the computed one is at most 1 up to its error.
        cap = 1.0 + 4.0 * line.at_zero
        largest = np.minimum(size + line.error, cap[:, None])
        largest = np.maximum(largest, size)
        modulus += run.add_up(count, np.log(np.maximum(size, 1e-150)))
        angle += run.add_up(count, np.angle(line.ratio))
        log_largest += run.add_up(count, np.log(np.maximum(largest, 1e-150)))
        relative_error += run.add_up(count, line.error / largest)

        # log M(theta), and M at the alias exponents.
        rounding = 4.0 * UNIT_ROUNDOFF * (1.0 + np.abs(line.log_a))
        alias_rounding = 8.0 * UNIT_ROUNDOFF * np.abs(line.alias)
        log_a_error = 2.0 * line.at_zero + rounding
        log_size = log_size + run.add_up(count, line.log_a)
        log_size_error = log_size_error + run.add_up(count, log_a_error)
        log_beyond_of_one = np.fmin(line.log_variation - log_last - line.log_a + log_a_error, 0.0)
        log_beyond = log_beyond + run.add_up(count, log_beyond_of_one)
        alias = alias + run.add_up(count, line.alias + alias_rounding)
        total_steps = total_steps + run.add_up(count, np.ones(count.shape))
        num_kinds += 1 if run.apart else count.size

        # Where the quadrature has failed the formulas for relative errors do not hold.
        is_exact = line.at_zero < 0.2
        is_trusted = is_trusted & (is_exact if run.apart else np.all(is_exact))
    return RunOnLine(
        frequency=frequency,
        modulus=modulus,
        angle=angle,
        error=np.exp(log_largest) * np.minimum(relative_error, 2.0),
        log_size=log_size,
        log_size_error=np.where(is_trusted, log_size_error, np.inf)[()],
        log_below=alias[..., 0],
        log_above=alias[..., 1],
        lost=lost_mass(run, windows),
        log_beyond=log_beyond,
        phase_rounding=np.pi * UNIT_ROUNDOFF * (3.0 + num_kinds) * total_steps,
    )


def frequencies(contour: Contour) -> Array:
    """Return the frequencies up to the cutoff, and perhaps some more [n]; of runs side by side [runs, n]."""
    spacing = 2.0 * np.pi / np.asarray(contour.period)
    return spacing[..., None] * np.arange(np.max(num_frequencies(contour)))


def num_frequencies(contour: Contour) -> Array:
    """Return how many frequencies there are up to the cutoff."""
    spacing = 2.0 * np.pi / contour.period
    needed = np.fmax(np.ceil(contour.cutoff / spacing + 1.0), LEAST_FREQUENCIES)
    return np.fmin(needed, MAX_FREQUENCIES).astype(int)


def last_frequency(frequency: Array, contour: Contour) -> Array:
    """Return a frequency that the sums up to the cutoff certainly include; their tail is bounded from it on.

    It is one term before the last, in case the comparison with the cutoff rounded the other way.
    """
    num_inside = np.sum(~(frequency > np.asarray(contour.cutoff)[..., None]), axis=-1)
    return np.maximum(num_inside - 2.0, 0.5) * frequency[..., 1]


def num_at_once(num_frequencies: int) -> int:
    """Return of how many kinds of steps the lines fit into the cache."""
    return max(_MOST_NUMBERS // (32 * num_frequencies), 1)


def lost_mass(run: RunDescription, windows: Windows) -> Array:
    """Bound the P-mass that the windows of steps and the infinite losses of atoms take out of the composition."""
    log_remaining = _atoms.log_lost(run.atoms)
    if run.steps:
        log_kept = np.log1p(-np.minimum(windows.lost, 1.0))
        log_remaining = log_remaining + run.add_up(run.side_by_side.num_steps, log_kept)
    return -np.expm1(log_remaining) * (1.0 + 1e-9)


def log_moments_above(steps: Steps, windows: Windows, theta: Array) -> Array:
    """Return upper bounds on log A(theta) of each of the steps [steps], without a line.

    Theta is the same for all steps, or one for each [steps].
    """
    no_line = Contour(
        theta=theta,
        period=np.inf,
        eta=0.0,
        cutoff=np.float64(0.0),
        below=theta,
        above=theta,
        log_error=np.float64(_FINE),
    )
    bounds = _step_rule(steps, windows, no_line).alias[:, 0]
    return bounds + 8.0 * UNIT_ROUNDOFF * np.abs(bounds)


def _round_up_within(value: float, least: int, most: int) -> int:
    """Return ``value`` rounded up to a whole number within its limits."""
    rounded = np.fmax(np.ceil(value), least)
    return int(np.fmin(rounded, most))


class _Rule(NamedTuple):
    """The quadratures of steps, relative to their own A(theta).

    Attributes:
        nodes: The nodes of each part of the steps.
        weights: Their weights at theta, for each part [steps, n].
        mass: The weights of atoms at loss 0 [steps].
        log_a: log A(theta) [steps].
        fixed: The rounding error at frequency t is at most fixed + slope t [steps].
        slope: The same.
        quadrature: The errors of the rules at each level [steps, levels].
        alias: Upper bounds on log A at the two alias exponents [steps, 2].
    """

    nodes: list[QuadratureNodes]
    weights: list[Array]
    mass: Array
    log_a: Array
    fixed: Array
    slope: Array
    quadrature: Array
    alias: Array


def step_lines(steps: Steps, windows: Windows, contour: Contour, frequency: Array) -> list[EventsOnLine]:
    """Return the lines of subsampled Gaussian steps, each in its window: of as many at a time as memory allows."""
    if frequency.ndim == 2:  # runs side by side
        return [_step_line(steps, windows, contour, frequency)]
    at_once = num_at_once(frequency.size)
    lines = []
    for start in range(0, steps.num_steps.size, at_once):
        some = slice(start, start + at_once)
        some_windows = Windows(windows.lower[some], windows.upper[some], windows.lost[some])
        lines.append(_step_line(steps.taken(some), some_windows, contour, frequency))
    return lines


def _step_rule(steps: Steps, windows: Windows, contour: Contour) -> _Rule:
    """Return the quadrature of each kind of step: the sum over its parts, and a symmetric step's atom at loss 0."""
    theta = contour.exponents
    levels = _column(contour.cutoff) * _LEVELS
    parts = _likelihood_ratio.one_signed_parts(steps)
    nodes = []
    exponents = []
    sums = []
    for part in parts:
        edges = _panel_edges(part, windows, contour)
        rule = _moments.make_nodes(part, edges)
        exponent = rule.log_weight[:, None] + theta[..., None] * rule.loss[:, None]
        nodes.append(rule)
        exponents.append(exponent)
        sums.append(_moments.quadrature_error(part, edges, theta, levels, exponent))
    total = _log_total(sums)
    log_mass = np.full((len(total.log_rule), 1), -np.inf)
    if steps.symmetric:
        log_mass = np.log(_likelihood_ratio.mass_at_zero_loss(steps))
    log_rule = np.logaddexp(total.log_rule, log_mass)

    # The weights at theta and at the alias exponents, and the errors that rounding makes there.
    exponents = [exponent - log_rule[..., None] for exponent in exponents]
    weights = [np.exp(exponent) for exponent in exponents]
    mass = np.exp(log_mass - log_rule)
    fixed, slope = _rounding(parts, nodes, theta, log_rule, mass, exponents, weights)

    # At theta the error of the rule is relative to A(theta). At the alias exponents it is added to the bound.
    log_quadrature = total.log_error_at - log_rule[:, :1]
    alias_rule = log_rule[:, 1:] + 2.0 * fixed[:, 1:]
    return _Rule(
        nodes=nodes,
        weights=[weight[:, 0] for weight in weights],
        mass=mass[:, 0],
        log_a=log_rule[:, 0],
        fixed=fixed[:, 0],
        slope=slope[:, 0],
        quadrature=np.exp(np.minimum(log_quadrature, 2.0)),
        alias=np.logaddexp(alias_rule, total.log_error[:, 1:]),
    )


def _step_line(steps: Steps, windows: Windows, contour: Contour, frequency: Array) -> EventsOnLine:
    """Return the lines of subsampled Gaussian steps."""
    rule = _step_rule(steps, windows, contour)
    at_zero = rule.fixed + rule.quadrature[:, 0]

    # The error of the rule at each frequency is the one at the next level above it.
    levels = _column(contour.cutoff) * _LEVELS[1:]
    next_level = np.sum(frequency[..., None] > levels[:, None, :-1], axis=-1)
    next_level = np.broadcast_to(next_level, (len(at_zero), frequency.shape[-1]))
    quadrature = np.take_along_axis(rule.quadrature, 1 + next_level, axis=1)

    sums = rule.mass[:, None]
    total_weight = rule.mass
    error = rule.slope[:, None] * frequency + quadrature + (rule.fixed + at_zero)[:, None]
    for nodes, weight in zip(rule.nodes, rule.weights, strict=True):
        sum_of_part, rounding = _fourier(nodes.loss, weight, frequency)
        by_panel = weight.reshape(len(weight), -1, _moments.NODES_PER_PANEL).sum(axis=2)
        sums = sums + sum_of_part
        total_weight = total_weight + by_panel.sum(axis=1)
        error = error + rounding

    # The ratio divides by the computed A(theta), which is itself off by at_zero.
    error = error * (1.0 + 2.0 * at_zero)[:, None]
    return EventsOnLine(
        num_steps=steps.num_steps,
        ratio=sums / total_weight[:, None],
        error=error,
        log_a=rule.log_a,
        at_zero=at_zero,
        alias=rule.alias,
        log_variation=_moments.log_variation(steps, windows, contour.theta),
    )


def _rounding(
    parts: tuple[Steps, ...],
    nodes: list[QuadratureNodes],
    theta: Array,
    log_a: Array,
    mass: Array,
    exponents: list[Array],
    weights: list[Array],
) -> tuple[Array, Array]:
    """Bound the rounding errors of A by fixed + slope t at frequency t, relative to A(theta).

    They are averages over the nodes: of the relative errors of the weights, and of the errors of the losses.

    Args:
        parts: The one-signed parts of the steps.
        nodes: The quadrature nodes of each part.
        theta: The exponents [1 or steps, points].
        log_a: log A at each exponent [steps, points].
        mass: The weights of atoms at loss 0, relative to A [steps, points].
        exponents: The logarithms of the weights, relative to A, for each part [steps, points, n].
        weights: Their exponentials, for each part [steps, points, n].

    Returns:
        fixed and slope, each [steps, points].
    """
    fixed = 64.0 * mass
    slope = np.zeros(mass.shape)
    count = 0
    for part, rule, exponent, weight in zip(parts, nodes, exponents, weights, strict=True):
        node_fixed, node_slope = _moments.rounding_terms(part, rule)
        exp_error = 2.0 * np.einsum("ijk,ijk->ij", weight, np.abs(exponent))
        fixed = fixed + np.matmul(weight, node_fixed[..., None])[..., 0] + exp_error
        slope = slope + np.matmul(weight, node_slope[..., None])[..., 0]
        # The sums are over the nodes of each panel, and over the panels.
        count += _moments.NODES_PER_PANEL + rule.loss.shape[1] // _moments.NODES_PER_PANEL

    slope = UNIT_ROUNDOFF * slope
    fixed = fixed + 2.0 * count + 2.0 * np.abs(log_a) + 16.0
    fixed = UNIT_ROUNDOFF * fixed

    # The exponent of r is s = shift + sign * z: |Re s| is at most this, and |Im s| = t.
    largest_shift = max(part.shift for part in parts)
    exponent_of_ratio = theta + largest_shift
    return fixed + exponent_of_ratio * slope, slope


def _log_total(terms: list[QuadratureTotals]) -> QuadratureTotals:
    """Return the sum over the parts of the steps, which are one or two."""
    if len(terms) == 1:
        return terms[0]
    first, second = terms
    return QuadratureTotals(
        log_rule=np.logaddexp(first.log_rule, second.log_rule),
        log_error=np.logaddexp(first.log_error, second.log_error),
        log_error_at=np.logaddexp(first.log_error_at, second.log_error_at),
    )


def _column(value: Array) -> Array:
    """Return a number, or one of each of some steps side by side, as an array [1 or steps, 1]."""
    return np.reshape(value, (-1, 1))


def _panel_edges(steps: Steps, windows: Windows, contour: Contour) -> Array:
    """Return the edges of the panels [steps, panels + 1], as close as `_panel_density` asks for, equally many."""
    # The number of panels from the lower end up to the end of each cell.
    lower = windows.lower[:, None]
    size = (windows.upper[:, None] - lower) / _CELLS
    middle = lower + size * (np.arange(_CELLS) + 0.5)
    panels_in_cell = _panel_density(steps, contour, middle, size) * size
    panels_below = np.zeros((len(lower), _CELLS + 1))
    np.cumsum(panels_in_cell, axis=1, out=panels_below[:, 1:])
    panels_needed = panels_below[:, -1]
    num_panels = _round_up_within(np.max(panels_needed) + 1.0, 2, MAX_PANELS)

    # The points at which this number passes equally spaced values.
    cell_edges = lower + size * np.arange(_CELLS + 1)
    goals = panels_needed[:, None] / num_panels * np.arange(num_panels + 1)
    edges = np.array([np.interp(*row) for row in zip(goals, panels_below, cell_edges, strict=True)])
    edges[:, 0] = windows.lower
    edges[:, -1] = windows.upper
    return edges


def _panel_density(steps: Steps, contour: Contour, u: Array, size: Array) -> Array:
    """Return the panels per unit of u [steps, n] that the quadrature needs.

    Where the mass is, that is enough for the oscillation of e^{itL} and for the slope of the weights; see
    `_turn_per_half_panel`. The points u [steps, n] are the middles of cells of this size [steps, 1].
    """
    noise_multiplier = steps.noise_multiplier
    log_count = np.log(steps.num_steps)[:, None]
    log_mass = -0.5 * u**2
    slope = np.zeros(u.shape)
    steepness = 0.06 * np.abs(u)
    for side, factor in steps.factors:
        ell = _likelihood_ratio.log_ratio(side * u, factor)
        slope_of_factor = _likelihood_ratio.posterior_mean(side * u, factor, ell) / noise_multiplier
        exponent = factor.shift + factor.sign * _column(contour.theta)
        log_mass = log_mass + exponent * ell
        slope = slope + slope_of_factor
        steepness = steepness + 0.06 * np.abs(exponent) * slope_of_factor

    # The cells whose errors could be felt after all steps.
    rough_log_a = _moments.log_sum(log_mass, axis=1)[:, None] + np.log(size)
    log_share = log_mass - rough_log_a + log_count
    matters = log_share > _column(contour.log_error) - 3.0

    # Half a panel may turn e^{itL} by the angle for which the rule is good enough.
    nats = log_count - _column(contour.log_error)
    turns_per_loss = 0.5 * _column(contour.cutoff) / _turn_per_half_panel(nats)
    turns = slope * turns_per_loss
    needed = np.where(matters, turns + steepness, 0.0)
    least = np.maximum(0.5 * steps.group_size / noise_multiplier, 0.25)
    return np.maximum(needed, least)


def _turn_per_half_panel(nats: Array) -> Array:
    """Return the angle by which e^{itL} may turn in half a panel, for an error of the rule of about e^-nats.

    At the angle a the best ellipse has log rho = x with a = 2 N / cosh x, and the error is e^{-2 N (x - tanh x)}.
    Newton's method solves for x.
    """
    order = 2.0 * _moments.NODES_PER_PANEL
    goal = np.clip(nats, 1.0, 200.0) / order
    x = np.cbrt(3.0 * goal)
    for _ in range(4):
        tanh = np.tanh(x)
        x -= (x - tanh - goal) / tanh**2
    return order / np.cosh(x)


def _fourier(loss: Array, weight: Array, frequency: Array) -> tuple[Array, Array]:
    """Return sum_i w_i e^{i t L_i} at each frequency t [kinds, frequencies], and bounds on the errors.

    The weights are spread over a periodic grid by a Gaussian kernel, whose transform is divided out of the grid's.

    Args:
        loss: the losses of each kind of event [kinds, n].
        weight: their weights [kinds, n].
        frequency: multiples of the second one [n], or those of each kind [kinds, n].

    Returns:
        the sums, and a bound on their errors at each frequency [frequencies], relative to sum_i w_i.
    """
    num_frequencies = frequency.shape[-1]
    size = scipy.fft.next_fast_len(_OVERSAMPLING * num_frequencies, real=True)

    # The places of the losses on the grid, in its cells. The remainders are exact.
    place = loss * (frequency[..., 1:2] * size / (2.0 * np.pi))
    cell = np.floor(place)
    spread = _spread(place - cell, weight)

    # The grid is a circle: what is beyond its end is added to its beginning. An infinite loss makes NaN of everything.
    num_kinds = len(loss)
    num_cells = size + _TAPS.size
    first_tap = np.nan_to_num(np.mod(cell + _TAPS[0], size)).astype(np.int64)
    first_tap += num_cells * np.arange(num_kinds)[:, None]
    index = first_tap + np.arange(_TAPS.size)[:, None, None]
    masses = np.bincount(index.reshape(-1), spread.reshape(-1), minlength=num_kinds * num_cells)
    masses = masses.reshape(num_kinds, num_cells)
    masses[:, : _TAPS.size] += masses[:, size:]

    # The weights are real, so the transform has the frequencies from 0 on.
    sums = scipy.fft.rfft(masses[:, :size])[:, :num_frequencies].conj()
    angle = (2.0 * np.pi * _KERNEL_WIDTH / size) * np.arange(num_frequencies)
    gain = np.exp(0.5 * angle**2)
    num_stages = np.log2(size)
    rounding = 32.0 + gain * (loss.shape[1] + 8.0 * num_stages + 48.0)
    return sums * (gain / (_KERNEL_WIDTH * np.sqrt(2.0 * np.pi))), UNIT_ROUNDOFF * rounding


def _spread(offset: Array, weight: Array) -> Array:
    """Return the shares of the weights in each of `_TAPS` [taps, kinds, n], at an offset from the left of the cell.

    e^{-c (x - j)^2} = e^{-c x^2} (e^{2 c x})^j e^{-c j^2}, and j is four times a whole number and the rest.
    """
    ratio = np.exp(2.0 * _KERNEL_RATE * offset)
    square = ratio**2
    rest = np.stack([np.ones(ratio.shape), ratio, square, square * ratio])

    fourth = square**2
    eighth = fourth**2
    twelfth = eighth * fourth
    fours = np.stack([1.0 / twelfth, 1.0 / eighth, 1.0 / fourth, rest[0], fourth, eighth, twelfth])
    fours *= weight * np.exp(-_KERNEL_RATE * offset**2)

    # The long axes come last, where NumPy is quick.
    products = (fours[:, None] * rest).reshape(_TAPS.size, *offset.shape)
    products *= _KERNEL[:, None, None]
    return products


def _finite_line(event: BoundedLossEvents, contour: Contour, frequency: Array) -> EventsOnLine:
    """Return the line of events of bounded loss of one kind."""
    theta = contour.theta
    at_zero_ulp = _bounded_losses.ratio_error(event, theta, 0.0)
    error_ulp = _bounded_losses.ratio_error(event, theta, frequency)

    points = np.array([theta, contour.below, contour.above])
    log_a = _bounded_losses.log_moment(event, points)
    alias_ulp = _bounded_losses.ratio_error(event, points[1:], np.zeros(2))
    return _one_kind(
        event.num_steps,
        _bounded_losses.ratio(event, theta, frequency),
        UNIT_ROUNDOFF * error_ulp,
        log_a[0],
        UNIT_ROUNDOFF * at_zero_ulp,
        log_a[1:] + UNIT_ROUNDOFF * alias_ulp,
        np.inf,
    )


def _one_kind(num_steps: float, *columns: Array) -> EventsOnLine:
    """Return the line of one kind of event, from its `EventsOnLine` without the axis of kinds."""
    return EventsOnLine(*(np.asarray(column)[None] for column in (num_steps, *columns)))


def _atoms_line(event: OutcomeEvents, contour: Contour, frequency: Array) -> EventsOnLine:
    """Return the line of events of known outcomes of one kind."""
    theta = contour.theta
    points = np.array([theta, contour.below, contour.above])
    log_moments = _atoms.log_moment(event, points)
    log_a = log_moments[0]
    exponent = event.log_weight + theta * event.loss - log_a
    weight = np.exp(exponent)

    # Averages over the nodes: of their relative errors, and of the errors of their losses.
    node_fixed, node_slope = _atoms.rounding_terms(event, exponent)
    slope = np.dot(weight, node_slope)
    largest_log = np.max(np.abs(log_moments))
    summing = 2.0 * (event.loss.size + largest_log) + 16.0
    fixed = np.dot(weight, node_fixed) + UNIT_ROUNDOFF * summing
    shift = 0.0
    if event.sign > 0:
        shift = 1.0
    at_zero = fixed + (theta + shift) * slope

    # As for steps: the ratio divides by the computed A(theta).
    sums, rounding = _fourier(event.loss[None], weight[None], frequency)
    ratio = sums[0] / np.sum(weight)
    error = at_zero + slope * frequency + at_zero + rounding
    error = error * (1.0 + 2.0 * at_zero)

    # At the two other exponents the losses may be further off, in proportion.
    largest_loss = np.max(np.abs(event.loss))
    loss_error = event.displacement + 16.0 * UNIT_ROUNDOFF * largest_loss
    room = (contour.above + 1.0) * loss_error
    alias = log_moments[1:] + 4.0 * at_zero + event.rounding + room
    return _one_kind(event.num_steps, ratio, error, log_a, at_zero, alias, np.inf)
