r"""The searches for the edge of a privacy target, one method for each accountant; `_calibration` calls them.

A target is a number, an epsilon, a mu, a delta or a rate, that an accountant's upper bound must not exceed. The bound
decreases in the noise multiplier and increases in num_steps. Each method here returns a `CalibratedValue`, which lies
on the safe side of the edge.

* *Closed form* ("clt"): mu = p sqrt(T (e^{1/s^2} - 1)), solved for the unknown in logarithms.
* *Bisection* ("rdp"): `gdpjax._core.roots.bisect` on the moments accountant, all elements side by side, to rounding.
* *Secant steps* ("numeric"): an evaluation of the certified bracket costs milliseconds (epsilon) to a second (mu), so
  few may be spent. `gdpjax._core.roots.advance` needs few, and goes to 2e-6 of the unknown, or to one step. The search
  starts at the clt's closed form and works in the coordinates in which that formula is a straight line.
  With z = Phi^{-1}(1 - d),

      y = log mu,    or    y = log(sqrt(z^2 + 2 epsilon) - z + d sqrt(2 pi))

  for a target (epsilon, d). This is the mu whose epsilon that roughly is; the last term matters where epsilon is nearly
  0. Against the logarithm of the unknown, y has slope 1/2 for num_steps and -h^2 / (1 - e^{-h^2}), h = 1/s, for the
  noise multiplier, as far as the limit theorem holds. The certified upper end alone decides whether the target is met,
  at the very value that is returned.

"numeric" runs on the host, where each round evaluates the elements that are not finished. In traced code it is a call
back to the host, as the accountant is.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._composition import _questions, of_runs
from gdpjax._core import roots
from gdpjax._core.checks import NONNEGATIVE, OPEN_UNIT, POSITIVE, RUN, Domain, is_traced, known
from gdpjax._core.precision import batched, float64_function
from gdpjax._core.roots import Axis, bisect, geometric_midpoint, whole_midpoint
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._rdp import moments_epsilon_kernel

# The searches aim a little below the target, by more than two compilations of one formula can differ.
_SEARCH_MARGIN = 1 - 1e-10
_CLOSED_MARGIN = 1 - 1e-12

AXES = {
    "noise_multiplier": Axis(2.0**60, 2.0**-10),
    "num_steps": Axis(1.0, 2.0**40, whole=True),
}
_ROUNDING = {"noise_multiplier": "up", "num_steps": "down"}


class CalibratedValue(NamedTuple):
    """The value at the edge of a target, NaN where there is none, and why there is none.

    Attributes:
        value: the calibrated value, on the safe side of the edge.
        too_strict: whether even the safest value misses the target.
        too_lax: whether even the riskiest value meets it.
    """

    value: Array
    too_strict: Array
    too_lax: Array


def _calibrated(
    xp: Any,
    value: Array,
    too_strict: Array,
    too_lax: Array,
) -> CalibratedValue:
    """Return the value where there is one."""
    value = xp.where(too_strict | too_lax, xp.nan, value)
    return CalibratedValue(value, too_strict, too_lax)


def _clt_inverse(
    xp: Any,
    unknown: str,
    log_mu: Array,
    run: Sequence[Array],
) -> tuple[Array, Array]:
    """Return the value at which mu = p sqrt(T (e^{h^2} - 1)), h = 1/s, and |d log mu / d log value| there."""
    noise_multiplier, sampling_prob, num_steps = run
    if unknown == "noise_multiplier":
        # h^2 = log(1 + mu^2 / (p^2 T)), without overflow.
        log_ratio = 2 * (log_mu - xp.log(sampling_prob)) - xp.log(num_steps)
        squared = xp.logaddexp(0.0, log_ratio)
        return 1 / xp.sqrt(squared), squared / -xp.expm1(-squared)

    # The logarithm of mu / sqrt(e^{h^2} - 1), which is p sqrt(T).
    squared = noise_multiplier**-2.0
    log_scale = log_mu - 0.5 * squared - 0.5 * xp.log(-xp.expm1(-squared))
    value = xp.exp(2 * (log_scale - xp.log(sampling_prob)))
    return value, xp.full_like(log_scale, 0.5)


def _closed_form(unknown: str) -> Callable[..., CalibratedValue]:
    """Return the calibration of ``unknown`` to a limiting mu."""
    axis = AXES[unknown]

    @float64_function(rounding=_ROUNDING[unknown], mu=POSITIVE, **RUN)
    def closed_form(
        mu: Array,
        noise_multiplier: Array,
        sampling_prob: Array,
        num_steps: Array,
    ) -> CalibratedValue:
        run = noise_multiplier, sampling_prob, num_steps
        log_mu = jnp.log(mu * _CLOSED_MARGIN)
        value, _ = _clt_inverse(jnp, unknown, log_mu, run)
        if axis.whole:
            value = jnp.floor(value)
        too_strict = axis.sign * (value - axis.safest) < 0
        too_lax = axis.sign * (value - axis.riskiest) > 0
        return _calibrated(jnp, value, too_strict, too_lax)

    return closed_form


def _bisection(unknown: str) -> Callable[..., CalibratedValue]:
    """Return the calibration of ``unknown`` to an epsilon of the moments accountant."""
    axis = AXES[unknown]
    midpoint = whole_midpoint if axis.whole else geometric_midpoint
    num_iterations = 42

    @float64_function(rounding=_ROUNDING[unknown], epsilon=POSITIVE, delta=DELTA, **RUN)
    def search(
        epsilon: Array,
        delta: Array,
        noise_multiplier: Array,
        sampling_prob: Array,
        num_steps: Array,
    ) -> CalibratedValue:
        run = {
            "noise_multiplier": noise_multiplier,
            "sampling_prob": sampling_prob,
            "num_steps": num_steps,
        }

        def meets_target(value: Array) -> Array:
            run_at_value = {**run, unknown: value}
            return moments_epsilon_kernel(**run_at_value, delta=delta) <= epsilon * _SEARCH_MARGIN

        # The ends are one beyond the whole numbers of the axis. An end that comes back was not evaluated.
        shape = jnp.broadcast_shapes(epsilon.shape, delta.shape, *(value.shape for value in run.values()))
        safest = axis.safest - axis.whole
        riskiest = axis.riskiest + axis.whole
        ends = jnp.full(shape, safest), jnp.full(shape, riskiest)
        holds, fails = bisect(meets_target, *ends, midpoint=midpoint, num_iterations=num_iterations)
        return _calibrated(jnp, holds, holds == safest, fails == riskiest)

    return search


class _Target(NamedTuple):
    """A kind of target.

    Attributes:
        bounds: the certified bracket of it, a function of a run and of the condition.
        domains: names and domains of the goal and of the condition, which is a delta, failure, epsilon or fpr.
        coordinate: y of the module docstring, a function of the goal and the condition.
    """

    bounds: Callable[..., Any]
    domains: dict[str, Domain]
    coordinate: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _log_rough_mu(epsilon: Array, delta: Array) -> Array:
    """Return the log of the mu whose epsilon at delta is roughly this."""
    z = -scipy.special.ndtri(delta)
    root = np.sqrt(z * z + 2 * epsilon)
    # root - z, without cancellation.
    mu = np.where(z > 0, 2 * epsilon / (np.abs(z) + root), root - z)
    return np.log(mu + delta * np.sqrt(2 * np.pi))


def _log_mu(mu: Array, failure: Array) -> Array:
    """Return the log of mu, at any failure probability."""
    return np.log(mu)


def _log_mu_of_level(level: Array, epsilon: Array) -> Array:
    """Return the log of the mu whose delta at epsilon is roughly this level."""
    return _log_rough_mu(epsilon, level)


def _log_mu_of_rates(tpr: Array, fpr: Array) -> Array:
    """Return the log of the mu whose true positive rate is ``tpr`` at a false positive rate."""
    mu = scipy.special.ndtri(tpr) - scipy.special.ndtri(fpr)
    return np.log(np.maximum(mu, 1e-300))


def _true_positive_rate(*arguments: Array) -> Bounds:
    """Bracket 1 - f(fpr); its rounding is far below the margin of the search."""
    beta = of_runs(_questions.TRADEOFF)(*arguments)
    return Bounds(1.0 - beta.upper, 1.0 - beta.lower)


_TARGETS = {
    "epsilon": _Target(
        bounds=of_runs(_questions.EPSILON),
        domains={"epsilon": POSITIVE, "delta": DELTA},
        coordinate=_log_rough_mu,
    ),
    "mu": _Target(
        bounds=of_runs(_questions.MU),
        domains={"mu": POSITIVE, "failure": OPEN_UNIT},
        coordinate=_log_mu,
    ),
    "level": _Target(
        bounds=of_runs(_questions.DELTA),
        domains={"level": OPEN_UNIT, "epsilon": NONNEGATIVE},
        coordinate=_log_mu_of_level,
    ),
    "tpr": _Target(
        bounds=_true_positive_rate,
        domains={"tpr": OPEN_UNIT, "fpr": OPEN_UNIT},
        coordinate=_log_mu_of_rates,
    ),
}
"""A level is a delta at a given epsilon: the goal there is delta, as advantage and Bayes success ask for."""


def _secant(unknown: str, target: _Target) -> Callable[..., CalibratedValue]:
    """Return the calibration of ``unknown`` to a target of the certified accountant."""
    axis = AXES[unknown]
    domains: dict[str, Any] = {**target.domains, **RUN}

    def upper_end(point: Array, condition: Array, *run: Array) -> Array:
        """Return the certified upper end of what the target bounds, with the unknown at ``point``."""
        columns = [point if name == unknown else column for name, column in zip(RUN, run, strict=True)]
        return target.bounds(*columns, condition).upper

    def on_host(goal: Array, condition: Array, *run: Array) -> CalibratedValue:
        """Return the answer for columns, one element a search; each round evaluates the unfinished ones."""
        with np.errstate(all="ignore"):
            # The search starts at the central limit theorem's value.
            goal_coordinate = target.coordinate(goal, condition)
            value, slope = _clt_inverse(np, unknown, goal_coordinate, run)
            state = roots.begin(axis, value, slope)
            upper = np.zeros_like(goal)
            while not state.done.all():
                active = ~state.done
                upper[active] = upper_end(*[column[active] for column in (state.point, condition, *run)])
                excess = target.coordinate(upper, condition) - goal_coordinate
                state = roots.advance(axis, state, excess, upper <= goal * _SEARCH_MARGIN)
            too_lax = state.held & (state.holds == axis.riskiest)
            return _calibrated(np, state.holds, ~state.held, too_lax)

    def of_rows(rows: list[tuple[float, ...]]) -> Array:
        return on_host(*np.array(rows, np.float64).T).value

    traced_search = batched(of_rows, bounds=False, **domains)

    def search(**arguments: Array) -> CalibratedValue:
        values = [arguments[name] for name in domains]
        if is_traced(values):
            value = traced_search(*values)
            return CalibratedValue(value, jnp.isnan(value), jnp.isnan(value))

        columns = np.broadcast_arrays(*[known(name, arguments[name], domain) for name, domain in domains.items()])
        shape = columns[0].shape
        answer = on_host(*[column.ravel() for column in columns])
        return CalibratedValue(*[part.reshape(shape)[()] for part in answer])

    return search


CLOSED_FORMS = {unknown: _closed_form(unknown) for unknown in AXES}
BISECTIONS = {unknown: _bisection(unknown) for unknown in AXES}
SECANTS = {(unknown, kind): _secant(unknown, target) for unknown in AXES for kind, target in _TARGETS.items()}
