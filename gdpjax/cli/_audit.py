"""``gdpjax audit``: lower bounds on privacy loss, from scores in a file or from attacks on this installation's step."""

import argparse
import json
import pathlib
from typing import Any

import jax
import numpy as np

from gdpjax.accounting import epsilon_bounds
from gdpjax.auditing import StepAudit, audit_many_runs, audit_one_run, audit_step
from gdpjax.cli._report import Row, add_json_option, plain, printed
from gdpjax.cli._tables import read_table
from gdpjax.cli._worst_cases import WorstCase, worst_cases

_COINS = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}
_EPILOG = """The file (.csv or .parquet) has a column score, higher where membership is likelier, and a column included
(1 or 0, true or false). By default its rows are the canaries of ONE training run, each included by a fair coin
(arXiv:2305.08846, arXiv:2410.22235); with --many-runs each row is an independent run (arXiv:2302.07956), and a random
half of them chooses the threshold. Fix --num-guesses, --threshold and --seed before you look at the scores. --step
attacks the step of this installation, ends with status 1 if that refutes its certified bound, and is right about a
sound step with probability at least the confidence."""


def add_parser(commands: Any) -> None:
    """Add ``audit``."""
    parser = commands.add_parser("audit", help="lower bounds from attacks: scores in a file, or --step", epilog=_EPILOG)
    parser.add_argument("scores", nargs="?", type=pathlib.Path, help="a table with the columns score and included")
    parser.add_argument("--step", action="store_true", help="audit the private step of this installation instead")
    parser.add_argument("--many-runs", action="store_true", help="each row is an independent run")
    parser.add_argument(
        "--num-guesses", type=int, nargs="+", help="one run: how many to guess (a tenth of the canaries)"
    )
    parser.add_argument("--threshold", type=float, help="many runs: 'in' from this score on")
    parser.add_argument("--num-releases", type=int, help="step: runs with and runs without the example (4096 each)")
    parser.add_argument("--delta", type=float, default=1e-5, help="of the epsilons (1e-5)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of all that is printed, together (0.95)")
    parser.add_argument("--seed", type=int, default=0, help="of ties, halves and runs (0)")
    add_json_option(parser)
    parser.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    if arguments.step == (arguments.scores is not None):
        raise ValueError("give either a file of scores or --step")
    used = {"num_releases"} if arguments.step else {"threshold"} if arguments.many_runs else {"num_guesses"}
    for name in {"num_releases", "threshold", "num_guesses"} - used:
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} does not belong to this kind of audit; leave it out")
    if arguments.step and arguments.many_runs:
        raise ValueError("--many-runs says what the rows of a file are; leave it out with --step")
    return _audit_step(arguments) if arguments.step else printed(_audit_scores)(arguments)


def _read_scores(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """The columns score and included; a row that cannot be read spoils the audit, since leaving it out is a choice."""
    table = read_table(path)
    if not {"score", "included"} <= set(table.columns):
        raise ValueError(f"{path} needs the columns score and included, got {', '.join(table.columns)}")
    if table.bad:
        raise ValueError(f"{table.bad[0].place} of {path} {table.bad[0].reason}")
    at_score, at_included = table.columns.index("score"), table.columns.index("included")
    scores, coins = [], []
    for place, cells in table.rows:
        try:
            scores.append(float(cells[at_score]))
            coins.append(_COINS[cells[at_included].lower()])
        except (ValueError, KeyError) as error:
            found = f"{cells[at_score]!r} and {cells[at_included]!r}"
            raise ValueError(f"{place} of {path}: expected a number and 1 or 0 (true or false), got {found}") from error
    return np.asarray(scores, np.float64), np.asarray(coins, bool)


def _audit_scores(arguments: argparse.Namespace) -> list[Row]:
    scores, coins = _read_scores(arguments.scores)
    key = jax.random.key(arguments.seed)
    shared: dict[str, Any] = {"delta": arguments.delta, "confidence": arguments.confidence}
    lower = "empirical lower: the truth is at least this, at the confidence"
    if arguments.many_runs:
        fixed: dict[str, Any] = {"key": key} if arguments.threshold is None else {"threshold": arguments.threshold}
        many = audit_many_runs(scores, coins, **fixed, **shared)
        return [
            Row("epsilon_lower", many.epsilon, lower),
            Row("mu_lower", many.mu, lower),
            Row("epsilon_lower_if_gaussian", many.epsilon_if_gaussian, f"{lower}, if the trade-off curve is Gaussian"),
            Row("delta", many.delta, "given"),
            Row("confidence", many.confidence, "given; of all bounds together"),
            Row("alpha", many.alpha, "estimate: observed type I error rate of the attack"),
            Row("beta", many.beta, "estimate: observed type II error rate of the attack"),
            Row(
                "threshold", many.threshold, "given" if arguments.threshold is not None else "chosen on the other half"
            ),
            Row("num_runs", many.num_runs, "runs in which errors were counted"),
        ]
    one = audit_one_run(scores, coins, key=key, num_guesses=arguments.num_guesses, **shared)
    return [
        Row("epsilon_lower", one.epsilon, lower),
        Row("mu_lower", one.mu, lower),
        Row("delta", one.delta, "given"),
        Row("confidence", one.confidence, "given; of both bounds together"),
        Row("num_canaries", one.num_canaries, "rows; taken to be included by independent fair coins"),
        Row("num_guesses", one.num_guesses, "of the larger mu" if len(arguments.num_guesses or ()) > 1 else "fixed"),
        Row("num_correct", one.num_correct, "of those"),
    ]


def _audit_step(arguments: argparse.Namespace) -> int:
    cases = worst_cases()
    keys = jax.random.split(jax.random.key(arguments.seed), len(cases))
    share = 1 - (1 - arguments.confidence) / len(cases)
    num_releases = 4096 if arguments.num_releases is None else arguments.num_releases
    found = {
        name: audit_step(
            case.release,
            key,
            delta=arguments.delta,
            claimed=case.claimed(),
            num_releases=num_releases,
            confidence=share,
        )
        for key, (name, case) in zip(keys, cases.items(), strict=True)
    }
    noise_multiplier, sampling_prob, num_steps = np.transpose([case.run for case in cases.values()])
    bounds = epsilon_bounds(noise_multiplier, sampling_prob, num_steps, arguments.delta)
    uppers = dict(zip(cases, bounds.upper.tolist(), strict=True))
    verdicts = {name: _verdict(audit, uppers[name]) for name, audit in found.items()}
    sound = all(verdict == "consistent" for verdict in verdicts.values())
    if arguments.json:
        report = {
            "sound": sound, "confidence": arguments.confidence, "delta": arguments.delta,
            "cases": {name: _as_json(cases[name], found[name], uppers[name], verdicts[name]) for name in cases},
        }  # fmt: skip
        print(json.dumps(report, allow_nan=False))
    else:
        print(_as_table(found, uppers, verdicts, arguments.confidence))
    return 0 if sound else 1


def _verdict(audit: StepAudit, epsilon_upper: float) -> str:
    if audit.epsilon > epsilon_upper:
        return "REFUTED: epsilon"
    return "REFUTED: trade-off" if audit.refuted else "consistent"


def _as_json(case: WorstCase, audit: StepAudit, epsilon_upper: float, verdict: str) -> dict[str, Any]:
    noise_multiplier, sampling_prob, num_steps = case.run
    values = {
        "noise_multiplier": noise_multiplier, "sampling_prob": sampling_prob, "num_steps": num_steps,
        "epsilon_lower": audit.epsilon, "epsilon_upper": epsilon_upper, "mu_lower": audit.mu,
        "alpha": audit.alpha, "beta": audit.beta, "claimed_beta": audit.claimed_beta,
        "statistic": audit.statistic, "num_releases": audit.num_releases, "verdict": verdict,
    }  # fmt: skip
    return {name: plain(value) for name, value in values.items()}


def _as_table(
    found: dict[str, StepAudit], uppers: dict[str, float], verdicts: dict[str, str], confidence: float
) -> str:
    lines = [f"{'case':<12}  {'epsilon':>18}  {'mu':>7}  {'errors':>13}  {'claimed':>7}  {'attack':<9}  verdict"]
    for name, audit in found.items():
        epsilon, errors = f"{audit.epsilon:.3f} <= {uppers[name]:.3f}", f"{audit.alpha:.3f}, {audit.beta:.3f}"
        lines.append(
            f"{name:<12}  {epsilon:>18}  {audit.mu:>7.3f}  {errors:>13}  {audit.claimed_beta:>7.3f}  "
            f"{audit.statistic:<9}  {verdicts[name]}"
        )
    lines += [
        f"epsilon, mu: empirical lower bounds, all together at confidence {confidence:g}; epsilon beside the certified",
        "upper bound. errors: observed type I and II error rates of the attack; claimed: the least type II error that",
        "the claimed trade-off curve allows at that type I error. A verdict allows for chance, these rates do not.",
    ]
    return "\n".join(lines)
