"""``gdpjax account``, what a run costs, and ``gdpjax calibrate``, the noise that meets a target."""

import argparse
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gdpjax.accounting import (
    calibrate_noise_multiplier,
    clt_epsilon,
    clt_mu_poisson,
    epsilon_bounds,
    moments_accountant_epsilon,
    mu_bounds,
)
from gdpjax.accounting._reliability import proves_reliable
from gdpjax.cli._report import CLT_CAVEAT, Row, add_json_option, printed
from gdpjax.cli._runs import MU_FAILURE, add_run_options, run_of_options


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
    calibrate.add_argument("--delta", type=float)
    calibrate.add_argument("--failure", type=float, help="failure probability of a certified mu")
    calibrate.add_argument("--accountant", choices=("numeric", "rdp", "clt"), default="numeric")
    add_run_options(calibrate)
    add_json_option(calibrate)
    calibrate.set_defaults(run=printed(_calibrate))


def _account(arguments: argparse.Namespace) -> list[Row]:
    prob, steps = run_of_options(arguments)
    return _run_report(arguments.noise_multiplier, prob, steps, arguments.delta)


def _run_report(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float | None) -> list[Row]:
    run = (noise_multiplier, sampling_prob, num_steps)
    if noise_multiplier == 0:
        return _report_without_noise(sampling_prob, num_steps, delta)
    # The time is compilation: mu's beside the others'.
    with ThreadPoolExecutor(1) as beside:
        mu = beside.submit(mu_bounds, *run, MU_FAILURE)
        epsilon = None if delta is None else float(clt_epsilon(*run, delta))
        bounds = None if delta is None else epsilon_bounds(*run, delta)
        moments = None if delta is None else float(moments_accountant_epsilon(*run, delta))
    needs_delta = "needs --delta"
    reliable = None if bounds is None else bool(proves_reliable(bounds, epsilon))
    lower, upper = (None, None) if bounds is None else (float(end) for end in bounds)
    return [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours"),
        Row("mu_clt", float(clt_mu_poisson(*run)), CLT_CAVEAT),
        Row("epsilon_clt", epsilon, CLT_CAVEAT if delta else needs_delta),
        Row("clt_reliable", reliable, "whether epsilon_clt is proved to be within 5% of the truth"),
        Row("mu_upper", float(mu.result().upper), "certified: the run is mu-GDP except with probability mu_failure"),
        Row("mu_failure", MU_FAILURE, "given"),
        Row("epsilon_lower", lower, "certified: the true epsilon is at least this" if delta else needs_delta),
        Row("epsilon_upper", upper, "certified: the true epsilon is at most this" if delta else needs_delta),
        Row("epsilon_moments_accountant", moments, "upper bound: a guarantee, not tight" if delta else needs_delta),
    ]


def _report_without_noise(sampling_prob: float, num_steps: int, delta: float | None) -> list[Row]:
    """The rows of `_run_report` for a run that is not private."""
    warning = "NOT PRIVATE: without noise every example that is in a batch shows"
    lower, upper = (None, None)
    if delta is not None:
        lower, upper = (float(end) for end in epsilon_bounds(0.0, sampling_prob, num_steps, delta))
    return [
        Row("num_steps", num_steps, "given"),
        Row("sampling_prob", sampling_prob, "given; Poisson sampling, add-or-remove-one neighbours"),
        Row("mu_clt", math.inf, warning),
        Row("epsilon_clt", math.inf, warning),
        Row("clt_reliable", False, warning),
        Row("mu_upper", math.inf, warning),
        Row("mu_failure", MU_FAILURE, "given"),
        Row("epsilon_lower", lower, warning),
        Row("epsilon_upper", upper, warning),
        Row("epsilon_moments_accountant", math.inf, warning),
    ]


def _calibrate(arguments: argparse.Namespace) -> list[Row]:
    prob, steps = run_of_options(arguments)
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
