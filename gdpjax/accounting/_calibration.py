r"""Calibration: the noise multiplier or the number of steps that meets a privacy target.

    noise_multiplier = calibrate_noise_multiplier(epsilon=2.0, delta=1e-5, sampling_prob=0.01, num_steps=1000)

epsilon decreases in the noise multiplier and increases in num_steps, so "the best value that meets the target" is the
edge of a monotone condition. This module checks the target; `_search` finds the edge, for each accountant by its own
method:

* ``accountant="numeric"``, the default: secant steps on the upper end of the certified bracket, for epsilon, for mu, or
  for what an attacker can do: membership advantage, true positive rate at a false positive rate, success of a Bayesian
  attacker (Kulynych et al., arXiv:2407.02191 and arXiv:2507.06969).
  The end is at most the target at the value that is returned, and above it 2e-6 further on (for num_steps, one step
  further on), so as tight as the bracket itself.
* ``accountant="rdp"``: bisection on the moments accountant's upper bound; safe, and tight up to rounding.
* ``accountant="clt"``: the target (epsilon, delta) is one number, mu = gdp_mu(epsilon, delta), and
  mu = p sqrt(T (e^{1/s^2} - 1)) inverts in closed form. An asymptotic estimate: the true epsilon may exceed the target.

The traced functions return NaN where no value meets the target.
"""

from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.arguments import check_choice
from gdpjax._core.checks import COUNT, OPEN_UNIT, UNIT, Domain, check, is_traced
from gdpjax._core.types import FAILURE, Array, Floats, Numbers
from gdpjax.accounting._gdp import gdp_mu
from gdpjax.accounting._search import AXES, BISECTIONS, CLOSED_FORMS, SECANTS

_TARGET = Domain("a number > 0", lambda x: x > 0)
ACCOUNTANTS = ("numeric", "rdp", "clt")


def calibrate_noise_multiplier(
    *,
    epsilon: Numbers | None = None,
    delta: Numbers | None = None,
    mu: Numbers | None = None,
    failure: Numbers | None = None,
    advantage: Numbers | None = None,
    tpr: Numbers | None = None,
    fpr: Numbers | None = None,
    bayes_success: Numbers | None = None,
    prior: Numbers | None = None,
    sampling_prob: Numbers,
    num_steps: Numbers,
    accountant: str = "numeric",
) -> Floats:
    """Return the smallest noise multiplier that meets a privacy target.

    Formula: min { s : epsilon(s, sampling_prob, num_steps, delta) <= epsilon }; for "clt",
    s = log(1 + (mu / (sampling_prob sqrt(num_steps)))^2)^{-1/2}.

    Args:
        epsilon: target epsilon > 0 in nats, with delta; instead of mu. ``inf`` asks for no noise, 0.
        delta: probability strictly between 0 and 1.
        mu: target mu > 0: the (mu, failure) statement of `mu_bounds` for "numeric", the limiting mu for "clt".
        failure: failure probability of a certified mu statement, default 1e-10; only with accountant "numeric".
        advantage: target membership advantage, in (0, 1), instead of the others; this and the next only with "numeric".
        tpr: target true positive rate at ``fpr``, in (fpr, 1): no attack reaches more.
        fpr: the false positive rate, in (0, 1), of a target tpr.
        bayes_success: target success of an attacker with ``prior``, above max(prior, 1 - prior) and below 1.
        prior: probability of membership, in (0, 1), of a target bayes_success; default 1/2.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        accountant: "numeric" (certified), "rdp" (the moments accountant's upper bound) or "clt" (an estimate).

    Returns:
        noise_multiplier, of the broadcast shape. With "numeric" certified: the upper end of `epsilon_bounds` (or of
        what the target names) at this very value is at most the target, and exceeds it at a value smaller by 2e-6.
        With "rdp" an upper bound on the noise needed: the true epsilon is at most the target. With "clt" asymptotic:
        the true epsilon may exceed the target. NaN where traced and infeasible.

    Raises:
        ValueError: an argument outside its range, an incomplete target, an accountant that cannot serve it, or a target
            that no noise multiplier meets or every one does.

    Reference: Gopi, Lee and Wutschitz, arXiv:2106.02848 (numeric); Mironov, Talwar and Zhang, arXiv:1908.10530 (rdp);
    Bu, Dong, Long and Su, arXiv:1911.11607, Section 3 (clt).

    >>> s = calibrate_noise_multiplier(epsilon=2.0, delta=1e-5, sampling_prob=0.01, num_steps=1000, accountant="rdp")
    >>> print(f"{s:.4f}")
    1.0223
    """
    attack: Any = {"advantage": advantage, "tpr": tpr, "fpr": fpr, "bayes_success": bayes_success, "prior": prior}
    target = _checked_target(accountant, epsilon, delta, mu, failure, **attack)
    if _asks_for_nothing(target):
        check("sampling_prob", sampling_prob, UNIT)
        check("num_steps", num_steps, COUNT)
        shapes = [np.shape(value) for value in (*target.arguments.values(), sampling_prob, num_steps)]
        return np.zeros(np.broadcast_shapes(*shapes))[()]
    return _calibrate(
        "noise_multiplier",
        target,
        accountant,
        sampling_prob=sampling_prob,
        num_steps=num_steps,
    )


def calibrate_num_steps(
    *,
    epsilon: Numbers | None = None,
    delta: Numbers | None = None,
    mu: Numbers | None = None,
    failure: Numbers | None = None,
    advantage: Numbers | None = None,
    tpr: Numbers | None = None,
    fpr: Numbers | None = None,
    bayes_success: Numbers | None = None,
    prior: Numbers | None = None,
    noise_multiplier: Numbers,
    sampling_prob: Numbers,
    accountant: str = "numeric",
) -> Floats:
    """Return the largest number of steps that meets a privacy target.

    Formula: max { T >= 1 : epsilon(noise_multiplier, sampling_prob, T, delta) <= epsilon }.

    Args:
        epsilon: target epsilon > 0 in nats, with delta; instead of mu.
        delta: probability strictly between 0 and 1.
        mu: target mu > 0: the (mu, failure) statement of `mu_bounds` for "numeric", the limiting mu for "clt".
        failure: failure probability of a certified mu statement, default 1e-10; only with accountant "numeric".
        advantage: target membership advantage, in (0, 1), instead of the others; this and the next only with "numeric".
        tpr: target true positive rate at ``fpr``, in (fpr, 1): no attack reaches more.
        fpr: the false positive rate, in (0, 1), of a target tpr.
        bayes_success: target success of an attacker with ``prior``, above max(prior, 1 - prior) and below 1.
        prior: probability of membership, in (0, 1), of a target bayes_success; default 1/2.
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        accountant: "numeric" (certified), "rdp" (the moments accountant's upper bound) or "clt" (an estimate).

    Returns:
        num_steps, whole numbers in floating point, of the broadcast shape. With "numeric" certified: the upper end of
        `epsilon_bounds` (or of what the target names) is at most the target, and exceeds it 1 step further on (traced:
        at the next float32, above 2^24). With "rdp" safe: the true epsilon is at most the target. With "clt"
        asymptotic: it may exceed the target. NaN where traced and infeasible.

    Raises:
        ValueError: an argument outside its range, an incomplete target, an accountant that cannot serve it, or a target
            that not even one step meets, or 2^40 steps do.

    Reference: Gopi, Lee and Wutschitz, arXiv:2106.02848 (numeric); Mironov, Talwar and Zhang, arXiv:1908.10530 (rdp);
    Bu, Dong, Long and Su, arXiv:1911.11607, Section 3 (clt).

    >>> steps = calibrate_num_steps(mu=0.5, noise_multiplier=1.0, sampling_prob=0.01, accountant="clt")
    >>> print(int(steps))
    1454
    """
    attack: Any = {"advantage": advantage, "tpr": tpr, "fpr": fpr, "bayes_success": bayes_success, "prior": prior}
    target = _checked_target(accountant, epsilon, delta, mu, failure, **attack)
    return _calibrate(
        "num_steps",
        target,
        accountant,
        noise_multiplier=noise_multiplier,
        sampling_prob=sampling_prob,
    )


class _CheckedTarget(NamedTuple):
    """A target after the checks of its form.

    Attributes:
        kind: the kind of target, by which `_search` knows it.
        arguments: the keyword arguments of the search.
        description: the names of the arguments that gave it, for error messages.
    """

    kind: str
    arguments: dict[str, Any]
    description: str


def _asks_for_nothing(target: _CheckedTarget) -> bool:
    """Return whether every target is infinite, so that no noise at all meets it."""
    goal = target.arguments.get(target.kind)
    return not is_traced(goal) and bool(np.all(np.asarray(goal) == np.inf))


def _checked_target(
    accountant: str,
    epsilon: Array | None,
    delta: Array | None,
    mu: Array | None,
    failure: Array | None,
    **attack: Array | None,
) -> _CheckedTarget:
    """Return the target as keyword arguments of the searches, after the checks that need no numbers.

    ``attack`` is a target for what an attacker can do; None stands for all that was not given.
    """
    check_choice("accountant", accountant, ACCOUNTANTS)

    # A target for an attack.
    given = {name: value for name, value in attack.items() if value is not None}
    if given:
        others = (epsilon, delta, mu, failure)
        if accountant != "numeric" or any(value is not None for value in others):
            first, *_ = given
            raise ValueError(f'give one target: {first} goes with accountant "numeric", and without epsilon and mu')
        return _checked_attack_target(given)

    # Either mu, or epsilon and delta.
    if (epsilon is None) != (delta is None) or (epsilon is None) == (mu is None):
        raise ValueError("give one complete target: both epsilon and delta, or mu")
    if failure is not None and (accountant != "numeric" or mu is None):
        raise ValueError('failure belongs to a target mu with accountant "numeric"; leave it out')
    if accountant == "rdp" and mu is not None:
        raise ValueError(
            'accountant "rdp" bounds epsilon, not mu: give epsilon and delta, or choose "clt" (an estimate)'
        )

    if mu is None:
        check("epsilon", epsilon, _TARGET)
        return _CheckedTarget("epsilon", {"epsilon": epsilon, "delta": delta}, "epsilon and delta")
    check("mu", mu, _TARGET)
    arguments = {"mu": mu}
    if accountant != "clt":
        arguments["failure"] = FAILURE if failure is None else failure
    return _CheckedTarget("mu", arguments, " and ".join(arguments))


def _checked_attack_target(attack: dict[str, Array]) -> _CheckedTarget:
    """Return the target of an attack: a delta at some epsilon, or a true positive rate at a false positive rate."""
    if is_traced(list(attack.values())):
        raise ValueError("a target in terms of an attack must be numbers known before compiling")
    if attack.keys() == {"advantage"}:
        # The advantage is delta(0).
        check("advantage", attack["advantage"], OPEN_UNIT)
        return _CheckedTarget("level", {"level": attack["advantage"], "epsilon": 0.0}, "advantage")
    if attack.keys() == {"tpr", "fpr"}:
        return _true_positive_rate_target(**attack)
    if attack.keys() | {"prior"} == {"bayes_success", "prior"}:
        return _bayes_success_target(**attack)
    given = " and ".join(attack)
    raise ValueError(f"give a complete target: advantage, or tpr and fpr, or bayes_success (and prior), got {given}")


def _true_positive_rate_target(tpr: Array, fpr: Array) -> _CheckedTarget:
    """Return the target of a true positive rate at a false positive rate."""
    check("fpr", fpr, OPEN_UNIT)
    check("tpr", tpr, OPEN_UNIT)
    if not np.all(np.asarray(tpr) > np.asarray(fpr)):
        raise ValueError("tpr must be above fpr, which guessing reaches without looking at the release")
    return _CheckedTarget("tpr", {"tpr": tpr, "fpr": fpr}, "tpr and fpr")


def _bayes_success_target(bayes_success: Array, prior: Array = 0.5) -> _CheckedTarget:
    """Return the target of a success probability as that of a delta at some epsilon.

    The success of an attacker with prior q is max(q, 1 - q) + min(q, 1 - q) delta at the logarithm of their ratio. This
    is solved for delta, and lowered by more than the rounding of both formulas.
    """
    check("bayes_success", bayes_success, OPEN_UNIT)
    check("prior", prior, OPEN_UNIT)
    bayes_success = np.asarray(bayes_success, np.float64)
    prior = np.asarray(prior, np.float64)

    larger = np.maximum(prior, 1.0 - prior)
    smaller = np.minimum(prior, 1.0 - prior)
    log_ratio = np.log(larger / smaller)
    rounding = 4e-15 * (1.0 + log_ratio)
    level = (bayes_success * (1.0 - 2e-15) - larger) / smaller - rounding
    if not np.all(level > 0):
        raise ValueError("bayes_success must exceed max(prior, 1 - prior), which guessing reaches without the release")
    return _CheckedTarget("level", {"level": level, "epsilon": log_ratio}, "bayes_success")


def _calibrate(
    unknown: str,
    target: _CheckedTarget,
    accountant: str,
    **known: Array,
) -> Array:
    """Return the value of ``unknown`` that meets the target, or raise ValueError where there is none."""
    run = {**known, unknown: 1.0}  # a placeholder inside every domain
    arguments = target.arguments
    if accountant == "clt":
        mu = arguments.get("mu")
        if mu is None:
            mu = gdp_mu(arguments["epsilon"], arguments["delta"])
        answer = CLOSED_FORMS[unknown](mu, **run)
    elif accountant == "rdp":
        answer = BISECTIONS[unknown](**arguments, **run)
    else:
        answer = SECANTS[unknown, target.kind](**arguments, **run)
    if is_traced(answer.value):
        return answer.value

    axis = AXES[unknown]
    if answer.too_strict.any():
        raise ValueError(
            f"the target {target.description} cannot be met: even {unknown} = {axis.safest:.4g} exceeds it "
            f"by the accountant {accountant!r}"
        )
    if answer.too_lax.any():
        raise ValueError(
            f"the target {target.description} asks for nothing: even {unknown} = {axis.riskiest:.4g} meets it"
        )
    return answer.value
