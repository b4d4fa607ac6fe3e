"""Events whose privacy loss is bounded: randomized response, (epsilon, 0)-DP and the Laplace mechanism, in closed form.

With e = `bound`, the largest loss, and k categories, randomized response tells the truth with probability a e^e and
each of the k - 1 other answers with probability a, a = 1 / (e^e + k - 1). For two inputs the loss is e, -e, or 0:

    A(z) = a e^e e^{ze} + a e^{-ze} + a (k - 2);

k = 2 is the worst of all (e, 0)-DP mechanisms. The Laplace mechanism of scale sensitivity / e has the loss |x| - |x -
e| (in units of the scale), x standard Laplace about e under P: e with probability 1/2, -e with e^{-e} / 2, and e - 2y
with density e^{-y} / 2 in between, 0 < y < e:

    A(z) = e^{ze} / 2 + e^{-e - ze} / 2 + e^{ze} (1 - e^{-(1 + 2z) e}) / (2 (1 + 2z)).

Both pairs are symmetric: the same for "remove" and "add".

**Rounding.** Divided by e^{theta e}, each term at z = theta + it has at most its modulus at theta, so a few ulp of
itself and of the phase t e are within (64 + 16 t e) ulp of A(theta) e^{-theta e}. That holds for the last quotient
too, whose complex expm1 is right to 8 (1 + t e) ulp of 1 + |(1 + 2z) e|, since A(theta) e^{-theta e} >= 1/2.

**The largest loss.** With n events of one kind the loss is n e with probability m = P(one has loss e)^n: an atom. The
test "the loss is the largest, L" alone gives delta(x) >= m (1 - e^{x - L}), so epsilon at delta < m is at least L +
log(1 - delta / m). At a tiny delta this is within delta / m of the truth, where the contour sees nothing: its smoothing
is wider than what is left below L. Whatever else the run releases, it reveals no less.

**Without composition.** (e, 0)-DP implies G_mu with Phi(-mu / 2) = 1 / (1 + e^e): G_mu is convex and passes through the
corner of f_{e, 0}. As e -> 0 mu -> sqrt(pi / 2) e, from below since logistic tails are heavier than normal ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtri

from gdpjax._core.types import Array

LAPLACE = 0.0
"""The number of categories that stands for the Laplace mechanism."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


class Finite(NamedTuple):
    """Events with bounded loss: scalars, or [F] for F of them."""

    num_steps: Array
    bound: Array
    categories: Array


def _log_terms(finite: Finite) -> tuple[Array, Array, Array]:
    """Logs of the probabilities of the losses e, -e and 0, without Laplace's continuous part."""
    e, k = finite.bound, finite.categories
    laplace = k == LAPLACE
    truth = jnp.where(laplace, -np.log(2.0), -jnp.log1p((jnp.where(laplace, 2.0, k) - 1.0) * jnp.exp(-e)))
    others = jnp.log(jnp.where(laplace, 0.0, k - 2.0))
    return truth, truth - e, truth - e + others


def distribution(finite: Finite) -> tuple[Array, Array]:
    """(losses, log weights), [27] each, of a discrete approximation: for planning only."""
    truth, lie, other = _log_terms(finite)
    e = finite.bound
    y = 0.5 * e * (1.0 + jnp.asarray(_NODES))
    log_y = jnp.log(0.25 * e * jnp.asarray(_WEIGHTS)) - y
    log_y = jnp.where(finite.categories == LAPLACE, log_y, -jnp.inf)
    losses = jnp.concatenate([jnp.stack([e, -e, jnp.zeros_like(e)]), e - 2.0 * y])
    return losses, jnp.concatenate([jnp.stack([truth, lie, other]), log_y])


def log_moment(finite: Finite, theta: Array) -> Array:
    """log A(theta), theta >= 0, right to (64 + 4 theta e) ulp."""
    truth, lie, other = _log_terms(finite)
    e = finite.bound
    spread = -jnp.expm1(-(1.0 + 2.0 * theta) * e) / (2.0 * (1.0 + 2.0 * theta))
    spread = jnp.where(finite.categories == LAPLACE, jnp.log(spread), -jnp.inf)
    terms = [truth + jnp.zeros_like(theta), lie - 2.0 * theta * e, other - theta * e, spread]
    return theta * e + logsumexp(jnp.stack(terms), axis=0)


def ratio(finite: Finite, theta: Array, frequency: Array) -> tuple[Array, Array]:
    """A(theta + it) / A(theta) as real and imaginary part."""
    truth, lie, other = _log_terms(finite)
    e = finite.bound
    total = log_moment(finite, theta) - theta * e
    truth, lie, other = (jnp.exp(x - total) for x in (truth, lie - 2.0 * theta * e, other - theta * e))
    z = jax.lax.complex(jnp.full_like(frequency, theta), frequency)
    turn = frequency * e
    cos, sin = jnp.cos(turn), jnp.sin(turn)
    real, imag = (truth + lie) * cos + other, (truth - lie) * sin
    quotient = -complex_expm1(-(1.0 + 2.0 * theta) * e, -2.0 * turn) / (2.0 * (1.0 + 2.0 * z)) * jnp.exp(-total)
    between = jnp.where(finite.categories == LAPLACE, quotient * jax.lax.complex(cos, sin), 0.0)
    return real + jnp.real(between), imag + jnp.imag(between)


def ratio_error(finite: Finite, theta: Array, frequency: Array) -> Array:
    """The error of `ratio` in ulp, that of dividing by A(theta) included."""
    return 128.0 + (16.0 * frequency + 8.0 * theta) * finite.bound


def complex_expm1(a: Array, b: Array) -> Array:
    """e^{a + ib} - 1 without cancellation near zero."""
    real = jnp.expm1(a) * jnp.cos(b) - 2.0 * jnp.sin(0.5 * b) ** 2
    return jax.lax.complex(real, jnp.exp(a) * jnp.sin(b))


def largest_loss(finite: Finite) -> Array:
    """The largest loss of all the events [F] together."""
    return jnp.sum(finite.num_steps * finite.bound) * (1.0 + 1e-12)


def largest_atom(finite: Finite) -> tuple[Array, Array]:
    """(L, log m) of the module docstring for all the events [F] together, both rounded down."""
    truth, _, _ = _log_terms(finite)
    # Without a loss the atom at 0 is everything.
    log_mass = jnp.sum(finite.num_steps * jnp.where(finite.bound > 0, truth, 0.0))
    loss = jnp.sum(finite.num_steps * finite.bound)
    return loss * (1.0 - 1e-12), log_mass - 1e-12 * (1.0 + jnp.abs(log_mass))


def epsilon_from_atom(finite: Finite, log_delta: Array) -> Array:
    """A lower bound on epsilon at e^log_delta, from the largest loss alone."""
    loss, log_mass = largest_atom(finite)
    share = jnp.minimum(log_delta + 1e-13 * (1.0 + jnp.abs(log_delta)) - log_mass, 0.0)
    return jnp.maximum(loss + jnp.log(-jnp.expm1(share)) * (1.0 + 1e-12) - 1e-12, 0.0)


def delta_from_atom(finite: Finite, epsilon: Array) -> Array:
    """A lower bound on delta at epsilon, from the largest loss alone."""
    loss, log_mass = largest_atom(finite)
    return jnp.exp(log_mass) * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0)) * (1.0 - 1e-12)


def squared_mu(finite: Finite) -> Array:
    """An upper bound on mu^2 of all the events [F] together."""
    e = finite.bound
    exact = -2.0 * ndtri(1.0 / (1.0 + jnp.exp(jnp.clip(e, 1e-3, 30.0)))) * (1.0 + 1e-9)
    # Phi(-x) <= e^{-x^2 / 2} / 2.
    far = 2.0 * jnp.sqrt(2.0 * (jnp.logaddexp(e, 0.0) - np.log(2.0)))
    mu = jnp.where(e < 1e-3, 1.2534 * e, jnp.where(e > 30.0, far, exact))
    return jnp.sum(finite.num_steps * mu**2) * (1.0 + 1e-12)
