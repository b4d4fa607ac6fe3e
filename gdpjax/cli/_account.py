"""``gdpjax account``, what a run costs, and ``gdpjax calibrate``, the noise that meets a target."""

import argparse
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from gdpjax._core.types import FAILURE, Bounds
from gdpjax.accounting import (
    calibrate_noise_multiplier,
    certified,
    clt_epsilon,
    clt_mu_poisson,
    moments_accountant_epsilon,
)
from gdpjax.cli._report import CLT_CAVEAT, Row, add_json_option, clt_is_reliable, printed, rounded
from gdpjax.cli._runs import add_run_options, as_option, run_of_options
from gdpjax.tradeoff import CertifiedCurve

_ATTACKS = ("advantage", "tpr", "fpr", "bayes_success", "prior")
"""Options of a target in terms of what an attacker can do."""
_DIGITS = 8
"""How many digits a calibrated noise multiplier has."""
_NEEDS_DELTA = "needs --delta"


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
    """Return the report of the run that the options describe."""
    sampling_prob, num_steps = run_of_options(arguments)
    report = _run_report(
        arguments.noise_multiplier, sampling_prob, num_steps, arguments.delta, failure=FAILURE, with_mu=True
    )
    return [Row("noise_multiplier", arguments.noise_multiplier, "given", "exact"), *report]


class _Figures(NamedTuple):
    """The figures of the accountants for a run at one delta.

    Attributes:
      epsilon_clt: the estimate of the central limit theorem.
      bounds: the certified bounds on epsilon.
      moments_accountant: the bound of the moments accountant.
    """

    epsilon_clt: float
    bounds: Bounds
    moments_accountant: float


def _run_report(
    noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float | None, failure: float, with_mu: bool
) -> list[Row]:
    """Return the rows about a run: epsilon at ``delta``, if that is given, and mu, if it is asked for."""
    if noise_multiplier == 0:
        return _report_without_noise(sampling_prob, num_steps, delta, failure)
    run = (noise_multiplier, sampling_prob, num_steps)
    curve = certified(*run)

    # The time is compilation: that of mu, the longest, goes on beside the others'.
    figures = None
    mu_upper = None
    with ThreadPoolExecutor(1) as executor:
        mu = executor.submit(curve.mu, failure) if with_mu else None
        if delta is not None:
            figures = _Figures(
                epsilon_clt=float(clt_epsilon(*run, delta)),
                bounds=curve.epsilon(delta),
                moments_accountant=float(moments_accountant_epsilon(*run, delta)),
            )
    if mu is not None:
        mu_upper = float(mu.result().upper)

    # What privacy costs is rounded up.
    mu_standing = "certified: the run is mu-GDP except with probability mu_failure" if with_mu else "add --with-mu"
    return [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours", "exact"),
        Row("delta", delta, "given" if delta is not None else "not given", "exact"),
        Row("mu_clt", float(clt_mu_poisson(*run)), CLT_CAVEAT, "up"),
        *_clt_rows(figures),
        Row("mu_upper", mu_upper, mu_standing, "up"),
        Row("mu_failure", failure, "given", "exact"),
        *_epsilon_rows(figures),
    ]


def _clt_rows(figures: _Figures | None) -> list[Row]:
    """Return the rows of the central limit theorem's epsilon."""
    reliable_standing = "whether epsilon_clt is proved to be within 5% of the truth"
    if figures is None:
        return [
            Row("epsilon_clt", None, _NEEDS_DELTA, "up"),
            Row("clt_reliable", None, reliable_standing),
        ]
    is_reliable = bool(clt_is_reliable(figures.bounds, figures.epsilon_clt))
    return [
        Row("epsilon_clt", figures.epsilon_clt, CLT_CAVEAT, "up"),
        Row("clt_reliable", is_reliable, reliable_standing),
    ]


def _epsilon_rows(figures: _Figures | None) -> list[Row]:
    """Return the rows of the bounds on epsilon."""
    if figures is None:
        return [
            Row("epsilon_lower", None, _NEEDS_DELTA, "down"),
            Row("epsilon_upper", None, _NEEDS_DELTA, "up"),
            Row("epsilon_moments_accountant", None, _NEEDS_DELTA, "up"),
        ]
    lower = float(figures.bounds.lower)
    upper = float(figures.bounds.upper)
    return [
        Row("epsilon_lower", lower, "certified: the true epsilon is at least this", "down"),
        Row("epsilon_upper", upper, "certified: the true epsilon is at most this", "up"),
        Row("epsilon_moments_accountant", figures.moments_accountant, "upper bound: a guarantee, not tight", "up"),
    ]


def _report_without_noise(sampling_prob: float, num_steps: int, delta: float | None, failure: float) -> list[Row]:
    """Return the rows of `_run_report` for a run that is not private."""
    warning = "NOT PRIVATE: without noise every example that is in a batch shows"
    lower = None
    upper = None
    if delta is not None:
        bounds = certified(0.0, sampling_prob, num_steps).epsilon(delta)
        lower = float(bounds.lower)
        upper = float(bounds.upper)
    return [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours"),
        Row("delta", delta, "given" if delta is not None else "not given", "exact"),
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
    """Return the report of the least noise that meets the target."""
    sampling_prob, num_steps = run_of_options(arguments)
    quantity, target = _target_of_options(arguments)
    accountant = arguments.accountant
    found = calibrate_noise_multiplier(
        **target, sampling_prob=sampling_prob, num_steps=num_steps, accountant=accountant
    )
    failure = FAILURE if arguments.failure is None else arguments.failure
    noise_multiplier = _short(float(found), (sampling_prob, num_steps), target, failure, accountant)

    standing = f"safe: the true {quantity} is at most the target"
    if accountant == "clt":
        standing = CLT_CAVEAT
    if found == 0:
        standing = "NOT PRIVATE: the target asks for no noise"

    with_mu = arguments.with_mu or (arguments.mu is not None and accountant == "numeric")
    report = _run_report(noise_multiplier, sampling_prob, num_steps, arguments.delta, failure, with_mu)
    rows = [Row("noise_multiplier", noise_multiplier, standing, "exact")]
    for name, value in target.items():
        if name not in ("delta", "failure"):
            rows.append(Row(name, value, "the target" if name == quantity else "given", "exact"))
    return [*rows, *report]


def _target_of_options(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the quantity that has a target, and the target as `calibrate_noise_multiplier` takes it."""
    attack = {}
    for name in _ATTACKS:
        value = getattr(arguments, name)
        if value is not None:
            attack[name] = value
    if attack:
        quantity = next(iter(attack))
        if arguments.epsilon is not None or arguments.mu is not None:
            raise ValueError(f"give one target, not {as_option(quantity)} and another")
        return quantity, {**attack, "failure": arguments.failure}
    if arguments.mu is not None:
        if arguments.epsilon is not None:
            raise ValueError("give either --mu or --epsilon as the target, not both")
        return "mu", {"mu": arguments.mu, "failure": arguments.failure}
    if arguments.failure is not None:
        raise ValueError("--failure belongs to a target --mu with --accountant numeric; leave it out")
    return "epsilon", {"epsilon": arguments.epsilon, "delta": arguments.delta}


def _meets(curve: CertifiedCurve, target: dict[str, Any], failure: float) -> bool:
    """Return whether the curve is certified to meet the target."""
    if "epsilon" in target:
        bounds = curve.epsilon(target["delta"])
        return bool(bounds.upper <= target["epsilon"])
    if "mu" in target:
        bounds = curve.mu(failure)
        return bool(bounds.upper <= target["mu"])
    if "advantage" in target:
        bounds = curve.advantage()
        return bool(bounds.upper <= target["advantage"])
    if "tpr" in target:
        bounds = curve.tpr(target["fpr"])
        return bool(bounds.upper <= target["tpr"])
    bounds = curve.bayes_success(target.get("prior", 0.5))
    return bool(bounds.upper <= target["bayes_success"])


def _short(
    noise_multiplier: float, run: tuple[float, int], target: dict[str, Any], failure: float, accountant: str
) -> float:
    """Return the noise multiplier in 8 digits, rounded up until it meets the target itself: it will be copied."""

    def meets(candidate: float) -> bool:
        # The central limit theorem is a closed form that falls with the noise.
        if accountant == "clt":
            return True
        if accountant == "rdp":
            epsilon = moments_accountant_epsilon(candidate, *run, target["delta"])
            return bool(epsilon <= target["epsilon"])
        return _meets(certified(candidate, *run), target, failure)

    candidate = float(rounded(noise_multiplier, _DIGITS, "up"))
    step = 10.0**-_DIGITS
    while not meets(candidate):
        candidate = float(rounded(candidate * (1 + step), _DIGITS, "up"))
        step *= 2
    return candidate
