"""The ``gdpjax`` command: ``account``, ``calibrate`` and ``convert``.

Every figure is printed with its *standing*: exact, upper bound, or asymptotic estimate. A central-limit figure never
appears without the sentence that it is not a guarantee, because it may understate the truth. ``--json`` prints one
object for machines; what would need a delta that was not given is null, and infinite values are the string "inf", since
JSON has no number for them. Bad input ends with status 2 and one line on the standard error.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gdpjax.accounting import (
    calibrate_noise_multiplier,
    clt_epsilon,
    clt_is_reliable,
    clt_mu_poisson,
    epsilon_bounds,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    moments_accountant_epsilon,
    mu_bounds,
    rdp_epsilon,
)

CLT_CAVEAT = "asymptotic estimate: may understate the true epsilon; not a guarantee"
MU_FAILURE = 1e-10
"""Failure probability of the mu that is printed."""


class Row(NamedTuple):
    """One line of a report: machine key, value (None where not available), and standing in words."""

    key: str
    value: Any
    standing: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 2 (by SystemExit or returned) on bad input."""
    parser = _build_parser()
    arguments = parser.parse_args(argv)
    try:
        rows = arguments.report(arguments)
    except ValueError as error:
        message = " ".join(str(error).split())
        print(f"gdpjax {arguments.command}: error: {message}", file=sys.stderr)
        return 2
    print(_as_json(rows, arguments.command) if arguments.json else _as_table(rows))
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gdpjax", description="Privacy accounting for differentially private deep learning.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    account = commands.add_parser("account", help="what a DP-SGD run costs")
    account.add_argument("--noise-multiplier", type=float, required=True, help="stddev of the noise / sensitivity")
    account.add_argument("--delta", type=float, required=True)
    _add_run_options(account)
    account.set_defaults(report=_account)

    calibrate = commands.add_parser("calibrate", help="the noise multiplier that meets a target")
    calibrate.add_argument("--epsilon", type=float, help="target epsilon, with --delta")
    calibrate.add_argument("--mu", type=float, help="target mu instead of epsilon; --delta is then only for the report")
    calibrate.add_argument("--delta", type=float)
    calibrate.add_argument("--failure", type=float, help="failure probability of a certified mu")
    calibrate.add_argument("--accountant", choices=("numeric", "rdp", "clt"), default="numeric")
    _add_run_options(calibrate)
    calibrate.set_defaults(report=_calibrate)

    convert = commands.add_parser("convert", help="between mu, (epsilon, delta) and zCDP rho")
    convert.add_argument("--mu", type=float, help="Gaussian privacy parameter; add --epsilon or --delta")
    convert.add_argument("--rho", type=float, help="zero-concentrated privacy parameter; add --epsilon or --delta")
    convert.add_argument("--epsilon", type=float)
    convert.add_argument("--delta", type=float)
    convert.set_defaults(report=_convert)

    for command in (account, calibrate, convert):
        command.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-examples", type=float, help="size of the data set")
    parser.add_argument("--batch-size", type=float, help="expected batch size")
    parser.add_argument("--sampling-prob", type=float, help="instead of --num-examples and --batch-size")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=float)
    length.add_argument("--num-steps", type=float)


def _run_length(arguments: argparse.Namespace) -> tuple[float, int]:
    """(sampling_prob, num_steps) of the run that the options describe."""
    prob, examples, batch = _sampling(arguments.num_examples, arguments.batch_size, arguments.sampling_prob)
    steps = arguments.num_steps
    if steps is None:
        _require(0 <= arguments.epochs < math.inf, "--epochs", "a finite number >= 0", arguments.epochs)
        _require(prob > 0, "--sampling-prob", "above 0 when --epochs is given", prob)
        steps = round(arguments.epochs * examples / batch)
    _require(1 <= steps < 2**53 and steps == steps // 1, "number of steps", "a whole number >= 1", steps)
    return prob, int(steps)


def _sampling(examples: float | None, batch: float | None, prob: float | None) -> tuple[float, float, float]:
    """(sampling_prob, num_examples, batch_size), the last two up to a common factor."""
    if examples is not None and batch is not None and prob is None:
        _require(1 <= examples < math.inf and examples == examples // 1, "--num-examples", "whole and >= 1", examples)
        _require(0 < batch <= examples, "--batch-size", "above 0 and at most --num-examples", batch)
        return batch / examples, examples, batch
    if examples is None and batch is None and prob is not None:
        _require(0 <= prob <= 1, "--sampling-prob", "a number in [0, 1]", prob)
        return prob, 1.0, prob
    raise ValueError("give either --num-examples and --batch-size, or --sampling-prob")


def _require(condition: bool, name: str, expected: str, got: float) -> None:
    if not condition:
        raise ValueError(f"{name} must be {expected}, got {got:g}")


def _account(arguments: argparse.Namespace) -> list[Row]:
    prob, steps = _run_length(arguments)
    return _run_report(arguments.noise_multiplier, prob, steps, arguments.delta)


def _run_report(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float | None) -> list[Row]:
    run = (noise_multiplier, sampling_prob, num_steps)
    rows = [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours"),
        Row("mu_clt", float(clt_mu_poisson(*run)), CLT_CAVEAT),
        Row("epsilon_clt", None if delta is None else float(clt_epsilon(*run, delta)), CLT_CAVEAT),
        *_certified_rows(run, delta),
    ]
    moments = None if delta is None else float(moments_accountant_epsilon(*run, delta))
    standing = "upper bound: a guarantee, not tight" if delta is not None else "needs --delta"
    return [*rows, Row("epsilon_moments_accountant", moments, standing)]


def _certified_rows(run: tuple[float, float, int], delta: float | None) -> list[Row]:
    mu = float(mu_bounds(*run, MU_FAILURE).upper)
    lower, upper, reliable = None, None, None
    if delta is not None:
        lower, upper = (float(end) for end in epsilon_bounds(*run, delta))
        reliable = bool(clt_is_reliable(*run, delta))
    return [
        Row("clt_reliable", reliable, "whether epsilon_clt is proved to be within 5% of the truth"),
        Row("mu_upper", mu, "certified: the run is mu-GDP except with probability mu_failure"),
        Row("mu_failure", MU_FAILURE, "given"),
        Row("epsilon_lower", lower, "certified: the true epsilon is at least this" if delta else "needs --delta"),
        Row("epsilon_upper", upper, "certified: the true epsilon is at most this" if delta else "needs --delta"),
    ]


def _calibrate(arguments: argparse.Namespace) -> list[Row]:
    prob, steps = _run_length(arguments)
    target = {"epsilon": arguments.epsilon, "delta": arguments.delta}
    if arguments.mu is not None:
        if arguments.epsilon is not None:
            raise ValueError("give either --mu or --epsilon as the target, not both")
        target = {"mu": arguments.mu, "failure": arguments.failure}
    elif arguments.failure is not None:
        raise ValueError("--failure belongs to a target --mu with --accountant numeric; leave it out")
    noise = calibrate_noise_multiplier(**target, sampling_prob=prob, num_steps=steps, accountant=arguments.accountant)
    standing = CLT_CAVEAT if arguments.accountant == "clt" else "safe: the true epsilon is at most the target"
    return [Row("noise_multiplier", float(noise), standing), *_run_report(float(noise), prob, steps, arguments.delta)]


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
        Row("mu", implied, "exact for the Gaussian mechanism that is just (epsilon, delta)-DP; others may have no mu"),
        Row("epsilon", epsilon, "given"),
        Row("delta", delta, "given"),
        Row("rho", implied**2 / 2, "exact for that Gaussian mechanism only"),
    ]


def _from_mu(mu: float, epsilon: float | None, delta: float | None) -> list[Row]:
    _require(0 <= mu < math.inf, "--mu", "a finite number >= 0", mu)
    if delta is not None:
        pair = Row("epsilon", float(gdp_epsilon(delta, mu)), "exact"), Row("delta", delta, "given")
    elif epsilon is not None:
        value = float(gdp_delta(epsilon, mu))
        standing = "exact" if value > 0 or mu == 0 else "exact is below the smallest float64"
        pair = Row("epsilon", epsilon, "given"), Row("delta", value, standing)
    else:
        pair = Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon")
    standing = "exact for the Gaussian mechanism, upper bound for any other mu-GDP one"
    return [Row("mu", mu, "given"), *pair, Row("rho", mu**2 / 2, standing)]


def _from_rho(rho: float, epsilon: float | None, delta: float | None) -> list[Row]:
    _require(0 <= rho < math.inf, "--rho", "a finite number >= 0", rho)
    # rho-zCDP is rdp(order) = rho order for every order, so any grid of orders gives a valid bound.
    orders = 1 + np.geomspace(1e-6, 1e8, 20_001)
    if delta is not None:
        value = float(rdp_epsilon(rho * orders, orders, delta))
        pair = Row("epsilon", value, "upper bound"), Row("delta", delta, "given")
    elif epsilon is not None:
        _require(0 <= epsilon < math.inf, "--epsilon", "a finite number >= 0", epsilon)
        # The same conversion solved for delta: Canonne, Kamath and Steinke, arXiv:2004.00010, Proposition 12.
        log_delta = (orders - 1) * (rho * orders - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        value = max(float(np.exp(min(log_delta.min(), 0.0))), sys.float_info.min)  # never rounded to zero
        pair = Row("epsilon", epsilon, "given"), Row("delta", value, "upper bound")
    else:
        pair = Row("epsilon", None, "needs --delta"), Row("delta", None, "needs --epsilon")
    return [Row("mu", None, "not implied: zCDP bounds no mu in general"), *pair, Row("rho", rho, "given")]


def _as_json(rows: list[Row], command: str) -> str:
    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    values = {row.key: plain(row.value) for row in rows}
    if command == "convert":  # the keys of the other commands say their standing by name
        values["standing"] = {row.key: row.standing for row in rows}
    return json.dumps(values, allow_nan=False)


def _as_table(rows: list[Row]) -> str:
    shown = [("quantity", "value", "standing")]
    for row in rows:
        value = "-" if row.value is None else f"{row.value:.6g}" if isinstance(row.value, float) else str(row.value)
        shown.append((row.key, value, row.standing))
    widths = [max(len(line[column]) for line in shown) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {standing}" for name, value, standing in shown)
