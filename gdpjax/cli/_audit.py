"""``gdpjax audit``: lower bounds on privacy loss, from scores in a file or from attacks on this installation's step."""

import argparse
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gdpjax._core.checks import OPEN_UNIT, check_scalar
from gdpjax._core.types import Array
from gdpjax.accounting import epsilon_bounds
from gdpjax.auditing import StepAudit, audit_many_runs, audit_one_run, audit_step
from gdpjax.cli._report import Row, add_json_option, plain, printed
from gdpjax.cli._runs import as_option
from gdpjax.cli._step_checks import StepCheck, step_checks
from gdpjax.cli._tables import read_table
from gdpjax.cli._worst_cases import WorstCase, worst_cases

_COINS = {"true": True, "false": False}
_CONFIDENCE = 0.95
_STEP_CONFIDENCE = 0.9999
_NUM_RELEASES = 4096
_EMPIRICAL_LOWER = "empirical lower: the truth is at least this, at the confidence"
_TURNED_ROUND = "fewer than half of the guesses are right: higher scores must mean that the canary was included"
_CONSISTENT = "consistent"
_EPILOG = """The file (.csv or .parquet) has a column score, higher where membership is likelier, and a column included
(1 or 0, true or false). By default its rows are the canaries of ONE training run, each included by a fair coin
(arXiv:2305.08846, arXiv:2410.22235); with --many-runs each row is an independent run (arXiv:2302.07956), and a random
half of them chooses the threshold. Fix --num-guesses, --threshold and --seed before you look at the scores. --step
attacks the step of this installation and checks what it releases. It ends with status 1 if the certified bound is
refuted or a check fails; a sound step passes with probability at least the confidence. More releases see smaller
faults."""


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
    parser.add_argument(
        "--num-releases",
        "--releases",
        type=int,
        help="step: runs with and runs without the example, and runs that are checked (4096 each)",
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="of the epsilons (1e-5)")
    parser.add_argument(
        "--confidence",
        type=float,
        help="of all that is printed, together (0.95; with --step 0.9999, verdicts included)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of ties, halves and runs (0)")
    add_json_option(parser)
    parser.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    """Audit the scores in a file, or the step of this installation; return the exit status."""
    if arguments.step == (arguments.scores is not None):
        raise ValueError("give either a file of scores or --step")

    # Each kind of audit has one option of its own.
    if arguments.step:
        own_option = "num_releases"
    elif arguments.many_runs:
        own_option = "threshold"
    else:
        own_option = "num_guesses"
    for name in {"num_releases", "threshold", "num_guesses"} - {own_option}:
        if getattr(arguments, name) is not None:
            raise ValueError(f"{as_option(name)} does not belong to this kind of audit; leave it out")
    if arguments.step and arguments.many_runs:
        raise ValueError("--many-runs says what the rows of a file are; leave it out with --step")

    if arguments.step:
        return _audit_step(arguments)
    return printed(_audit_scores)(arguments)


def _read_scores(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns score, float64[rows], and included, bool[rows].

    A row that cannot be read spoils the audit, since leaving it out is a choice.
    """
    table = read_table(path)
    if "score" not in table.columns or "included" not in table.columns:
        raise ValueError(f"{path} needs the columns score and included, got {', '.join(table.columns)}")
    if table.bad:
        first = table.bad[0]
        raise ValueError(f"{first.place} of {path} {first.reason}")

    score_column = table.columns.index("score")
    included_column = table.columns.index("included")
    scores = []
    coins = []
    for place, cells in table.rows:
        score = cells[score_column]
        included = cells[included_column]
        try:
            scores.append(float(score))
            coins.append(_coin(included))
        except ValueError as error:
            got = f"{score!r} and {included!r}"
            raise ValueError(f"{place} of {path}: expected a number and 1 or 0 (true or false), got {got}") from error
    return np.asarray(scores, np.float64), np.asarray(coins, bool)


def _coin(text: str) -> bool:
    """Return whether a canary was included; ValueError unless the text is true, false, or a number equal to 1 or 0."""
    word = text.lower()
    if word in _COINS:
        return _COINS[word]
    value = float(text)
    if value not in (0.0, 1.0):
        raise ValueError("neither 1 nor 0")
    return value == 1.0


def _audit_scores(arguments: argparse.Namespace) -> list[Row]:
    """Return the report of the scores in a file, of many runs or of one."""
    scores, coins = _read_scores(arguments.scores)
    key = jax.random.key(arguments.seed)
    confidence = _CONFIDENCE if arguments.confidence is None else arguments.confidence
    if arguments.many_runs:
        return _many_runs_report(scores, coins, key, arguments.delta, confidence, arguments.threshold)
    return _one_run_report(scores, coins, key, arguments.delta, confidence, arguments.num_guesses)


def _many_runs_report(
    scores: np.ndarray, coins: np.ndarray, key: Array, delta: float, confidence: float, threshold: float | None
) -> list[Row]:
    """Return the report of scores that are one run each; without a threshold the key chooses it on half of them."""
    if threshold is None:
        audit = audit_many_runs(scores, coins, delta=delta, key=key, confidence=confidence)
        threshold_standing = "chosen on the other half"
    else:
        audit = audit_many_runs(scores, coins, delta=delta, threshold=threshold, confidence=confidence)
        threshold_standing = "given"
    gaussian_standing = f"{_EMPIRICAL_LOWER}, if the trade-off curve is Gaussian"
    return [
        Row("epsilon_lower", audit.epsilon, _EMPIRICAL_LOWER, "down"),
        Row("mu_lower", audit.mu, _EMPIRICAL_LOWER, "down"),
        Row("epsilon_lower_if_gaussian", audit.epsilon_if_gaussian, gaussian_standing, "down"),
        Row("delta", audit.delta, "given", "exact"),
        Row("confidence", audit.confidence, "given; of all bounds together", "exact"),
        Row("alpha", audit.alpha, "estimate: observed type I error rate of the attack"),
        Row("beta", audit.beta, "estimate: observed type II error rate of the attack"),
        Row("threshold", audit.threshold, threshold_standing, "exact"),
        Row("num_runs", audit.num_runs, "runs in which errors were counted"),
    ]


def _one_run_report(
    scores: np.ndarray, coins: np.ndarray, key: Array, delta: float, confidence: float, num_guesses: list[int] | None
) -> list[Row]:
    """Return the report of scores that are the canaries of one run."""
    audit = audit_one_run(scores, coins, key=key, delta=delta, num_guesses=num_guesses, confidence=confidence)
    is_chosen = num_guesses is not None and len(num_guesses) > 1
    guesses_standing = "of the larger mu" if is_chosen else "fixed"
    correct_standing = "of those"
    if 2 * audit.num_correct < audit.num_guesses:
        correct_standing = f"of those; {_TURNED_ROUND}"
    return [
        Row("epsilon_lower", audit.epsilon, _EMPIRICAL_LOWER, "down"),
        Row("mu_lower", audit.mu, _EMPIRICAL_LOWER, "down"),
        Row("delta", audit.delta, "given", "exact"),
        Row("confidence", audit.confidence, "given; of both bounds together", "exact"),
        Row("num_canaries", audit.num_canaries, "rows; taken to be included by independent fair coins"),
        Row("num_guesses", audit.num_guesses, guesses_standing),
        Row("num_correct", audit.num_correct, correct_standing),
    ]


def _audit_step(arguments: argparse.Namespace) -> int:
    """Attack the step of this installation, and check what it releases; return the exit status."""
    confidence = _STEP_CONFIDENCE if arguments.confidence is None else arguments.confidence
    check_scalar("confidence", confidence, OPEN_UNIT)
    num_releases = _NUM_RELEASES if arguments.num_releases is None else arguments.num_releases
    cases = worst_cases()
    check_key, *case_keys = jax.random.split(jax.random.key(arguments.seed), 1 + len(cases))

    # Half of what may go wrong by chance goes to the worst cases, in equal parts, and half to the checks.
    case_error = (1 - confidence) / 2 / len(cases)
    audits = {}
    for key, (name, case) in zip(case_keys, cases.items(), strict=True):
        audits[name] = audit_step(
            case.release,
            key,
            delta=arguments.delta,
            claimed=case.claimed(),
            num_releases=num_releases,
            confidence=1 - case_error,
        )
    uppers = _epsilon_uppers(cases, arguments.delta)
    verdicts = {name: _verdict(audit, uppers[name]) for name, audit in audits.items()}

    checks = step_checks(check_key, num_releases)
    check_error = (1 - confidence) / 2 / len(checks)
    failed = {name: check.p_value <= check_error for name, check in checks.items()}

    is_refuted = any(verdict != _CONSISTENT for verdict in verdicts.values())
    is_sound = not is_refuted and not any(failed.values())
    if arguments.json:
        report = {
            "sound": is_sound,
            "confidence": confidence,
            "delta": arguments.delta,
            "cases": {name: _as_json(cases[name], audits[name], uppers[name], verdicts[name]) for name in cases},
            "checks": {name: _check_as_json(check, failed[name]) for name, check in checks.items()},
        }
        print(json.dumps(report, allow_nan=False))
    else:
        print(_as_table(audits, uppers, verdicts))
        print(_checks_as_table(checks, failed))
        print(_summary(verdicts, failed, confidence))
    return 0 if is_sound else 1


def _epsilon_uppers(cases: dict[str, WorstCase], delta: float) -> dict[str, float]:
    """Return the certified upper bound on epsilon of each worst case."""
    noise_multiplier, sampling_prob, num_steps = np.transpose([case.run for case in cases.values()])
    bounds = epsilon_bounds(noise_multiplier, sampling_prob, num_steps, delta)
    return dict(zip(cases, bounds.upper.tolist(), strict=True))


def _verdict(audit: StepAudit, epsilon_upper: float) -> str:
    """Return the verdict on one worst case."""
    if audit.epsilon > epsilon_upper:
        return "REFUTED: epsilon"
    if audit.refuted:
        return "REFUTED: trade-off"
    return _CONSISTENT


def _check_verdict(failed: bool) -> str:
    """Return the verdict of one check."""
    return "FAILED" if failed else _CONSISTENT


def _check_as_json(check: StepCheck, failed: bool) -> dict[str, Any]:
    """Return one check with its verdict."""
    return {"verdict": _check_verdict(failed), **check._asdict()}


def _as_json(case: WorstCase, audit: StepAudit, epsilon_upper: float, verdict: str) -> dict[str, Any]:
    """Return one worst case with its run, its bounds and its verdict."""
    noise_multiplier, sampling_prob, num_steps = case.run
    values = {
        "noise_multiplier": noise_multiplier,
        "sampling_prob": sampling_prob,
        "num_steps": num_steps,
        "epsilon_lower": audit.epsilon,
        "epsilon_upper": epsilon_upper,
        "mu_lower": audit.mu,
        "alpha": audit.alpha,
        "beta": audit.beta,
        "claimed_beta": audit.claimed_beta,
        "statistic": audit.statistic,
        "num_releases": audit.num_releases,
        "verdict": verdict,
    }
    return {name: plain(value) for name, value in values.items()}


def _thousandths(bound: float, to_safe_side: Callable[[float], int]) -> str:
    """Return a bound in three decimals, rounded by ``math.floor`` or ``math.ceil``."""
    if not math.isfinite(bound):
        return str(bound)
    thousandths = to_safe_side(1000 * bound)
    return f"{thousandths / 1000:.3f}"


def _as_table(audits: dict[str, StepAudit], uppers: dict[str, float], verdicts: dict[str, str]) -> str:
    """Return the worst cases as text, in columns."""
    lines = [f"{'case':<12}  {'epsilon':>18}  {'mu':>7}  {'errors':>13}  {'claimed':>7}  {'attack':<9}  verdict"]
    for name, audit in audits.items():
        lower = _thousandths(audit.epsilon, math.floor)
        upper = _thousandths(uppers[name], math.ceil)
        epsilon = f"{lower} <= {upper}"
        errors = f"{audit.alpha:.3f}, {audit.beta:.3f}"
        lines.append(
            f"{name:<12}  {epsilon:>18}  {audit.mu:>7.3f}  {errors:>13}  {audit.claimed_beta:>7.3f}  "
            f"{audit.statistic:<9}  {verdicts[name]}"
        )
    return "\n".join(lines)


def _checks_as_table(checks: dict[str, StepCheck], failed: dict[str, bool]) -> str:
    """Return the checks as text, in columns."""
    lines = [f"{'check':<20}  {'p-value':>8}  {'verdict':<10}  seen"]
    for name, check in checks.items():
        verdict = _check_verdict(failed[name])
        lines.append(f"{name:<20}  {check.p_value:>8.2g}  {verdict:<10}  {check.statement}")
    return "\n".join(lines)


def _summary(verdicts: dict[str, str], failed: dict[str, bool], confidence: float) -> str:
    """Return how to read the two tables, and what is wrong with the step, if anything is."""
    refuted = [name for name, verdict in verdicts.items() if verdict != _CONSISTENT]
    wrong = [name for name, has_failed in failed.items() if has_failed]
    lines = [
        "epsilon, mu: empirical lower bounds; epsilon beside the certified upper bound. errors: observed type I and II",
        "error rates of the attack; claimed: the least type II error that the claimed trade-off curve allows at that",
        "type I error. p-value: the probability that a sound step looks at least as wrong. All bounds and verdicts",
        f"together are right about a sound step with probability at least {confidence:g}; passing proves nothing.",
    ]
    if refuted or wrong:
        names = ", ".join(refuted + wrong)
        lines.append(f"NOT SOUND: {len(refuted)} worst cases refuted, {len(wrong)} checks failed: {names}")
    return "\n".join(lines)
