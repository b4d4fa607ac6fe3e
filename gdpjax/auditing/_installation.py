"""The audit of this installation's private step: the attacks of `_worst_cases` and the checks of `_step_checks`."""

import json
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_number
from gdpjax._core.checks import OPEN_UNIT
from gdpjax._core.figures import plain, rounded, text_table
from gdpjax._core.keys import as_key
from gdpjax.accounting import epsilon_bounds
from gdpjax.auditing._step import StepAudit, audit_step
from gdpjax.auditing._step_checks import step_checks
from gdpjax.auditing._worst_cases import WorstCase, worst_cases

_CONSISTENT = "consistent"
_DIGITS = 3
_NOTE = """\
epsilon, mu: empirical lower bounds, epsilon beside the certified upper bound.
errors: observed type I and II error rates of the attack; claimed: the least
type II error that the claimed trade-off curve allows at that type I error.
p-value: the probability that a sound step looks at least as wrong. All bounds
and verdicts together are right about a sound step with probability at least
"""


class InstallationAudit(NamedTuple):
    """What the attacks and checks of this installation's private step found.

    Attributes:
      sound: whether all of them are consistent with what is claimed, which proves nothing.
      confidence: a sound step is found sound with at least this probability.
      delta: of the epsilons.
      cases: by name the figures of each worst case, with its "verdict".
      checks: by name the "verdict", "p_value" and "statement" of each check.
    """

    sound: bool
    confidence: float
    delta: float
    cases: dict[str, dict[str, Any]]
    checks: dict[str, dict[str, Any]]

    def to_json(self) -> str:
        """Return all of it as one JSON object; infinities are texts."""
        cases = {name: {key: plain(value) for key, value in case.items()} for name, case in self.cases.items()}
        return json.dumps(self._replace(cases=cases)._asdict(), allow_nan=False)

    def __str__(self) -> str:
        cases = [("case", "epsilon", "mu", "errors", "claimed", "verdict")]
        for name, case in self.cases.items():
            lower = rounded(case["epsilon_lower"], _DIGITS, "down")
            upper = rounded(case["epsilon_upper"], _DIGITS, "up")
            errors = f"{case['alpha']:.3f}, {case['beta']:.3f}"
            mu = rounded(case["mu_lower"], _DIGITS, "down")
            cases.append((name, f"{lower} <= {upper}", mu, errors, f"{case['claimed_beta']:.3f}", case["verdict"]))
        checks = [("check", "p-value", "verdict", "seen")]
        for name, check in self.checks.items():
            checks.append((name, f"{check['p_value']:.2g}", check["verdict"], check["statement"]))

        note = f"{_NOTE}{self.confidence:g}; passing proves nothing."
        refuted, failed = (
            [name for name, found in some.items() if found["verdict"] != _CONSISTENT]
            for some in (self.cases, self.checks)
        )
        if not self.sound:
            names = ", ".join(refuted + failed)
            note += f"\nNOT SOUND: {len(refuted)} worst cases refuted, {len(failed)} checks failed: {names}"
        return "\n".join([text_table(cases), "", text_table(checks), "", note])


def audit_installation(
    key: PRNGKeyArray, *, delta: float = 1e-5, num_releases: int = 4096, confidence: float = 0.9999
) -> InstallationAudit:
    """Attack the private step of this installation, and check what it releases.

    The step is Poisson sampling, `gdpjax.clipped_grad` and `gdpjax.privatize`. Nine worst cases are audited by
    `audit_step`, each beside its certified epsilon and its exact trade-off curve, and `step_checks` tests the laws of
    noise, clipped sums, batches and ledger, which shows smaller faults. ``gdpjax audit --step`` prints it.

    Args:
        key: one PRNG key.
        delta: strictly between 0 and 1, of the epsilons.
        num_releases: runs with and runs without the example, and runs that are checked; more see smaller faults.
        confidence: in (0, 1), of all bounds and verdicts together. Half of what may go wrong by chance goes to the
            worst cases, and half to the checks.

    Returns:
        An `InstallationAudit`: ``sound``, and by name ``cases`` and ``checks`` with their figures; ``print`` shows it
        as tables, and ``to_json()`` holds all of it. Its bounds on epsilon and mu are empirical lower.

    Raises:
        ValueError: a number outside its range, or too few releases.

    Reference: as `audit_step`, and exact tests of known laws.
    """
    confidence = check_number("confidence", confidence, OPEN_UNIT)
    cases = worst_cases()
    check_key, *case_keys = jax.random.split(as_key(key), 1 + len(cases))
    noise_multiplier, sampling_prob, num_steps = np.transpose([case.run for case in cases.values()])
    uppers = epsilon_bounds(noise_multiplier, sampling_prob, num_steps, delta).upper
    case_confidence = 1 - (1 - confidence) / 2 / len(cases)
    found = {}
    for case_key, (name, case), upper in zip(case_keys, cases.items(), uppers.tolist(), strict=True):
        audit = audit_step(
            case.release,
            case_key,
            delta=delta,
            claimed=case.claimed(),
            num_releases=num_releases,
            confidence=case_confidence,
        )
        found[name] = _figures(case, audit, upper)

    checks = step_checks(check_key, num_releases)
    check_error = (1 - confidence) / 2 / len(checks)
    checked = {}
    for name, check in checks.items():
        verdict = "FAILED" if check.p_value <= check_error else _CONSISTENT
        checked[name] = {"verdict": verdict, **check._asdict()}
    is_sound = all(one["verdict"] == _CONSISTENT for one in (*found.values(), *checked.values()))
    return InstallationAudit(is_sound, confidence, delta, found, checked)


def _figures(case: WorstCase, audit: StepAudit, epsilon_upper: float) -> dict[str, Any]:
    """Return the figures of a worst case with its verdict."""
    verdict = _CONSISTENT
    if audit.epsilon > epsilon_upper:
        verdict = "REFUTED: epsilon"
    elif audit.refuted:
        verdict = "REFUTED: trade-off"
    return {
        "noise_multiplier": case.noise_multiplier,
        "sampling_prob": case.sampling_prob,
        "num_steps": case.num_steps,
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
