"""Who is right, where a peer and we contradict each other: the tests' own discretised bracket on delta decides.

It shares no code and no method with either side (`tests/accounting/numeric/oracle.py`: a tilted FFT, rounded both
ways).
"""

import math
from typing import Any

BINS = (2**18, 2**17)
"""Cells of the discretised bracket, tried one after the other."""
MOST_JUDGED = 60
"""Contradictions that are judged, so that the run stays short."""

Run = tuple[float, float, int, float]
"""Noise multiplier, sampling probability, number of steps, delta."""


def verdict(run: Run, side: str, claimed: float, certified: list[float]) -> str:
    """Return whose end is false: "the peer", "gdpjax" or "undecided".

    Args:
      run: the configuration.
      side: "upper" or "lower", of the peer's end.
      claimed: the peer's end.
      certified: our bracket, which the end contradicts.
    """
    from tests.accounting.numeric import oracle

    *steps, delta = run
    lower, upper = certified

    # An upper end of theirs is below our lower end, a lower end of theirs above our upper end.
    if side == "upper":
        our_side, ours = "lower", lower
    else:
        our_side, ours = "upper", upper

    # A side is proved false as soon as a bracket is narrow enough for it.
    for bins in BINS:
        at_theirs = oracle.both_directions(*steps, claimed, bins=bins)
        if _is_proved_false(at_theirs, delta, side):
            return "the peer"
        at_ours = oracle.both_directions(*steps, ours, bins=bins)
        if _is_proved_false(at_ours, delta, our_side):
            return "gdpjax"
    return "undecided"


def _is_proved_false(log_delta: tuple[float, float], delta: float, side: str) -> bool:
    """Return whether a bracket on log delta(end) shows that an upper end is too low, or a lower end too high."""
    at_least, at_most = log_delta
    if side == "upper":
        return at_least > math.log(delta)
    return at_most < math.log(delta)


def judge(libraries: dict[str, Any]) -> None:
    """Add whose end is false to every contradiction, up to a limit."""
    contradictions = []
    for measured in libraries.values():
        contradictions += measured["wrong_side"]
    for wrong in contradictions[:MOST_JUDGED]:
        noise_multiplier, sampling_prob, num_steps, delta, *_ = wrong.values()
        run = (noise_multiplier, sampling_prob, num_steps, delta)
        wrong["false"] = verdict(run, wrong["side"], wrong["claimed"], wrong["certified"])
