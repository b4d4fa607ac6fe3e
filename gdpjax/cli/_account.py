"""``gdpjax account``, what a run costs, and ``gdpjax calibrate``, the noise that meets a target."""

import argparse
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gdpjax._core.types import FAILURE
from gdpjax.accounting import (
    calibrate_noise_multiplier,
    certified,
    clt_epsilon,
    clt_mu_poisson,
    moments_accountant_epsilon,
)
from gdpjax.accounting._reliability import proves_reliable
from gdpjax.cli._report import CLT_CAVEAT, Row, add_json_option, printed, rounded
from gdpjax.cli._runs import add_run_options, run_of_options
from gdpjax.tradeoff import CertifiedCurve

_ATTACKS = ("advantage", "tpr", "fpr", "bayes_success", "prior")
"""Options of a target in terms of what an attacker can do."""
_DIGITS = 8
"""Of a calibrated noise multiplier."""


def add_parser(commands: Any) -> None:
    """Add ``account`` and ``calibrate``."""
    account = commands.add_parser("account", help="what a DP-SGD run costs")
    account.add_argument("--noise-multiplier", type=float, required=True, help="stddev of the noise / sensitivity")
    account.add_argument("--delta", type=float, required=True)
    add_run_options(account)
    add_json_option(account)
    account.set_defaults(run=printed(_account))

    calibrate = commands.add_parser("calibrate", help="the noise multiplier that meets a target")
    calibrate.add_argument("--epsilon", type=float, help="target epsilon, with --delta")
    calibrate.add_argument("--mu", type=float, help="target mu instead of epsilon; --delta is then only for the report")
    calibrate.add_argument("--advantage", type=float, help="target membership advantage instead")
    calibrate.add_argument("--tpr", type=float, help="target true positive rate instead, at --fpr")
    calibrate.add_argument("--fpr", type=float, help="the false positive rate of --tpr")
    calibrate.add_argument("--bayes-success", type=float, help="target success of an attacker with --prior instead")
    calibrate.add_argument(
        "--prior", type=float, help="the probability of membership of --bayes-success, 0.5 if left out"
    )
    calibrate.add_argument("--delta", type=float)
    calibrate.add_argument("--failure", type=float, help="failure probability of a certified mu")
    calibrate.add_argument("--with-mu", action="store_true", help="report the certified mu, too, which takes a second")
    calibrate.add_argument("--accountant", choices=("numeric", "rdp", "clt"), default="numeric")
    add_run_options(calibrate)
    add_json_option(calibrate)
    calibrate.set_defaults(run=printed(_calibrate))


def _account(arguments: argparse.Namespace) -> list[Row]:
    prob, steps = run_of_options(arguments)
    return _run_report(arguments.noise_multiplier, prob, steps, arguments.delta, FAILURE, with_mu=True)


def _run_report(
    noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float | None, failure: float, with_mu: bool
) -> list[Row]:
    run = (noise_multiplier, sampling_prob, num_steps)
    if noise_multiplier == 0:
        return _report_without_noise(sampling_prob, num_steps, delta, failure)
    curve = certified(*run)
    # The time is compilation: mu's, the longest, beside the others'.
    with ThreadPoolExecutor(1) as beside:
        mu = beside.submit(curve.mu, failure) if with_mu else None
        epsilon = None if delta is None else float(clt_epsilon(*run, delta))
        bounds = None if delta is None else curve.epsilon(delta)
        moments = None if delta is None else float(moments_accountant_epsilon(*run, delta))
    mu_upper = None if mu is None else float(mu.result().upper)
    needs_delta = "needs --delta"
    reliable = None if bounds is None else bool(proves_reliable(bounds, epsilon))
    lower, upper = (None, None) if bounds is None else (float(end) for end in bounds)
    # The standing of each figure; what privacy costs is rounded up.
    of_mu = "certified: the run is mu-GDP except with probability mu_failure" if mu else "add --with-mu"
    of_clt = CLT_CAVEAT if delta else needs_delta
    of_lower = "certified: the true epsilon is at least this" if delta else needs_delta
    of_upper = "certified: the true epsilon is at most this" if delta else needs_delta
    of_moments = "upper bound: a guarantee, not tight" if delta else needs_delta
    return [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours", "exact"),
        Row("mu_clt", float(clt_mu_poisson(*run)), CLT_CAVEAT, "up"),
        Row("epsilon_clt", epsilon, of_clt, "up"),
        Row("clt_reliable", reliable, "whether epsilon_clt is proved to be within 5% of the truth"),
        Row("mu_upper", mu_upper, of_mu, "up"),
        Row("mu_failure", failure, "given", "exact"),
        Row("epsilon_lower", lower, of_lower, "down"),
        Row("epsilon_upper", upper, of_upper, "up"),
        Row("epsilon_moments_accountant", moments, of_moments, "up"),
    ]


def _report_without_noise(sampling_prob: float, num_steps: int, delta: float | None, failure: float) -> list[Row]:
    """The rows of `_run_report` for a run that is not private."""
    warning = "NOT PRIVATE: without noise every example that is in a batch shows"
    lower, upper = (None, None)
    if delta is not None:
        lower, upper = (float(end) for end in certified(0.0, sampling_prob, num_steps).epsilon(delta))
    return [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours"),
        Row("mu_clt", math.inf, warning),
        Row("epsilon_clt", math.inf, warning),
        Row("clt_reliable", False, warning),
        Row("mu_upper", math.inf, warning),
        Row("mu_failure", failure, "given"),
        Row("epsilon_lower", lower, warning),
        Row("epsilon_upper", upper, warning),
        Row("epsilon_moments_accountant", math.inf, warning),
    ]


def _calibrate(arguments: argparse.Namespace) -> list[Row]:
    prob, steps = run_of_options(arguments)
    target = {"epsilon": arguments.epsilon, "delta": arguments.delta}
    attack = {name: value for name in _ATTACKS if (value := getattr(arguments, name)) is not None}
    if attack:
        if arguments.epsilon is not None or arguments.mu is not None:
            raise ValueError(f"give one target, not --{next(iter(attack)).replace('_', '-')} and another")
        target = {**attack, "failure": arguments.failure}
    elif arguments.mu is not None:
        if arguments.epsilon is not None:
            raise ValueError("give either --mu or --epsilon as the target, not both")
        target = {"mu": arguments.mu, "failure": arguments.failure}
    elif arguments.failure is not None:
        raise ValueError("--failure belongs to a target --mu with --accountant numeric; leave it out")
    accountant = arguments.accountant
    found = calibrate_noise_multiplier(**target, sampling_prob=prob, num_steps=steps, accountant=accountant)
    failure = FAILURE if arguments.failure is None else arguments.failure
    noise = _short(float(found), (prob, steps), target, failure, accountant)
    quantity = next(iter(attack), "epsilon" if arguments.mu is None else "mu")
    standing = CLT_CAVEAT if accountant == "clt" else f"safe: the true {quantity} is at most the target"
    if found == 0:
        standing = "NOT PRIVATE: the target asks for no noise"
    with_mu = arguments.with_mu or (arguments.mu is not None and accountant == "numeric")
    report = _run_report(noise, prob, steps, arguments.delta, failure, with_mu)
    return [Row("noise_multiplier", noise, standing, "exact"), *report]


def _meets(curve: CertifiedCurve, target: dict[str, Any], failure: float) -> bool:
    """Whether the curve is certified to meet the target."""
    if "epsilon" in target:
        return bool(curve.epsilon(target["delta"]).upper <= target["epsilon"])
    if "mu" in target:
        return bool(curve.mu(failure).upper <= target["mu"])
    if "advantage" in target:
        return bool(curve.advantage().upper <= target["advantage"])
    if "tpr" in target:
        return bool(curve.tpr(target["fpr"]).upper <= target["tpr"])
    return bool(curve.bayes_success(target.get("prior", 0.5)).upper <= target["bayes_success"])


def _short(
    noise_multiplier: float, run: tuple[float, int], target: dict[str, Any], failure: float, accountant: str
) -> float:
    """The noise multiplier in 8 digits, rounded up until it meets the target itself: it will be copied."""

    def meets(candidate: float) -> bool:
        if accountant == "clt":
            return True  # a closed form that falls with the noise
        if accountant == "rdp":
            return bool(moments_accountant_epsilon(candidate, *run, target["delta"]) <= target["epsilon"])
        return _meets(certified(candidate, *run), target, failure)

    candidate, more = float(rounded(noise_multiplier, _DIGITS, "up")), 10.0**-_DIGITS
    while not meets(candidate):
        candidate = float(rounded(candidate * (1 + more), _DIGITS, "up"))
        more *= 2
    return candidate
