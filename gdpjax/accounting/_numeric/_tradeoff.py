"""The trade-off curve of a run, bracketed at given alpha.

The curve is f = min(f_rem, f_add)**, the convex symmetric curve that both directions obey; f_add is f_rem inverted.
With D(e) = max of the two deltas, f is the supremum of the curves of all (e, D(e)):

    f(alpha) = sup_{e >= 0} max(1 - D(e) - e^e alpha, e^{-e} (1 - D(e) - alpha)).

*Lower bound*: any e, with an upper bound on D(e).  *Upper bound*: explicit tests. The test L + eta N > e of the
direction "remove" (which never rejects on outcomes that were cut) has errors a(e) = Q(L + eta N > e) and
b(e) = 1 - P(L + eta N > e). So f(a) <= b and, exchanging the hypotheses, f(b) <= a; f is non-increasing and convex. An
upper bound on a is its trapezoid sum as it stands, since aliases are positive; an upper bound on b needs a lower bound
on P(L + eta N > e), whose aliases are at most 1 and at most e^{K(t) + eta^2 t^2 / 2 - t e}.

Three e are used: where the test's a is alpha, where its b is alpha (mirrored), and e = 0, between whose two points (a,
b), (b, a) the curve lies below the chord. Saddle-point formulas propose the first two, the test's own errors correct
them, and the lower bound is taken at the same e.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _contour, _driver, _line, _plan
from gdpjax.accounting._numeric._contour import Sums
from gdpjax.accounting._numeric._line import Contour, Transform
from gdpjax.accounting._numeric._plan import Masses
from gdpjax.accounting._numeric._run import Run

_WIDTH = 2e-3
_TINY = 2.3e-308  # what underflows to zero is positive


def tradeoff_of_run(run: Run, alpha: Array) -> Bounds:
    """The bracket on f(alpha), 0 < alpha < 1, of a run."""
    run = run.towards(jnp.ones(()))
    coarse = _plan.masses(run, _plan.windows(run, jnp.asarray(-60.0)))

    def one(kind: Array) -> Bounds:
        guess = _threshold(run, coarse, alpha, kind)
        start = jnp.where(kind == 2, 0.0, jnp.maximum(guess, 0.0))
        log_delta = jnp.clip(_plan.guess_log_delta(run, start), -600.0, -1e-9)
        upper, epsilon = _test(run, start, log_delta, alpha, kind)
        # The slope of f at alpha is about -e^epsilon there.
        epsilon = jnp.where(upper < 1.0, jnp.maximum(epsilon, 0.0), start)
        log_delta = _driver.log_delta_of_run(run, epsilon, _WIDTH)
        rest = 1.0 - jnp.exp(log_delta.upper) * (1.0 + 1e-12)
        lower = jnp.maximum(rest - jnp.exp(epsilon) * alpha, jnp.exp(-epsilon) * (rest - alpha))
        return Bounds(lower - 1e-15, upper)

    bounds = jax.lax.map(one, np.arange(3.0))
    lower = jnp.max(jnp.where(jnp.isnan(bounds.lower), 0.0, bounds.lower))
    upper = jnp.min(jnp.where(jnp.isnan(bounds.upper), 1.0, bounds.upper))
    return Bounds(jnp.maximum(lower, 0.0), jnp.minimum(upper * (1.0 + 1e-12) + _TINY, 1.0 - alpha))


def _threshold(run: Run, masses: Masses, alpha: Array, kind: Array) -> Array:
    """Roughly the e with Q(L > e) = alpha (kind 0) or P(L <= e) = alpha (kind 1), from the saddle-point formulas.

    A tail probability is e^{K(t) - side s e} / (s sqrt(2 pi (K'' + s^-2))) on the line K'(t) = e + side / s, s > 0;
    side is 1 for an upper tail and -1 for a lower one, and t = side s under P, side s - 1 under Q. The smaller tail
    is used, where the formula is accurate.
    """
    side = jnp.where((kind == 0) == (alpha < 0.5), 1.0, -1.0)
    goal = jnp.log(jnp.minimum(alpha, 1.0 - alpha))

    def point(s: Array) -> tuple[Array, Array]:
        k, k1, k2 = _plan.cumulants(run, masses, jnp.where(kind == 0, side * s - 1.0, side * s))
        e = k1 - side / s
        return e, k - side * s * e - jnp.log(s) - 0.5 * jnp.log(2.0 * np.pi * (k2 + s**-2))

    return point(_plan.bisect(lambda s: goal - point(s)[1], np.log(1e-7), np.log(1e10), 24))[0]


def _test(run: Run, epsilon: Array, log_delta: Array, alpha: Array, kind: Array) -> tuple[Array, Array]:
    """An upper bound on f(alpha) from the test at a threshold near ``epsilon`` (1 if none is found), and that."""
    window = _plan.windows(run, log_delta)
    plan = _plan.make_plan(run, window, epsilon, log_delta, jnp.asarray(_WIDTH), of_delta=True)
    data = _line.transform(run, window, plan.contour)
    sums = _contour.make_sums(("reject_q", "reject_p"), data, plan.contour, epsilon)

    def errors(shift: Array) -> tuple[Array, Array]:
        return _errors(data, plan.contour, sums, epsilon, shift)

    def towards(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        a, b = errors(middle)
        right = jnp.where(kind == 0, a > alpha, b < alpha)  # a falls and b rises with the threshold
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    reach = 0.3 * plan.contour.period
    low, high = jax.lax.fori_loop(np.int32(0), np.int32(30), towards, (-reach, reach))
    shift = jnp.where(kind == 2, 0.0, jnp.where(kind == 0, high, low))
    a, b = errors(shift)
    straight = jnp.where(a <= alpha, b, 1.0)
    mirrored = jnp.where(b <= alpha, a, 1.0)
    chord = jnp.where((a <= alpha) & (alpha <= b), a + (b - alpha), 1.0)  # b - alpha is exact where it is small
    return jnp.minimum(jnp.minimum(straight, mirrored), chord), epsilon + shift


def _errors(data: Transform, contour: Contour, sums: Sums, epsilon: Array, shift: Array) -> tuple[Array, Array]:
    """Certified upper bounds on the two errors of the test at threshold epsilon + shift."""
    value, _ = _contour.evaluate(sums, jnp.broadcast_to(shift, (2,)))
    e = epsilon + shift
    above = _contour.log_scale(data, contour, e, 1.0)
    below = _contour.log_scale(data, contour, e, -1.0)
    a = jnp.exp(above - e) * (jnp.maximum(value[0], 0.0) + sums.error[0])
    power = jnp.exp(below) * jnp.maximum(value[1] - sums.error[1], 0.0) - jnp.exp(_log_alias(data, contour, e))
    return jnp.clip(a * (1.0 + 1e-12), 0.0, 1.0), jnp.clip(1.0 - power * (1.0 - 1e-12), 0.0, 1.0)


def _log_alias(data: Transform, contour: Contour, e: Array) -> Array:
    """As `_contour.log_alias`, for P(L + eta N > .), which is at most 1 and at most e^{K + eta^2 t^2 / 2 - t e}."""
    theta, period = contour.theta, contour.period

    def side(t: Array, log_k: Array) -> Array:
        rate = jnp.abs(theta - t) * period
        return log_k + 0.5 * (contour.eta * t) ** 2 - t * e - rate - jnp.log(-jnp.expm1(-rate))

    trivial = -theta * period - jnp.log(-jnp.expm1(-theta * period))
    left = jnp.minimum(trivial, side(contour.below, data.log_below))
    return jnp.logaddexp(left, side(contour.above, data.log_above)) + 1e-9
