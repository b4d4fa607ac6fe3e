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
from gdpjax.cli._report import CLT_CAVEAT, Row, add_json_option, clt_is_reliable, printed, rounded
from gdpjax.cli._runs import add_run_options, run_of_options
from gdpjax.tradeoff import CertifiedCurve

_ATTACKS = ("advantage", "tpr", "fpr", "bayes_success", "prior")
"""Options of a target in terms of what an attacker can do."""
_DIGITS = 8
"""How many digits a calibrated noise multiplier has."""
_STANDINGS = {
    "mu_clt": (CLT_CAVEAT, "up"),
    "epsilon_clt": (CLT_CAVEAT, "up"),
    "clt_reliable": ("whether epsilon_clt is proved to be within 5% of the truth", "nearest"),
    "mu_upper": ("certified: the run is mu-GDP except with probability mu_failure", "up"),
    "mu_failure": ("given", "exact"),
    "epsilon_lower": ("certified: the true epsilon is at least this", "down"),
    "epsilon_upper": ("certified: the true epsilon is at most this", "up"),
    "epsilon_moments_accountant": ("upper bound: a guarantee, not tight", "up"),
}
"""Standing and rounding of the figures. What privacy costs is rounded up."""


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


def _run_report(
    noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float | None, failure: float, with_mu: bool
) -> list[Row]:
    """Return the rows about a run: epsilon at ``delta``, if that is given, and mu, if it is asked for."""
    found = _figures((noise_multiplier, sampling_prob, num_steps), delta, failure, with_mu)
    rows = [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours", "exact"),
        Row("delta", delta, "given" if delta is not None else "not given", "exact"),
    ]
    for key, (standing, rounding) in _STANDINGS.items():
        if key not in found:
            standing = "add --with-mu" if key == "mu_upper" else "needs --delta"
        elif noise_multiplier == 0 and key != "mu_failure":
            standing = "NOT PRIVATE: without noise every example that is in a batch shows"
        rows.append(Row(key, found.get(key), standing, rounding))
    return rows


def _figures(run: tuple[float, float, int], delta: float | None, failure: float, with_mu: bool) -> dict[str, Any]:
    """Return the figures of every accountant by their keys, without those that are not asked for."""
    curve = certified(*run)
    found: dict[str, Any] = {"mu_failure": failure}
    if run[0] == 0:
        others = ("mu_clt", "epsilon_clt", "mu_upper", "epsilon_moments_accountant")
        found |= dict.fromkeys(others, math.inf) | {"clt_reliable": False}
        if delta is not None:
            found["epsilon_lower"], found["epsilon_upper"] = map(float, curve.epsilon(delta))
        return found

    # Mu takes longest: compute it in a thread beside the others.
    with ThreadPoolExecutor(1) as executor:
        mu = executor.submit(curve.mu, failure) if with_mu else None
        found["mu_clt"] = float(clt_mu_poisson(*run))
        if delta is not None:
            found["epsilon_clt"] = float(clt_epsilon(*run, delta))
            bounds = curve.epsilon(delta)
            found["epsilon_lower"], found["epsilon_upper"] = map(float, bounds)
            found["clt_reliable"] = bool(clt_is_reliable(bounds, found["epsilon_clt"]))
            found["epsilon_moments_accountant"] = float(moments_accountant_epsilon(*run, delta))
    if mu is not None:
        found["mu_upper"] = float(mu.result().upper)
    return found


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
    """Return the quantity that has a target, and the target as `calibrate_noise_multiplier` takes (or refuses) it."""
    target = {}
    for name in (*_ATTACKS, "mu", "epsilon", "failure"):
        value = getattr(arguments, name)
        if value is not None:
            target[name] = value
    quantity = next(iter(target), "epsilon")
    # With another target delta is for the report.
    if quantity == "epsilon":
        target["delta"] = arguments.delta
    return quantity, target


def _meets(curve: CertifiedCurve, target: dict[str, Any], failure: float) -> bool:
    """Return whether the curve is certified to meet the target."""
    questions = {
        "epsilon": lambda: curve.epsilon(target["delta"]),
        "mu": lambda: curve.mu(failure),
        "advantage": curve.advantage,
        "tpr": lambda: curve.tpr(target["fpr"]),
        "bayes_success": lambda: curve.bayes_success(target.get("prior", 0.5)),
    }
    (name,) = target.keys() & questions
    return bool(questions[name]().upper <= target[name])


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
