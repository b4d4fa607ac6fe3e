"""``gdpjax audit``: lower bounds on privacy loss, from scores in a file or from attacks on this installation's step."""

import argparse
import pathlib
from typing import Any

import jax

from gdpjax.auditing import audit_installation, audit_many_runs, audit_one_run
from gdpjax.cli._inputs import read_table
from gdpjax.cli._report import Row, add_json_option, printed

_COINS = {"true": True, "false": False}
_OWN_OPTIONS = {"--step": "num_releases", "--many-runs": "threshold", "one run": "num_guesses"}
_LOWER = "empirical lower: the truth is at least this, at the confidence"
_TURNED_ROUND = "fewer than half of the guesses are right: higher scores must mean that the canary was included"
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
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--step", action="store_true", help="audit the private step of this installation instead")
    kinds.add_argument("--many-runs", action="store_true", help="each row is an independent run")
    parser.add_argument("--delta", type=float, default=1e-5, help="of the epsilons (1e-5)")
    parser.add_argument("--seed", type=int, default=0, help="of ties, halves and runs (0)")

    # Those that are left out have the defaults of the audits.
    optional: Any = {"default": argparse.SUPPRESS}
    guesses = "one run: how many to guess (a tenth of the canaries)"
    releases = "step: runs with and runs without the example, and runs that are checked (4096 each)"
    confidence = "of all that is printed, together (0.95; with --step 0.9999, verdicts included)"
    parser.add_argument("--num-guesses", type=int, nargs="+", help=guesses, **optional)
    parser.add_argument("--threshold", type=float, help="many runs: 'in' from this score on", **optional)
    parser.add_argument("--num-releases", "--releases", type=int, help=releases, **optional)
    parser.add_argument("--confidence", type=float, help=confidence, **optional)
    add_json_option(parser)
    parser.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    """Audit the scores in a file, or the step of this installation; return the exit status."""
    if arguments.step == (arguments.scores is not None):
        raise ValueError("give either a file of scores or --step")
    kind = "--step" if arguments.step else "--many-runs" if arguments.many_runs else "one run"
    given = vars(arguments)
    for other, name in _OWN_OPTIONS.items():
        if other != kind and name in given:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} does not belong to an audit of {kind}; leave it out")
    names = (_OWN_OPTIONS[kind], "confidence", "delta")
    options = {name: given[name] for name in names if name in given}
    key = jax.random.key(arguments.seed)
    if arguments.step:
        found = audit_installation(key, **options)
        print(found.to_json() if arguments.json else found)
        return 0 if found.sound else 1
    scores = _read_scores(arguments.scores)
    report = _many_runs_report if arguments.many_runs else _one_run_report
    return printed(lambda _: report(scores, key, options))(arguments)


def _read_scores(path: pathlib.Path) -> tuple[list[float], list[bool]]:
    """Return the columns score and included.

    A row that cannot be read spoils the audit, since leaving it out is a choice.
    """
    columns, rows = read_table(path)
    if not {"score", "included"} <= set(columns):
        raise ValueError(f"{path} needs the columns score and included, got {', '.join(columns)}")
    scores, coins = [], []
    for place, cells in rows:
        try:
            row = dict(zip(columns, cells, strict=True))
            coin = row["included"].lower()
            scores.append(float(row["score"]))
            coins.append(_COINS[coin] if coin in _COINS else {1.0: True, 0.0: False}[float(coin)])
        except (ValueError, KeyError):
            expected = "a number and 1 or 0 (true or false)"
            raise ValueError(f"{place} of {path}: expected {expected}, got {', '.join(cells)}") from None
    return scores, coins


def _many_runs_report(data: Any, key: Any, options: dict[str, Any]) -> list[Row]:
    """Return the report of scores that are one run each; without a threshold the key chooses it on half of them."""
    is_given = "threshold" in options
    audit = audit_many_runs(*data, **options) if is_given else audit_many_runs(*data, key=key, **options)
    return [
        Row("epsilon_lower", audit.epsilon, _LOWER, "down"),
        Row("mu_lower", audit.mu, _LOWER, "down"),
        Row(
            "epsilon_lower_if_gaussian",
            audit.epsilon_if_gaussian,
            f"{_LOWER}, if the trade-off curve is Gaussian",
            "down",
        ),
        Row("delta", audit.delta, "given", "exact"),
        Row("confidence", audit.confidence, "given; of all bounds together", "exact"),
        Row("alpha", audit.alpha, "estimate: observed type I error rate of the attack"),
        Row("beta", audit.beta, "estimate: observed type II error rate of the attack"),
        Row("threshold", audit.threshold, "given" if is_given else "chosen on the other half", "exact"),
        Row("num_runs", audit.num_runs, "runs in which errors were counted"),
    ]


def _one_run_report(data: Any, key: Any, options: dict[str, Any]) -> list[Row]:
    """Return the report of scores that are the canaries of one run."""
    audit = audit_one_run(*data, key=key, **options)
    is_chosen = len(options.get("num_guesses", [])) > 1
    is_turned = 2 * audit.num_correct < audit.num_guesses
    return [
        Row("epsilon_lower", audit.epsilon, _LOWER, "down"),
        Row("mu_lower", audit.mu, _LOWER, "down"),
        Row("delta", audit.delta, "given", "exact"),
        Row("confidence", audit.confidence, "given; of both bounds together", "exact"),
        Row("num_canaries", audit.num_canaries, "rows; taken to be included by independent fair coins"),
        Row("num_guesses", audit.num_guesses, "of the larger mu" if is_chosen else "fixed"),
        Row("num_correct", audit.num_correct, f"of those; {_TURNED_ROUND}" if is_turned else "of those"),
    ]
