"""Everybody's training in turns, and what was aimed at beside what was measured.

A contender with a microbatch size is tried at each; those within a tenth or so of its fastest stay in, and the fastest
of the race is its result.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import clocks, turns, writing
from benchmarks.clipping.contenders import why_missing
from benchmarks.training import parts
from benchmarks.training.cases import LARGEST_NOISE_RATIO, Case
from benchmarks.training.trainers import LOOP, OWN, SCAN, Contender, Trainer, mean_loss

LIMIT = 900.0
KEEP = 1.15
LEAST_SCAN_RATIO = 0.98
"""Two medians of the same program differ by a per cent or two."""


def missing(chosen: Sequence[Contender]) -> dict[str, str]:
    """Return the chosen contenders whose packages are not there, and why."""
    found = {each.name: next((why for m in each.modules if (why := why_missing(m))), None) for each in chosen}
    return {name: why for name, why in found.items() if why}


def first_loss(case: Case) -> float:
    """Return the mean loss that everybody starts from."""
    return mean_loss(case, case.params())


def run(case: Case, chosen: Sequence[Contender], repetitions: int) -> dict[str, Any]:
    """Name to result of every chosen contender: times of a step, epsilon, loss, or why it is not available."""
    entries: list[turns.Entry] = []
    results: dict[str, Any] = {}
    for contender in chosen:
        refused: dict[str, str] = {}
        ready = [entry for size in contender.sizes if (entry := _prepare(case, contender, size, refused))]
        best = min((entry.trial_seconds for entry in ready), default=0.0)
        entries += [entry for entry in ready if entry.trial_seconds <= KEEP * best]
        trials = {str(entry.microbatch_size): entry.trial_seconds / case.steps_per_turn for entry in ready}
        results[contender.name] = {"refused": refused, "trial_seconds_per_step": trials}
    turns.take_turns(entries, repetitions)
    for name, result in results.items():
        raced = [entry for entry in entries if entry.name == name]
        if raced:
            result |= _result(case, min(raced, key=lambda entry: statistics.median(entry.seconds)))
    return results


def _prepare(case: Case, contender: Contender, size: int | None, refused: dict[str, str]) -> turns.Entry | None:
    """Ready to run, after two turns; else the reason goes to ``refused``."""

    def build() -> tuple[Trainer, float]:
        trainer = contender.build(case, size)
        return trainer, trainer.turn()()

    watch = clocks.Stopwatch()
    made = clocks.attempt(build, LIMIT)
    if made.error:
        refused[str(size)] = made.error
        return None
    trainer, loss = made.value
    facts = {"ready_seconds": watch.read().wall, "loss": loss, "trainer": trainer}
    return turns.Entry(contender.name, size, trainer.turn, facts, clocks.time_call(trainer.turn).wall)


def _result(case: Case, entry: turns.Entry) -> dict[str, Any]:
    """Of one step; what the library says of epsilon comes last, since that may take seconds."""
    trainer: Trainer = entry.facts.pop("trainer")
    per_step = [clocks.Times(*(value / case.steps_per_turn for value in each)) for each in entry.times]
    stated = clocks.attempt(trainer.epsilon, LIMIT)
    return {
        "microbatch_size": entry.microbatch_size,
        "seconds": turns.spread([each.wall for each in per_step]),
        "processor_seconds": turns.spread([each.cpu for each in per_step]),
        "steps_per_second": turns.spread([1 / each.wall for each in per_step]),
        "sampling_prob": trainer.sampling_prob,
        "epsilon": stated.value or {"epsilon": None, "by": stated.error},
        **entry.facts,
    }


def targets(cases: Sequence[Case], result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of the noise, and of each case: its bookkeeping, the peers' speed, scan against loop."""
    noise = result["noise"]
    name = f"noise of {noise['num_coordinates']:,} coordinates / {parts.JAX_NORMAL}"
    found = {name: writing.at_most(LARGEST_NOISE_RATIO, noise["contenders"][parts.NOISE]["over"]["time"])}
    for case in cases:
        if case.name not in result["cases"]:
            continue
        measured = result["cases"][case.name]
        if case.overhead_target is not None:
            ratio = measured["parts"][parts.PRIVATE]["over"]["time"]
            found[f"{case.name}: {parts.PRIVATE} / {parts.CLIPPED}"] = writing.at_most(case.overhead_target, ratio)

        speeds = {}
        for trainer, at in measured["trainers"].items():
            if "steps_per_second" in at:
                speeds[trainer] = at["steps_per_second"]["median"]
        peers = {trainer: speed for trainer, speed in speeds.items() if trainer not in OWN}
        if SCAN in speeds and peers:
            fastest = max(peers, key=peers.__getitem__)
            faster = speeds[SCAN] / peers[fastest]
            name = f"{case.name}: times faster than the fastest peer"
            found[name] = writing.at_least(1.0, faster, beside=fastest)
        if SCAN in speeds and LOOP in speeds:
            faster = speeds[SCAN] / speeds[LOOP]
            name = f"{case.name}: steps/s of run_steps / of a loop of step"
            found[name] = writing.at_least(LEAST_SCAN_RATIO, faster, beside=LOOP)
    return found
