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
from benchmarks.training.trainer import Trainer
from benchmarks.training.trainers import LOOP, OWN, SCAN, Contender, mean_loss

LIMIT = 900.0
"""Seconds after which a compilation or a training is given up."""
KEEP = 1.15
"""How much slower than a contender's fastest size another one may be to stay in."""
LEAST_SCAN_RATIO = 0.98
"""Two medians of the same program differ by a per cent or two."""


def missing(chosen: Sequence[Contender]) -> dict[str, str]:
    """Return the chosen contenders whose packages are not there, and why."""
    reasons = {}
    for contender in chosen:
        for module in contender.modules:
            reason = why_missing(module)
            if reason:
                reasons[contender.name] = reason
                break
    return reasons


def first_loss(case: Case) -> float:
    """Return the mean loss that everybody starts from."""
    return mean_loss(case, case.params())


def run(case: Case, chosen: Sequence[Contender], repetitions: int) -> dict[str, Any]:
    """Return the result of every chosen contender: times of a step, epsilon, loss, or why it is not available."""
    entries: list[turns.Entry] = []
    results: dict[str, Any] = {}
    for contender in chosen:
        # Every microbatch size is tried.
        refused: dict[str, str] = {}
        ready: list[turns.Entry] = []
        for size in contender.sizes:
            entry = _prepare(case, contender, size, refused)
            if entry is not None:
                ready.append(entry)

        # Those that are nearly as fast as the best one race.
        best = min((entry.trial_seconds for entry in ready), default=0.0)
        trials = {}
        for entry in ready:
            trials[str(entry.microbatch_size)] = entry.trial_seconds / case.steps_per_turn
            if entry.trial_seconds <= KEEP * best:
                entries.append(entry)
        results[contender.name] = {"refused": refused, "trial_seconds_per_step": trials}

    turns.take_turns(entries, repetitions)
    for name, result in results.items():
        raced = [entry for entry in entries if entry.name == name]
        if raced:
            fastest = min(raced, key=lambda entry: statistics.median(entry.seconds))
            result |= _result(case, fastest)
    return results


def _prepare(case: Case, contender: Contender, size: int | None, refused: dict[str, str]) -> turns.Entry | None:
    """Return what is ready to run, after two turns; else put the reason into ``refused``."""

    def build() -> tuple[Trainer, float]:
        trainer = contender.build(case, size)
        loss = trainer.turn()
        return trainer, loss()

    # The first turn compiles.
    watch = clocks.Stopwatch()
    made = clocks.attempt(build, LIMIT)
    if made.error:
        refused[str(size)] = made.error
        return None
    trainer, loss = made.value
    facts = {
        "ready_seconds": watch.read().wall,
        "loss": loss,
        "trainer": trainer,
    }

    # The second one is the trial.
    trial_seconds = clocks.time_call(trainer.turn).wall
    return turns.Entry(contender.name, size, trainer.turn, facts, trial_seconds)


def _result(case: Case, entry: turns.Entry) -> dict[str, Any]:
    """Return the times of one step; what the library says of epsilon comes last, since that may take seconds."""
    trainer: Trainer = entry.facts.pop("trainer")
    seconds = [times.wall / case.steps_per_turn for times in entry.times]
    processor_seconds = [times.cpu / case.steps_per_turn for times in entry.times]
    steps_per_second = [1 / seconds_of_step for seconds_of_step in seconds]
    stated = clocks.attempt(trainer.epsilon, LIMIT)
    return {
        "microbatch_size": entry.microbatch_size,
        "seconds": turns.spread(seconds),
        "processor_seconds": turns.spread(processor_seconds),
        "steps_per_second": turns.spread(steps_per_second),
        "sampling_prob": trainer.sampling_prob,
        "epsilon": stated.value or {"epsilon": None, "by": stated.error},
        **entry.facts,
    }


def targets(cases: Sequence[Case], result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of the noise, and of each case: its bookkeeping, the peers' speed, scan against loop."""
    noise = result["noise"]
    name = f"noise of {noise['num_coordinates']:,} coordinates / {parts.JAX_NORMAL}"
    ratio = noise["contenders"][parts.NOISE]["over"]["time"]
    targets_by_name = {name: writing.at_most(LARGEST_NOISE_RATIO, ratio)}
    for case in cases:
        if case.name in result["cases"]:
            targets_by_name |= _targets_of_case(case, result["cases"][case.name])
    return targets_by_name


def _targets_of_case(case: Case, measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of one case, as far as those that they compare have run."""
    of_case: dict[str, dict[str, Any]] = {}
    if case.overhead_target is not None:
        ratio = measured["parts"][parts.PRIVATE]["over"]["time"]
        of_case[f"{case.name}: {parts.PRIVATE} / {parts.CLIPPED}"] = writing.at_most(case.overhead_target, ratio)

    speeds: dict[str, float] = {}
    for name, trainer in measured["trainers"].items():
        if "steps_per_second" in trainer:
            speeds[name] = trainer["steps_per_second"]["median"]

    # Beside the peers.
    peers = [name for name in speeds if name not in OWN]
    if SCAN in speeds and peers:
        fastest = max(peers, key=speeds.__getitem__)
        ratio = speeds[SCAN] / speeds[fastest]
        name = f"{case.name}: times faster than the fastest peer"
        of_case[name] = writing.at_least(1.0, ratio, beside=fastest)

    # Beside ourselves.
    if SCAN in speeds and LOOP in speeds:
        ratio = speeds[SCAN] / speeds[LOOP]
        name = f"{case.name}: steps/s of run_steps / of a loop of step"
        of_case[name] = writing.at_least(LEAST_SCAN_RATIO, ratio, beside=LOOP)
    return of_case
