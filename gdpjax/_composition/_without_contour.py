"""Runs that need no contour: those with a closed form, and Poisson runs with hardly any noise.

**Closed forms.** A run without sampling is one Gaussian mechanism with mu^2 = k^2 sum T / sigma^2. A single subsampled
step has

    delta(e) = p delta_{1 / sigma}(e'),        e^{e'} = 1 + (e^e - 1) / p,

where delta_mu is that of the Gaussian mechanism. With p = 1 this is e' = e, so one formula serves both.

    >>> from gdpjax._composition._likelihood_ratio import SubsampledGaussian
    >>> one_step = RunDescription((SubsampledGaussian(noise_multiplier=1.0, sampling_prob=0.5, num_steps=1.0),))
    >>> print(f"{closed_delta(one_step, epsilon=1.0).upper:.6f}")
    0.028868

docs/theory/contour.md has the proof and the slack for rounding ("Closed forms").

**Hardly any noise.** Such a run is bracketed by the number of steps that an example takes part in.

Let N ~ Bin(T, p) be this number. Where sigma is small every output shows whether the example took part, and the loss is
that of N Gaussian releases but for N log(1/p), which is little beside N / (2 sigma^2).

*From above.* Who is told which steps drew the example sees sqrt(N) / sigma-GDP, with N of the same law for both data
sets, so that in both directions

    delta(e) <= E delta_{sqrt(N) / sigma}(e).

*From below*, in the direction "remove", a step has log r(u) >= log(1 - p), and log r(u) >= log p + v with
v = (u - 1 / (2 sigma)) / sigma. Under P the v of the n steps that drew the example add up to n / (2 sigma^2) +
sqrt(n) g / sigma with a standard normal g, so that, given N = n,

    L >= a_n + sqrt(n) g / sigma,    a_n = n (1 / (2 sigma^2) + log p) + (T - n) log(1 - p),

and delta(e) = E_P (1 - e^{e - L})_+ >= (1 - e^{-t}) P(L >= e + t) for every t > 0.

*Where a row is replaced* the pair lies above that of "remove", whose second row is a null one, and its loss exceeds the
one of "remove" by -log r(-u) <= -log(1 - p) a step, so that

    delta_remove(e) <= delta(e) <= delta_remove(e + T log(1 - p)).

    >>> run = RunDescription((SubsampledGaussian(noise_multiplier=0.001, sampling_prob=0.01, num_steps=10.0),))
    >>> bracket = epsilon_by_number(run, 1e-5)
    >>> print(f"{bracket.lower:.4g} {bracket.upper:.4g}")
    1.503e+06 1.503e+06

*Rounding.* The logarithm of a binomial mass is a sum of terms below T log T in size, each right to a few ulp. Tails
are right to a relative 1e-11 after the rounding of their arguments, which is moved out of them.
"""

import numpy as np
import scipy

from gdpjax._composition._likelihood_ratio import SubsampledGaussian
from gdpjax._composition._moments import UNIT_ROUNDOFF
from gdpjax._composition._run_description import RunDescription, gaussian_mu, is_alone
from gdpjax._core.dominating import gaussian_delta
from gdpjax._core.gdp import subsampled_epsilon_kernel
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Array, Bounds

_LARGEST_NOISE = 0.03
"""For more noise the contour is better, and quick."""
_SUFFICES = 0.018
"""For less noise the contour finds nothing, in seconds."""
_TAIL_DEVIATIONS = 40.0
"""How many standard deviations, and how many numbers, of N are looked at on either side."""
_MOST_NUMBERS = 100_000
"""The most numbers N whose masses are added up; the rest is bounded."""
_SLACK = 1e-9
"""The relative slack for rounding."""
_GAPS = np.geomspace(1e-3, 30.0, 16)
"""The numbers t that are tried."""
_NUM_BISECTIONS = 60
_LEAST_EPSILON = 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# Closed forms.


def has_closed_form(run: RunDescription) -> bool:
    """Return whether nothing is sampled, or there is only one step, where one example is added or removed."""
    if not is_alone(run):
        return False
    if all(step.sampling_prob == 1.0 for step in run.steps):
        return True
    is_one_step = sum(step.num_steps * step.num_rows for step in run.steps) == 1.0
    return is_one_step and not run.steps[0].replaced


def closed_epsilon(run: RunDescription, delta: float) -> Bounds:
    """Bracket the smallest epsilon at delta of a run with a closed form."""
    sampling_prob = run.steps[0].sampling_prob
    value = subsampled_epsilon_kernel(np, delta, sampling_prob, gaussian_mu(run))
    # Where epsilon is close to zero delta fixes it absolutely.
    lower = value * (1.0 - _SLACK) - 1e-12
    upper = value * (1.0 + _SLACK) + 1e-12
    return Bounds(max(lower, 0.0), upper)


def closed_delta(run: RunDescription, epsilon: float | Array) -> Bounds:
    """Bracket delta at epsilon of a run with a closed form."""
    sampling_prob = run.steps[0].sampling_prob
    # e' = log(1 + (e^epsilon - 1) / p), without cancellation at small epsilon and without overflow at large epsilon.
    small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / sampling_prob)
    missed = (sampling_prob - 1.0) * np.exp(-np.maximum(epsilon, 1.0))
    large = epsilon + np.log1p(missed) - np.log(sampling_prob)
    lower, upper = gaussian_delta(np.where(epsilon < 1.0, small, large), gaussian_mu(run))
    return Bounds(sampling_prob * lower, sampling_prob * upper)


# ---------------------------------------------------------------------------------------------------------------------
# Hardly any noise.


def has_little_noise(run: RunDescription) -> bool:
    """Return whether the run is Poisson steps of one kind, of one example, with hardly any noise."""
    if not is_alone(run) or len(run.steps) != 1:
        return False
    (step,) = run.steps
    return (
        step.num_rows == 1
        and not step.symmetric
        and step.sampling_prob < 1.0
        and step.noise_multiplier < _LARGEST_NOISE
    )


def number_suffices(run: RunDescription) -> bool:
    """Return whether nothing better is known of a run with hardly any noise."""
    return run.steps[0].noise_multiplier < _SUFFICES


def epsilon_by_number(run: RunDescription, delta: float) -> Bounds:
    """Bracket epsilon at delta."""
    (step,) = run.steps
    numbers, mass, rest = _masses(step)
    largest = gaussian_mu(run) * (np.sqrt(-2.0 * np.log(delta)) + 0.5 * gaussian_mu(run)) + 1.0

    def is_above(log_epsilon: Array) -> Array:
        return np.asarray(_upper_delta(step, numbers, mass, rest, float(np.exp(log_epsilon))) <= delta)

    def is_below(log_epsilon: Array) -> Array:
        return np.asarray(_lower_delta(step, numbers, mass, float(np.exp(log_epsilon))) >= delta)

    low, high = np.log(_LEAST_EPSILON), np.log(largest)
    upper, _ = bisect_on_host(is_above, high, low, num_iterations=_NUM_BISECTIONS)
    lower, _ = bisect_on_host(is_below, low, high, num_iterations=_NUM_BISECTIONS)
    return Bounds(
        float(np.exp(lower)) if is_below(lower) else 0.0,
        float(np.exp(upper)) if is_above(upper) else np.inf,
    )


def delta_by_number(run: RunDescription, epsilon: float) -> Bounds:
    """Bracket delta at epsilon."""
    (step,) = run.steps
    numbers, mass, rest = _masses(step)
    return Bounds(_lower_delta(step, numbers, mass, epsilon), _upper_delta(step, numbers, mass, rest, epsilon))


def _masses(step: SubsampledGaussian) -> tuple[Array, Array, float]:
    """Return the likely numbers N, their masses, and a bound on the mass of all others."""
    num_steps, prob = step.num_steps, step.sampling_prob
    mean = num_steps * prob
    reach = _TAIL_DEVIATIONS * (np.sqrt(mean) + 1.0)
    first = max(np.floor(mean - reach), 0.0)
    last = min(np.ceil(mean + reach), num_steps, first + _MOST_NUMBERS)
    n = np.arange(first, last + 1.0)
    log_choices = scipy.special.gammaln(num_steps + 1.0) - scipy.special.gammaln(n + 1.0)
    log_choices = log_choices - scipy.special.gammaln(num_steps - n + 1.0)
    log_mass = log_choices + scipy.special.xlogy(n, prob) + scipy.special.xlog1py(num_steps - n, -prob)

    # P(N > last) and P(N < first) are incomplete beta functions.
    above = scipy.special.betainc(last + 1.0, num_steps - last, prob) if last < num_steps else 0.0
    below = scipy.special.betainc(num_steps - first + 1.0, first, 1.0 - prob) if first > 0 else 0.0
    return n, np.exp(log_mass), float(above + below) * (1.0 + _SLACK)


def _slack(step: SubsampledGaussian) -> float:
    """Return the logarithm of a factor that covers the rounding of masses and of tails."""
    size = step.num_steps * np.log(step.num_steps + 2.0)
    return _SLACK + 32.0 * UNIT_ROUNDOFF * size


def _upper_delta(step: SubsampledGaussian, numbers: Array, mass: Array, rest: float, epsilon: float) -> float:
    """Return the bound from above."""
    if step.replaced:
        epsilon += step.num_steps * np.log1p(-step.sampling_prob) * (1.0 + _SLACK)
        if not epsilon >= 0:
            return 1.0
    mu = np.sqrt(np.maximum(numbers, 1.0)) / step.noise_multiplier
    given = np.where(numbers > 0, gaussian_delta(epsilon, mu).upper, 0.0)
    return min(float(mass @ given) * np.exp(_slack(step)) + rest, 1.0)


def _lower_delta(step: SubsampledGaussian, numbers: Array, mass: Array, epsilon: float) -> float:
    """Return the bound from below, at the best of `_GAPS`."""
    noise_multiplier, prob = step.noise_multiplier, step.sampling_prob
    n = np.maximum(numbers, 1.0)
    loss = n * (0.5 / noise_multiplier**2 + np.log(prob)) + (step.num_steps - n) * np.log1p(-prob)
    goal = epsilon + _GAPS[:, None]

    # Where no step draws the example the loss is at most 0.
    scale = np.sqrt(n) / noise_multiplier
    z = (loss - goal) / scale
    sizes = n * (0.5 / noise_multiplier**2 - np.log(prob)) - (step.num_steps - n) * np.log1p(-prob) + goal
    z = z - 8.0 * UNIT_ROUNDOFF * sizes / scale
    share = np.where(numbers > 0, scipy.special.ndtr(z), 0.0)
    wins = -np.expm1(-_GAPS) * (share @ mass)
    return max(float(np.max(wins)) * np.exp(-_slack(step)), 0.0)
