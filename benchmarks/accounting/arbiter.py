"""Who is right, where a peer and we contradict each other: the tests' own discretised bracket on delta decides.

It shares no code and no method with either side (`tests/accounting/numeric/oracle.py`: a tilted FFT, rounded both
ways).
"""

import math
from typing import Any

BINS = (2**18, 2**17)
LIMIT_CONTRADICTIONS = 40


def verdict(run: tuple[float, float, int, float], side: str, claimed: float, certified: list[float]) -> str:
    """Whose end is false: "the peer", "gdpjax" or "undecided"."""
    from tests.accounting.numeric import oracle

    *steps, delta = run
    low, high = certified
    for bins in BINS:
        at_claim = oracle.both_directions(*steps, claimed, bins=bins)
        if _proves(at_claim, delta, side):
            return "the peer"
        ours = oracle.both_directions(*steps, low if side == "upper" else high, bins=bins)
        if _proves(ours, delta, "lower" if side == "upper" else "upper"):
            return "gdpjax"
    return "undecided"


def _proves(log_delta: tuple[float, float], delta: float, side: str) -> bool:
    """Whether the bracket shows that an upper end has delta(end) > delta, or a lower end delta(end) < delta."""
    return log_delta[0] > math.log(delta) if side == "upper" else log_delta[1] < math.log(delta)


def judge(libraries: dict[str, Any]) -> None:
    """Add whose end is false to every contradiction, up to a limit that keeps the run short."""
    found = [entry for at in libraries.values() for entry in at["wrong_side"]]
    for entry in found[:LIMIT_CONTRADICTIONS]:
        run = (entry["noise_multiplier"], entry["sampling_prob"], entry["num_steps"], entry["delta"])
        entry["false"] = verdict(run, entry["side"], entry["claimed"], entry["certified"])
