"""``gdpjax convert``: between mu, (epsilon, delta) and zCDP rho."""

import argparse
import sys
from typing import Any

import numpy as np

from gdpjax._core.checks import NONNEGATIVE, check
from gdpjax.accounting import gdp_delta, gdp_epsilon, gdp_mu, rdp_epsilon
from gdpjax.cli._report import Row, add_json_option, printed

_OPTIONS = {
    "mu": "Gaussian privacy parameter; add --epsilon or --delta",
    "rho": "zero-concentrated privacy parameter; add --epsilon or --delta",
    "epsilon": None,
    "delta": None,
}
_LEAST = sys.float_info.min
_MISSING = (Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon"))


def add_parser(commands: Any) -> None:
    """Add ``convert``."""
    parser = commands.add_parser("convert", help="between mu, (epsilon, delta) and zCDP rho")
    for name, text in _OPTIONS.items():
        parser.add_argument(f"--{name}", type=float, help=text)
    add_json_option(parser)
    parser.set_defaults(run=printed(_convert))


def _convert(arguments: argparse.Namespace) -> list[Row]:
    """Return the report for the one or two parameters that are given."""
    given = {name: getattr(arguments, name) for name in _OPTIONS if getattr(arguments, name) is not None}
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
