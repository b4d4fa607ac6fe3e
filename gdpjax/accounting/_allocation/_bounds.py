"""Certified epsilon and delta of random allocation.

In each epoch of t steps an example takes part in exactly one, chosen uniformly:

    allocation_epsilon_bounds(noise_multiplier, steps_per_epoch, num_epochs, delta)

With noise multiplier s, the outputs of an epoch have under P the mixture (1/t) sum_i N(e_i, s^2 I), and under Q the law
N(0, s^2 I), so

    R = dP/dQ = (Y_1 + ... + Y_t) / t,      Y_i = e^{g_i / s - 1 / (2 s^2)},  g_i independent standard normal under Q.

`_lognormal` brackets the law of Y, `_average` that of R. For one epoch `_one_run` reads epsilon and delta off; several
epochs, and several blocks of steps, are composed by the contour of `_numeric`, once with the pair that understates and
once with the one that overstates. The derivation is docs/theory/allocation.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import COUNT, NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, is_traced
from gdpjax._core.gdp import gdp_delta, gdp_epsilon
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._allocation import _average, _lognormal, _one_run
from gdpjax.accounting._allocation._law import CELLS, Pair, lower_pair, upper_pair
from gdpjax.accounting._numeric import _driver, _plan
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._batch import batched
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run

_EPSILON_WIDTH = 3e-4
_DELTA_WIDTH = 3e-3
_FEWEST_CELLS = 512
_LOST_SHARE = 1e-5
_LOWEST_LOG_TAIL = -330.0
_LARGEST_ROUNDING = 0.01
_FIRST_LOG_DELTA = -25.0
_GUESSES = 2
_SLACK = 1e-9


class Scheme(NamedTuple):
    """What is run, in blocks of steps in each of which an example takes part once.

    There are ``counts[0]`` blocks of ``block`` steps and ``counts[1]`` blocks of one step more.
    """

    noise_multiplier: Array
    block: Array
    counts: Array


def make_scheme(noise_multiplier: Array, steps: Array, epochs: Array, selected: Array, fixed: Array) -> Scheme:
    """The blocks of ``epochs`` epochs in which ``selected`` of ``steps`` steps are drawn, one from each block.

    With ``fixed`` bins all epochs use the same draw. An example's E steps in a bin are then together one step with the
    noise multiplier s / sqrt(E).
    """
    noise_multiplier = jnp.where(fixed > 0, noise_multiplier / jnp.sqrt(epochs), noise_multiplier)
    epochs = jnp.where(fixed > 0, 1.0, epochs)
    block = jnp.floor(steps / selected)
    longer = steps - block * selected
    return Scheme(noise_multiplier, block, epochs * jnp.stack([selected - longer, longer]))


def _total_mu(scheme: Scheme) -> Array:
    """The mu of the run if it were known in which steps an example takes part."""
    return jnp.sqrt(jnp.sum(scheme.counts)) / scheme.noise_multiplier


def _is_gaussian(scheme: Scheme) -> Array:
    """Whether an example takes part in every step, so that the run has just that mu."""
    return (scheme.block == 1) & (scheme.counts[1] == 0)


def atoms_of_scheme(scheme: Scheme, log_tail: Array, size: Array) -> Atoms:
    """The two kinds of blocks as events of the contour: those that understate and those that overstate, stacked.

    Noise multipliers below the smallest that the grid is made for count as that one, which understates both.
    """
    noise = jnp.maximum(scheme.noise_multiplier, _lognormal.SMALLEST_NOISE)
    step, grid = _lognormal.one_step(noise, size, log_tail)
    longer = scheme.counts[1] > 0
    laws, grid = _average.average_of_steps(step, grid, scheme.block, longer, log_tail)
    # Where there are no longer blocks their law was not made.
    laws = laws[0], jax.tree.map(lambda of_block, of_longer: jnp.where(longer, of_longer, of_block), *laws)

    def both(make: Callable[..., Pair]) -> Pair:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(make(law, grid) for law in laws))

    pairs = jax.tree.map(lambda *leaves: jnp.stack(leaves), both(lower_pair), both(upper_pair))
    shape = pairs.lost_p.shape
    counts, mu, sign = (jnp.broadcast_to(value, shape) for value in (scheme.counts, 1.0 / noise, 1.0))
    return Atoms(num_steps=counts, mu=mu, sign=sign, **pairs._asdict())


def _cells(scheme: Scheme) -> Array:
    """How many grid values it takes: the more, the longer the blocks."""
    wanted = 420.0 * scheme.block**0.35
    return jnp.clip(jnp.ceil(wanted), _FEWEST_CELLS, CELLS)


def _log_tail(scheme: Scheme, log_delta: Array) -> Array:
    """The log of the mass to be left out at each end and in each round, so that a small share of delta is lost."""
    rounds = 2.0 + jnp.log2(scheme.block)
    wanted = log_delta + np.log(_LOST_SHARE) - jnp.log(rounds * jnp.sum(scheme.counts))
    return jnp.maximum(wanted, _LOWEST_LOG_TAIL)


def _is_single(scheme: Scheme) -> Array:
    """Whether there is one block altogether, and nothing to compose."""
    return jnp.sum(scheme.counts) == 1


def _certain(scheme: Scheme, atoms: Atoms) -> tuple[Array, Array]:
    """Whether the pairs say something about the lower and the upper end."""
    accurate = jnp.max(jnp.where(atoms.num_steps > 0, atoms.rounding, 0.0)) < _LARGEST_ROUNDING
    return accurate, accurate & (scheme.noise_multiplier >= _lognormal.SMALLEST_NOISE)


def _run(atoms: Atoms) -> Run:
    """A run of nothing else."""
    none = jnp.zeros(0)
    return Run(Step(none, none, none, none, none), None, atoms)


def _single(atoms: Atoms) -> tuple[Pair, Pair]:
    """The pairs of the first kind of block, from below and from above."""
    columns = [getattr(atoms, name) for name in Pair._fields]
    return Pair(*(column[0, 0] for column in columns)), Pair(*(column[1, 0] for column in columns))


def epsilon_of_scheme(scheme: Scheme, delta: Array) -> Bounds:
    """The bracket on epsilon, the larger of the two directions."""
    mu = _total_mu(scheme)
    gaussian = gdp_epsilon(delta, mu)
    # Where epsilon is close to zero delta fixes it absolutely.
    largest = gaussian * (1.0 + _SLACK) + 1e-12
    atoms = atoms_of_scheme(scheme, _log_tail(scheme, jnp.log(delta)), _cells(scheme))

    def directly() -> Bounds:
        return _one_run.epsilon_of_pairs(*_single(atoms), delta, largest)

    def composed() -> Bounds:
        ends = jax.lax.map(lambda part: _driver.epsilon_of_run(_run(part), jnp.log(delta), _EPSILON_WIDTH), atoms)
        return Bounds(ends.lower[0], ends.upper[1])

    bounds = jax.lax.cond(_is_single(scheme), directly, composed)
    lower_holds, upper_holds = _certain(scheme, atoms)
    lower = jnp.where(lower_holds, jnp.fmax(bounds.lower, 0.0), 0.0)
    upper = jnp.where(upper_holds, jnp.fmin(bounds.upper, largest), largest)
    exact = jnp.maximum(gaussian * (1.0 - _SLACK) - 1e-12, 0.0)
    return Bounds(jnp.where(_is_gaussian(scheme), exact, lower), upper)


def delta_of_scheme(scheme: Scheme, epsilon: Array) -> Bounds:
    """The bracket on delta, the larger of the two directions.

    How far the grid must reach depends on delta, so two coarse grids give a guess first.
    """
    gaussian = gdp_delta(epsilon, _total_mu(scheme))
    largest = gaussian * (1.0 + _SLACK) + 2.3e-308

    def attempt(i: Array, log_delta: Array) -> Atoms:
        size = jnp.where(i < _GUESSES, float(_FEWEST_CELLS), _cells(scheme))
        return atoms_of_scheme(scheme, _log_tail(scheme, log_delta), size)

    def refine(i: Array, state: tuple[Atoms, Array]) -> tuple[Atoms, Array]:
        atoms = attempt(i, state[1])
        return atoms, _guess_log_delta(jax.tree.map(lambda leaf: leaf[0], atoms), epsilon)

    shapes = jax.eval_shape(attempt, jnp.zeros((), np.int32), jnp.zeros(()))
    unknown = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = unknown, jnp.asarray(_FIRST_LOG_DELTA)
    atoms, _ = jax.lax.fori_loop(np.int32(0), np.int32(_GUESSES + 1), refine, start)

    def directly() -> Bounds:
        return _one_run.delta_of_pairs(*_single(atoms), epsilon)

    def composed() -> Bounds:
        ends = jax.lax.map(lambda part: _driver.log_delta_of_run(_run(part), epsilon, _DELTA_WIDTH), atoms)
        return Bounds(jnp.exp(ends.lower[0]) * (1.0 - 1e-12), jnp.exp(ends.upper[1]) * (1.0 + 1e-12))

    bounds = jax.lax.cond(_is_single(scheme), directly, composed)
    lower_holds, upper_holds = _certain(scheme, atoms)
    lower = jnp.where(lower_holds, jnp.fmax(bounds.lower - 2.3e-308, 0.0), 0.0)
    upper = jnp.where(upper_holds, jnp.fmin(bounds.upper, largest), largest)
    exact = jnp.maximum(gaussian * (1.0 - _SLACK) - 2.3e-308, 0.0)
    return Bounds(jnp.where(_is_gaussian(scheme), exact, lower), jnp.minimum(upper, 1.0))


def _guess_log_delta(atoms: Atoms, epsilon: Array) -> Array:
    """A rough log delta from the saddle-point formula, the larger of the two directions."""
    run = _run(atoms)
    guesses = [_plan.guess_log_delta(run.towards(jnp.asarray(sign)), epsilon) for sign in run.signs]
    guess = jnp.nan_to_num(jnp.maximum(*guesses), nan=_FIRST_LOG_DELTA)
    return jnp.clip(guess, _LOWEST_LOG_TAIL, 0.0)


_SCHEME = {
    "noise_multiplier": POSITIVE,
    "steps_per_epoch": COUNT,
    "num_epochs": COUNT,
    "num_selected": COUNT,
    "fixed": UNIT,
}


def _core(answer: Callable[[Scheme, Array], Bounds]) -> Callable[..., Bounds]:
    def core(noise: Array, steps: Array, epochs: Array, selected: Array, fixed: Array, at: Array) -> Bounds:
        possible = selected <= steps
        scheme = make_scheme(noise, steps, epochs, jnp.where(possible, selected, 1.0), fixed)
        bounds = answer(scheme, at)
        return jax.tree.map(lambda leaf: jnp.where(possible, leaf, jnp.nan), bounds)

    return core


_EPSILON = batched(_core(epsilon_of_scheme), **{**_SCHEME, "delta": OPEN_UNIT})  # pyright: ignore
_DELTA = batched(_core(delta_of_scheme), **{**_SCHEME, "epsilon": NONNEGATIVE})  # pyright: ignore


def _checked(steps_per_epoch: Array, num_selected: Array, bins: str) -> float:
    """1.0 for fixed bins and 0.0 for fresh ones; ValueError for anything else, or for too many steps selected."""
    if not isinstance(bins, str) or bins not in ("fresh", "fixed"):
        raise ValueError(f'bins must be "fresh" or "fixed", got {shown(bins)}')
    if not is_traced((steps_per_epoch, num_selected)):
        try:
            too_many = np.any(np.asarray(num_selected) > np.asarray(steps_per_epoch))
        except Exception:  # neither numbers nor shapes that broadcast, which is refused with its own words
            too_many = False
        if too_many:
            raise ValueError(
                f"num_selected must be at most steps_per_epoch, got {shown(num_selected)} of {shown(steps_per_epoch)}"
            )
    return float(bins == "fixed")


def allocation_epsilon_bounds(
    noise_multiplier: Array, steps_per_epoch: Array, num_epochs: Array, delta: Array,
    *, num_selected: Array = 1, bins: str = "fresh",
) -> Bounds:  # fmt: skip
    """Certified bracket on the exact epsilon of random allocation with Gaussian noise.

    In each epoch of t = steps_per_epoch steps an example takes part in exactly one, chosen uniformly and independently
    of other epochs. The smallest epsilon >= 0 with delta(epsilon) <= ``delta``, where delta(epsilon) is the larger of
    sup_S P(S) - e^epsilon Q(S) and sup_S Q(S) - e^epsilon P(S) for P = ((1/t) sum_i N(e_i, s^2 I))^E and
    Q = N(0, s^2 I)^E, s = noise_multiplier, E = num_epochs. No gradients, however they are chosen, do worse.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        steps_per_epoch: number of steps in an epoch, a whole number >= 1.
        num_epochs: number of epochs, a whole number >= 1.
        delta: strictly between 0 and 1. All arguments broadcast.
        num_selected: in how many steps of an epoch an example takes part, 1 <= k <= t: the epoch is cut into k blocks
            of floor(t/k) or ceil(t/k) steps, and one step of each is chosen.
        bins: "fresh" if the choice is made anew in each epoch, "fixed" if it is made once for all epochs (balls in
            bins), which is one epoch with the noise multiplier s / sqrt(E).

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape. Certified: the truth, in exact arithmetic, lies in between. The
        relative width is about 1e-3 or less for ordinary runs, larger in hard corners; at noise multipliers below
        0.05 the upper end is that of a run without allocation.

    Raises:
        ValueError: an argument outside its range, shapes that do not broadcast, more steps selected than there are.

    Reference: Feldman and Shenfeld, arXiv:2502.08202 (random allocation); Chua et al., arXiv:2410.06266 (balls in
    bins).

    >>> bounds = allocation_epsilon_bounds(1.0, 10, 5, 1e-5)
    >>> bool(bounds.lower <= 4.283 <= bounds.upper), bool(bounds.upper < 1.001 * bounds.lower)
    (True, True)
    """
    fixed = _checked(steps_per_epoch, num_selected, bins)
    return _EPSILON(noise_multiplier, steps_per_epoch, num_epochs, num_selected, fixed, delta)


def allocation_delta_bounds(
    noise_multiplier: Array, steps_per_epoch: Array, num_epochs: Array, epsilon: Array,
    *, num_selected: Array = 1, bins: str = "fresh",
) -> Bounds:  # fmt: skip
    """Certified bracket on the exact delta(epsilon) of random allocation with Gaussian noise.

    See `allocation_epsilon_bounds` for the definition of delta(epsilon).

    Args:
        noise_multiplier, steps_per_epoch, num_epochs, num_selected, bins: as in `allocation_epsilon_bounds`.
        epsilon: finite and >= 0. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified. The relative width is about 1e-2 for ordinary runs,
        larger in hard corners; below about 1e-130 only the lower end says something.

    Raises:
        ValueError: as `allocation_epsilon_bounds`.

    Reference: Feldman and Shenfeld, arXiv:2502.08202 (random allocation); Chua et al., arXiv:2410.06266 (balls in
    bins).

    >>> bounds = allocation_delta_bounds(1.0, 10, 5, 4.283)
    >>> bool(bounds.lower <= 1.0005e-5), bool(bounds.upper >= 0.9995e-5)
    (True, True)
    """
    fixed = _checked(steps_per_epoch, num_selected, bins)
    return _DELTA(noise_multiplier, steps_per_epoch, num_epochs, num_selected, fixed, epsilon)
