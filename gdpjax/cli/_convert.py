"""``gdpjax convert``: between mu, (epsilon, delta) and zCDP rho."""

import argparse
import math
import sys
from typing import Any

import numpy as np

from gdpjax.accounting import gdp_delta, gdp_epsilon, gdp_mu, rdp_epsilon
from gdpjax.cli._report import Row, add_json_option, printed, require


def add_parser(commands: Any) -> None:
    """Add ``convert``."""
    parser = commands.add_parser("convert", help="between mu, (epsilon, delta) and zCDP rho")
    parser.add_argument("--mu", type=float, help="Gaussian privacy parameter; add --epsilon or --delta")
    parser.add_argument("--rho", type=float, help="zero-concentrated privacy parameter; add --epsilon or --delta")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--delta", type=float)
    add_json_option(parser)
    parser.set_defaults(run=printed(_convert))


def _convert(arguments: argparse.Namespace) -> list[Row]:
    mu, rho, epsilon, delta = arguments.mu, arguments.rho, arguments.epsilon, arguments.delta
    if mu is not None and rho is not None:
        raise ValueError("give one of --mu, --rho, or --epsilon with --delta")
    if (mu is not None or rho is not None) and epsilon is not None and delta is not None:
        raise ValueError("with --mu or --rho give at most one of --epsilon and --delta")
    if mu is not None:
        return _from_mu(mu, epsilon, delta)
    if rho is not None:
        return _from_rho(rho, epsilon, delta)
    if epsilon is None or delta is None:
        raise ValueError("give one of --mu, --rho, or --epsilon with --delta")
    implied = float(gdp_mu(epsilon, delta))
    return [
        # As budgets: the mechanism that meets them is (epsilon, delta)-DP.
        Row(
            "mu",
            implied,
            "exact for the Gaussian mechanism that is just (epsilon, delta)-DP; others may have no mu",
            "down",
        ),
        Row("epsilon", epsilon, "given", "exact"),
        Row("delta", delta, "given", "exact"),
        Row("rho", implied * implied / 2, "exact for that Gaussian mechanism only", "down"),
    ]


def _from_mu(mu: float, epsilon: float | None, delta: float | None) -> list[Row]:
    require(0 <= mu < math.inf, "--mu", "a finite number >= 0", mu)
    if delta is not None:
        pair = Row("epsilon", float(gdp_epsilon(delta, mu)), "exact", "up"), Row("delta", delta, "given", "exact")
    elif epsilon is not None:
        value = float(gdp_delta(epsilon, mu))
        standing = "exact" if value > 0 or mu == 0 else "exact is below the smallest float64"
        pair = Row("epsilon", epsilon, "given", "exact"), Row("delta", value, standing, "up")
    else:
        pair = Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon")
    standing = "exact for the Gaussian mechanism, upper bound for any other mu-GDP one"
    rows = [*pair, Row("rho", mu * mu / 2, standing, "up")]
    too_large = [row._replace(standing="too large to be computed") if row.value == math.inf else row for row in rows]
    return [Row("mu", mu, "given", "exact"), *too_large]


def _from_rho(rho: float, epsilon: float | None, delta: float | None) -> list[Row]:
    require(0 <= rho < math.inf, "--rho", "a finite number >= 0", rho)
    # rho-zCDP is rdp(order) = rho order for every order, so any grid of orders gives a valid bound.
    orders = 1 + np.geomspace(1e-6, 1e8, 20_001)
    if delta is not None:
        value = float(rdp_epsilon(rho * orders, orders, delta))
        pair = Row("epsilon", value, "upper bound", "up"), Row("delta", delta, "given", "exact")
    elif epsilon is not None:
        require(0 <= epsilon < math.inf, "--epsilon", "a finite number >= 0", epsilon)
        # The same conversion solved for delta: Canonne, Kamath and Steinke, arXiv:2004.00010, Proposition 12.
        log_delta = (orders - 1) * (rho * orders - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        value = max(float(np.exp(min(log_delta.min(), 0.0))), sys.float_info.min)  # never rounded to zero
        pair = Row("epsilon", epsilon, "given", "exact"), Row("delta", value, "upper bound", "up")
    else:
        pair = Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon")
    return [Row("mu", None, "not implied: zCDP bounds no mu in general"), *pair, Row("rho", rho, "given", "exact")]
