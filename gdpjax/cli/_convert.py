"""``gdpjax convert``: between mu, (epsilon, delta) and zCDP rho."""

import argparse
import math
import sys
from typing import Any

import numpy as np

from gdpjax.accounting import gdp_delta, gdp_epsilon, gdp_mu, rdp_epsilon
from gdpjax.cli._report import Row, add_json_option, printed, require

_SMALLEST_NORMAL = sys.float_info.min


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
    """Return the report for the one or two parameters that are given."""
    mu = arguments.mu
    rho = arguments.rho
    epsilon = arguments.epsilon
    delta = arguments.delta
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
    return _from_epsilon(epsilon, delta)


def _from_epsilon(epsilon: float, delta: float) -> list[Row]:
    """Return mu and rho as budgets: the mechanism that meets them is (epsilon, delta)-DP."""
    mu = float(gdp_mu(epsilon, delta))
    of_mu = "exact for the Gaussian mechanism that is just (epsilon, delta)-DP; others may have no mu"
    return [
        Row("mu", mu, of_mu, "down"),
        Row("epsilon", epsilon, "given", "exact"),
        Row("delta", delta, "given", "exact"),
        Row("rho", mu * mu / 2, "exact for that Gaussian mechanism only", "down"),
    ]


def _from_mu(mu: float, epsilon: float | None, delta: float | None) -> list[Row]:
    """Return what mu-GDP is in the other parameters; of epsilon and delta at most one is given."""
    require(0 <= mu < math.inf, "--mu", "a finite number >= 0", mu)
    if delta is not None:
        epsilon_row = Row("epsilon", float(gdp_epsilon(delta, mu)), "exact", "up")
        delta_row = Row("delta", delta, "given", "exact")
    elif epsilon is not None:
        exact_delta = float(gdp_delta(epsilon, mu))
        is_representable = exact_delta > 0 or mu == 0
        standing = "exact" if is_representable else "exact is below the smallest float64"
        epsilon_row = Row("epsilon", epsilon, "given", "exact")
        delta_row = Row("delta", exact_delta, standing, "up")
    else:
        epsilon_row, delta_row = _missing_pair()
    rho_standing = "exact for the Gaussian mechanism, upper bound for any other mu-GDP one"
    rho_row = Row("rho", mu * mu / 2, rho_standing, "up")

    rows = [Row("mu", mu, "given", "exact")]
    for row in (epsilon_row, delta_row, rho_row):
        if row.value == math.inf:
            row = row._replace(standing="too large to be computed")
        rows.append(row)
    return rows


def _from_rho(rho: float, epsilon: float | None, delta: float | None) -> list[Row]:
    """Return what rho-zCDP is in the other parameters; of epsilon and delta at most one is given."""
    require(0 <= rho < math.inf, "--rho", "a finite number >= 0", rho)
    # rho-zCDP is rdp(order) = rho order for every order, so any grid of orders gives a valid bound.
    orders = 1 + np.geomspace(1e-6, 1e8, 20_001)
    if delta is not None:
        epsilon_upper = float(rdp_epsilon(rho * orders, orders, delta))
        epsilon_row = Row("epsilon", epsilon_upper, "upper bound", "up")
        delta_row = Row("delta", delta, "given", "exact")
    elif epsilon is not None:
        require(0 <= epsilon < math.inf, "--epsilon", "a finite number >= 0", epsilon)
        epsilon_row = Row("epsilon", epsilon, "given", "exact")
        delta_row = Row("delta", _delta_of_rho(rho, orders, epsilon), "upper bound", "up")
    else:
        epsilon_row, delta_row = _missing_pair()
    return [
        Row("mu", None, "not implied: zCDP bounds no mu in general"),
        epsilon_row,
        delta_row,
        Row("rho", rho, "given", "exact"),
    ]


def _delta_of_rho(rho: float, orders: np.ndarray, epsilon: float) -> float:
    """Return an upper bound on delta at ``epsilon``, over the orders, which is never rounded to zero.

    It solves the conversion of `rdp_epsilon` for delta: Canonne, Kamath and Steinke, arXiv:2004.00010, Proposition 12.
    """
    log_delta = (orders - 1) * (rho * orders - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    delta = float(np.exp(min(log_delta.min(), 0.0)))
    return max(delta, _SMALLEST_NORMAL)


def _missing_pair() -> tuple[Row, Row]:
    """Return the rows of epsilon and delta where neither is given."""
    return Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon")
