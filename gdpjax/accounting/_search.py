r"""How calibration finds the edge of a privacy target, one method per accountant.

A target is a number, an epsilon, a mu, a delta or a rate, that an accountant's upper bound must not exceed; the bound
decreases in the noise multiplier and increases in num_steps and sampling_prob. Each method here returns an `Answer`,
whose value lies on the safe side of the edge.

* *closed form* ("clt"): mu = p sqrt(T (e^{1/s^2} - 1)), solved for the unknown in logarithms.
* *bisection* ("rdp"): `gdpjax._core.roots.bisect` on the moments accountant, all elements side by side, to rounding.
* *secant steps* ("numeric"): an evaluation of the certified bracket costs milliseconds (epsilon) to a second (mu), so
  few may be spent: `gdpjax._core.roots.advance`, to 2e-6 of the unknown, or to one step. The search
  starts at the clt's closed form and works in the coordinates in which that formula is a straight line.
  With z = Phi^{-1}(1 - d),

      y = log mu,    or    y = log(sqrt(z^2 + 2 epsilon) - z + d sqrt(2 pi))

  for a target (epsilon, d): the mu whose epsilon that roughly is, the last term where epsilon is nearly 0. Against the
  logarithm of the unknown, y has slope 1/2 for num_steps, 1 for sampling_prob and -h^2 / (1 - e^{-h^2}), h = 1/s, for
  the noise multiplier, as far as the limit theorem holds. Whether the target is met is decided by the certified upper
  end alone, at the very value that is returned.

"numeric" runs on the host, where each round evaluates the elements that are not finished; in traced code it is a call
back to the host, as the accountant is.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core import roots
from gdpjax._core.checks import COUNT, NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, Domain, check, check_broadcast, is_traced
from gdpjax._core.precision import batched, float64_function
from gdpjax._core.roots import Axis, bisect, geometric_midpoint, whole_midpoint
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._numeric import of_runs
from gdpjax.accounting._rdp import moments_epsilon_kernel

# Aim a little below the target, by more than two compilations of one formula can differ.
_SEARCH_MARGIN = 1 - 1e-10
_CLOSED_MARGIN = 1 - 1e-12

AXES = {
    "noise_multiplier": Axis(2.0**60, 2.0**-10),
    "num_steps": Axis(1.0, 2.0**40, whole=True),
    "sampling_prob": Axis(2.0**-100, 1.0),
}
_ROUNDING = {"noise_multiplier": "up", "num_steps": "down", "sampling_prob": "down"}
_RUN: dict[str, Any] = {"noise_multiplier": POSITIVE, "sampling_prob": UNIT, "num_steps": COUNT}


class Answer(NamedTuple):
    """The value, NaN where there is none, and why: even the safest end misses the target, or the riskiest meets it."""

    value: Array
    too_strict: Array
    too_lax: Array


def _answer(xp: Any, unknown: str, value: Array, too_strict: Array, too_lax: Array) -> Answer:
    lax_value = 1.0 if unknown == "sampling_prob" else xp.nan
    return Answer(xp.where(too_strict, xp.nan, xp.where(too_lax, lax_value, value)), too_strict, too_lax)


def _clt_inverse(xp: Any, unknown: str, log_mu: Array, run: Sequence[Array]) -> tuple[Array, Array]:
    """The value at which mu = p sqrt(T (e^{h^2} - 1)), h = 1/s, and |d log mu / d log value| there."""
    noise, prob, steps = run
    if unknown == "noise_multiplier":
        squared = xp.logaddexp(0.0, 2 * (log_mu - xp.log(prob)) - xp.log(steps))  # h^2, without overflow
        return 1 / xp.sqrt(squared), squared / -xp.expm1(-squared)
    squared = noise**-2.0
    rest = log_mu - 0.5 * squared - 0.5 * xp.log(-xp.expm1(-squared))
    if unknown == "num_steps":
        return xp.exp(2 * (rest - xp.log(prob))), xp.full_like(rest, 0.5)
    return xp.exp(rest - 0.5 * xp.log(steps)), xp.ones_like(rest)


def _closed_form(unknown: str) -> Callable[..., Answer]:
    axis = AXES[unknown]

    @float64_function(rounding=_ROUNDING[unknown], mu=POSITIVE, **_RUN)
    def closed_form(mu: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> Answer:
        run = noise_multiplier, sampling_prob, num_steps
        value, _ = _clt_inverse(jnp, unknown, jnp.log(mu * _CLOSED_MARGIN), run)
        value = jnp.floor(value) if axis.whole else value
        return _answer(
            jnp, unknown, value, axis.sign * (value - axis.safest) < 0, axis.sign * (value - axis.riskiest) > 0
        )

    return closed_form


def _bisection(unknown: str) -> Callable[..., Answer]:
    axis = AXES[unknown]
    midpoint, iterations = (whole_midpoint, 41) if axis.whole else (geometric_midpoint, 42)

    @float64_function(rounding=_ROUNDING[unknown], epsilon=POSITIVE, delta=DELTA, **_RUN)
    def search(epsilon: Array, delta: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> Answer:
        run = {"noise_multiplier": noise_multiplier, "sampling_prob": sampling_prob, "num_steps": num_steps}

        def meets(value: Array) -> Array:
            return moments_epsilon_kernel(**{**run, unknown: value}, delta=delta) <= epsilon * _SEARCH_MARGIN

        shape = jnp.broadcast_shapes(epsilon.shape, delta.shape, *(value.shape for value in run.values()))
        ends = jnp.full(shape, axis.safest), jnp.full(shape, axis.riskiest)
        found = bisect(meets, *ends, midpoint=midpoint, num_iterations=iterations)
        return _answer(jnp, unknown, found.holds, ~found.first_held, found.last_held)

    return search


class _Target(NamedTuple):
    """A kind of target: the certified bracket of it, the domains of the goal and of delta or failure, and y."""

    bounds: Callable[..., Any]
    domains: dict[str, Domain]
    coordinate: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _log_rough_mu(epsilon: Array, delta: Array) -> Array:
    z = -scipy.special.ndtri(delta)
    root = np.sqrt(z * z + 2 * epsilon)
    mu = np.where(z > 0, 2 * epsilon / (np.abs(z) + root), root - z)
    return np.log(mu + delta * np.sqrt(2 * np.pi))


def _log_mu_of_level(level: Array, epsilon: Array) -> Array:
    return _log_rough_mu(epsilon, level)


def _true_positive_rate(*arguments: Array) -> Bounds:
    """The bracket on 1 - f(fpr); its rounding is far below the margin of the search."""
    beta = of_runs("tradeoff")(*arguments)
    return Bounds(1.0 - beta.upper, 1.0 - beta.lower)


def _log_mu_of_rates(tpr: Array, fpr: Array) -> Array:
    return np.log(np.maximum(scipy.special.ndtri(tpr) - scipy.special.ndtri(fpr), 1e-300))


_TARGETS = {
    "epsilon": _Target(of_runs("epsilon"), {"epsilon": POSITIVE, "delta": DELTA}, _log_rough_mu),
    "mu": _Target(of_runs("mu"), {"mu": POSITIVE, "failure": OPEN_UNIT}, lambda mu, failure: np.log(mu)),
    "level": _Target(of_runs("delta"), {"level": OPEN_UNIT, "epsilon": NONNEGATIVE}, _log_mu_of_level),
    "tpr": _Target(_true_positive_rate, {"tpr": OPEN_UNIT, "fpr": OPEN_UNIT}, _log_mu_of_rates),
}
"""A level is a delta at a given epsilon: the goal there is delta, as advantage and Bayes success ask for."""


class _Steps(NamedTuple):
    """The secant search for one unknown and one kind of target, on the host."""

    unknown: str
    target: _Target

    def begin(self, goal: Array, chance: Array, *run: Array) -> roots.Search:
        guess = _clt_inverse(np, self.unknown, self.target.coordinate(goal, chance), run)
        return roots.begin(AXES[self.unknown], *guess)

    def upper_end(self, point: Array, chance: Array, *run: Array) -> Array:
        values = [point if name == self.unknown else value for name, value in zip(_RUN, run, strict=True)]
        return self.target.bounds(*values, chance).upper

    def advance(self, state: roots.Search, upper: Array, goal: Array, chance: Array) -> roots.Search:
        excess = self.target.coordinate(upper, chance) - self.target.coordinate(goal, chance)
        return roots.advance(AXES[self.unknown], state, excess, upper <= goal * _SEARCH_MARGIN)

    def answer(self, state: roots.Search) -> Answer:
        too_lax = np.logical_and(state.held, state.holds == AXES[self.unknown].riskiest)
        return _answer(np, self.unknown, state.holds, ~state.held, too_lax)

    def of_one(self, *row: float) -> float:
        """The value for one element."""
        return float(self.on_host(*(np.array([number]) for number in row)).value[0])

    def on_host(self, goal: Array, chance: Array, *run: Array) -> Answer:
        """The answer for many elements; each round evaluates the unfinished ones."""
        with np.errstate(all="ignore"):
            state = self.begin(goal, chance, *run)
            upper = np.zeros_like(goal)
            while not state.done.all():
                left = ~state.done
                upper[left] = self.upper_end(*(row[left] for row in (state.point, chance, *run)))
                state = self.advance(state, upper, goal, chance)
            return self.answer(state)


def _secant(unknown: str, target: _Target) -> Callable[..., Answer]:
    steps = _Steps(unknown, target)
    domains: dict[str, Any] = {**target.domains, **_RUN}
    traced = batched(steps.of_one, bounds=False, **domains)

    def search(**arguments: Array) -> Answer:
        values = [arguments[name] for name in domains]
        if is_traced(values):
            value = traced(*values)
            return Answer(value, jnp.isnan(value), jnp.isnan(value))
        for name, domain in domains.items():
            check(name, arguments[name], domain)
        check_broadcast(**arguments)
        rows = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))
        answer = steps.on_host(*(row.ravel() for row in rows))
        return Answer(*(part.reshape(rows[0].shape)[()] for part in answer))

    return search


CLOSED_FORMS = {unknown: _closed_form(unknown) for unknown in AXES}
BISECTIONS = {unknown: _bisection(unknown) for unknown in AXES}
SECANTS = {(unknown, kind): _secant(unknown, target) for unknown in AXES for kind, target in _TARGETS.items()}
