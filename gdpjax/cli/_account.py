"""``gdpjax account``, what a run costs, ``calibrate``, the noise for a target, and ``convert``, between measures."""

import argparse
import math
import sys
from typing import Any

import numpy as np

from gdpjax._core.checks import NONNEGATIVE, check
from gdpjax._core.figures import rounded
from gdpjax._core.types import FAILURE
from gdpjax.accounting import (
    calibrate_noise_multiplier,
    certified,
    clt_epsilon,
    clt_mu_poisson,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    moments_accountant_epsilon,
    rdp_epsilon,
)
from gdpjax.cli._inputs import add_run_options, option_names, run_of_options
from gdpjax.cli._report import CLT_CAVEAT, Row, add_json_option, clt_is_reliable, printed

_TARGETS = {
    "advantage": "target membership advantage instead",
    "tpr": "target true positive rate instead, at --fpr",
    "bayes_success": "target success of an attacker with --prior instead",
    "mu": "target mu instead; --delta is then only for the report",
    "epsilon": "target epsilon, with --delta",
    "fpr": "the false positive rate of --tpr",
    "prior": "the probability of membership of --bayes-success, 0.5 if left out",
    "failure": "failure probability of a certified mu",
}
"""Options of a target as `calibrate_noise_multiplier` takes them; what they say more about a target comes last."""
_DIGITS = 8
"""How many digits a calibrated noise multiplier has."""
_STANDINGS = {
    "mu_clt": (CLT_CAVEAT, "up"),
    "epsilon_clt": (CLT_CAVEAT, "up"),
    "clt_reliable": ("whether epsilon_clt is proved within 5%", "nearest"),
    "mu_upper": ("certified, except with probability mu_failure", "up"),
    "mu_failure": ("given", "exact"),
    "epsilon_lower": ("certified lower bound", "down"),
    "epsilon_upper": ("certified upper bound", "up"),
    "epsilon_moments_accountant": ("upper bound, not tight", "up"),
}
"""Standing and rounding of the figures. What privacy costs is rounded up."""
_MEASURES = {
    "mu": "Gaussian privacy parameter; add --epsilon or --delta",
    "rho": "zero-concentrated privacy parameter; add --epsilon or --delta",
    "epsilon": None,
    "delta": None,
}
_LEAST = sys.float_info.min
_MISSING = (Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon"))


def add_parser(commands: Any) -> None:
    """Add ``account``, ``calibrate`` and ``convert``."""
    account = commands.add_parser("account", help="what a DP-SGD run costs")
    add_run_options(account)
    calibrate = commands.add_parser("calibrate", help="the noise multiplier that meets a target")
    for name, text in _TARGETS.items():
        calibrate.add_argument(*option_names(name), type=float, help=text)
    calibrate.add_argument("--delta", type=float)
    calibrate.add_argument("--with-mu", action="store_true", help="report the certified mu, too, which takes a second")
    calibrate.add_argument("--accountant", choices=("numeric", "rdp", "clt"), default="numeric")
    add_run_options(calibrate, with_cost=False)
    convert = commands.add_parser("convert", help="between mu, (epsilon, delta) and zCDP rho")
    for name, text in _MEASURES.items():
        convert.add_argument(f"--{name}", type=float, help=text)
    for parser, report in ((account, _account), (calibrate, _calibrate), (convert, _convert)):
        add_json_option(parser)
        parser.set_defaults(run=printed(report))


def _account(arguments: argparse.Namespace) -> list[Row]:
    """Return the report of the run that the options describe."""
    run = (arguments.noise_multiplier, *run_of_options(arguments))
    report = _run_report(run, arguments, FAILURE, with_mu=True)
    return [Row("noise_multiplier", arguments.noise_multiplier, "given", "exact"), *report]


def _run_report(
    run: tuple[float, float, int], arguments: argparse.Namespace, failure: float, with_mu: bool
) -> list[Row]:
    """Return the rows about a run: epsilon at ``delta``, if that is given, and mu, if it is asked for."""
    noise_multiplier, sampling_prob, num_steps = run
    delta = arguments.delta
    standing_of_delta = "given" if delta is not None else "not given"
    # Whoever publishes one example at random meets a delta of one over their number.
    if delta is not None and delta * (arguments.max_examples or 0) >= 1:
        standing_of_delta = "given; TOO LARGE: it is not below 1 / max_examples"
    found = _figures(run, delta, failure, with_mu)
    rows = [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add or remove one example", "exact"),
        Row("delta", delta, standing_of_delta, "exact"),
    ]
    for key, (standing, rounding) in _STANDINGS.items():
        if key not in found:
            standing = "add --with-mu" if key == "mu_upper" else "needs --delta"
        elif noise_multiplier == 0 and key != "mu_failure":
            standing = "NOT PRIVATE: there is no noise"
        rows.append(Row(key, found.get(key), standing, rounding))
    return rows


def _figures(run: tuple[float, float, int], delta: float | None, failure: float, with_mu: bool) -> dict[str, Any]:
    """Return the figures of every accountant by their keys, without those that are not asked for."""
    found: dict[str, Any]
    curve = certified(*run)
    if run[0] == 0:
        found = {**dict.fromkeys(_STANDINGS, math.inf), "clt_reliable": False, "mu_failure": failure}
        # Epsilon is finite even so where delta covers that an example takes part at all.
        if delta is not None:
            found["epsilon_lower"], found["epsilon_upper"] = map(float, curve.epsilon(delta))
        return found
    found = {"mu_clt": float(clt_mu_poisson(*run)), "mu_failure": failure}
    if with_mu:
        found["mu_upper"] = float(curve.mu(failure).upper)
    if delta is not None:
        bounds = curve.epsilon(delta)
        found["epsilon_lower"], found["epsilon_upper"] = map(float, bounds)
        found["epsilon_clt"] = float(clt_epsilon(*run, delta))
        found["clt_reliable"] = bool(clt_is_reliable(bounds, found["epsilon_clt"]))
        found["epsilon_moments_accountant"] = float(moments_accountant_epsilon(*run, delta))
    return found


def _calibrate(arguments: argparse.Namespace) -> list[Row]:
    """Return the report of the least noise that meets the target."""
    sampling_prob, num_steps = run_of_options(arguments)
    accountant = arguments.accountant
    target = {name: getattr(arguments, name) for name in _TARGETS if getattr(arguments, name) is not None}
    quantity = next(iter(target), "epsilon")
    if quantity == "epsilon":
        target["delta"] = arguments.delta
    if quantity == "bayes_success":
        target.setdefault("prior", 0.5)
    exact = calibrate_noise_multiplier(
        **target, sampling_prob=sampling_prob, num_steps=num_steps, accountant=accountant
    )

    # Eight digits, rounded up until they meet the target themselves: they will be copied.
    noise_multiplier = float(rounded(float(exact), _DIGITS, "up"))
    step = 10.0**-_DIGITS
    while not _reached(quantity, (noise_multiplier, sampling_prob, num_steps), target, accountant) <= target[quantity]:
        noise_multiplier = float(rounded(noise_multiplier * (1 + step), _DIGITS, "up"))
        step *= 2

    standing = CLT_CAVEAT if accountant == "clt" else f"safe: the true {quantity} is at most the target"
    if exact == 0:
        standing = "NOT PRIVATE: the target asks for no noise"
    rows = [Row("noise_multiplier", noise_multiplier, standing, "exact")]
    failure = target.get("failure", FAILURE)
    for name, value in target.items():
        if name not in ("delta", "failure"):
            rows.append(Row(name, value, "the target" if name == quantity else "given", "exact"))
    with_mu = arguments.with_mu or (quantity == "mu" and accountant == "numeric")
    run = (noise_multiplier, sampling_prob, num_steps)
    return [*rows, *_run_report(run, arguments, failure, with_mu)]


def _reached(quantity: str, run: tuple[float, float, int], target: dict[str, Any], accountant: str) -> float:
    """Return a bound on the quantity that has a target, by the accountant that was chosen."""
    if accountant == "clt":
        # It is a closed form that falls with the noise.
        return -math.inf
    if accountant == "rdp":
        return float(moments_accountant_epsilon(*run, target["delta"]))
    # A question has the name of its quantity, and takes what else the target has: delta, failure, fpr or prior.
    question = getattr(certified(*run), quantity)
    others = [value for name, value in target.items() if name != quantity]
    return float(question(*others).upper)


# ---- Conversions ----


def _convert(arguments: argparse.Namespace) -> list[Row]:
    """Return the report for the one or two parameters that are given."""
    given = {name: getattr(arguments, name) for name in _MEASURES if getattr(arguments, name) is not None}
    for name, value in given.items():
        if name != "delta":
            check(f"--{name}", value, NONNEGATIVE)
    if given.keys() == {"epsilon", "delta"}:
        found = _from_epsilon(**given)
    elif len(given.keys() & {"mu", "rho"}) != 1 or len(given) > 2:
        raise ValueError("give one of --mu and --rho, with at most one of --epsilon and --delta, or these two")
    elif "mu" in given:
        found = _from_mu(**given)
    else:
        found = _from_rho(**given)

    # A later row stands in place of an earlier one.
    rows = [*_MISSING, *found]
    rows += [Row(name, value, "given", "exact") for name, value in given.items()]
    row_of_key = {row.key: row for row in rows}
    return [row_of_key[key] for key in ("mu", "epsilon", "delta", "rho")]


def _from_epsilon(epsilon: float, delta: float) -> list[Row]:
    """Return mu and rho as budgets: the mechanism that meets them is (epsilon, delta)-DP."""
    mu = float(gdp_mu(epsilon, delta))
    of_mu = "exact for the Gaussian mechanism that is just (epsilon, delta)-DP; others may have no mu"
    of_rho = "exact for that Gaussian mechanism only"
    return [Row("mu", mu, of_mu, "down"), Row("rho", mu * mu / 2, of_rho, "down")]


def _from_mu(mu: float, epsilon: float | None = None, delta: float | None = None) -> list[Row]:
    """Return the other parameters of mu-GDP; of epsilon and delta at most one is given."""
    standing = "exact for the Gaussian mechanism, upper bound for any other mu-GDP one"
    rows = [Row("rho", mu * mu / 2, standing, "up")]
    if delta is not None:
        rows.append(Row("epsilon", float(gdp_epsilon(delta, mu)), "exact", "up"))
    if epsilon is not None:
        exact = float(gdp_delta(epsilon, mu))
        # A delta below every float64.
        is_lost = exact == 0 < mu
        rows.append(Row("delta", _LEAST, "upper bound", "up") if is_lost else Row("delta", exact, "exact", "up"))
    return rows


def _from_rho(rho: float, epsilon: float | None = None, delta: float | None = None) -> list[Row]:
    """Return the other parameters of rho-zCDP; of epsilon and delta at most one is given."""
    rows = [Row("mu", None, "not implied: zCDP bounds no mu in general")]
    # rho-zCDP is rdp(order) = rho order for every order, so any grid of orders gives a valid bound.
    orders = 1 + np.geomspace(1e-6, 1e8, 20_001)
    rdp = rho * orders
    if delta is not None:
        upper = float(rdp_epsilon(rdp, orders, delta))
        rows.append(Row("epsilon", upper, "upper bound", "up"))
    if epsilon is not None:
        # The conversion of `rdp_epsilon`, solved for delta: Canonne, Kamath and Steinke, arXiv:2004.00010, Prop. 12.
        log_delta = (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        least = min(log_delta.min(), 0.0)
        upper = max(float(np.exp(least)), _LEAST)
        rows.append(Row("delta", upper, "upper bound", "up"))
    return rows
