"""Everybody's training in turns, and what was aimed at beside what was measured.

A contender with a microbatch size is tried at each; those within a tenth or so of its fastest stay in, and the fastest
of the race is its result.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks import clocks, turns
from benchmarks.harness import Contender, at_least, at_most
from benchmarks.training import parts
from benchmarks.training.cases import PRESETS, Case
from benchmarks.training.trainer import Trainer
from benchmarks.training.trainers import CONTENDERS as CONTENDERS
from benchmarks.training.trainers import LOOP, OWN, SCAN, mean_loss

LEAST_SCAN_RATIO = 0.98
"""Two medians of the same program differ by a per cent or two."""


def run(case: Case, chosen: Sequence[Contender], repetitions: int) -> dict[str, Any]:
    """Return what the case is, the parts of its step, and every contender's times, epsilon and loss."""
    plan = case.plan()
    return {
        "title": case.title,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(case.params())),
        "plan": {
            "noise_multiplier": plan.noise_multiplier,
            "clip_norm": case.clip_norm,
            "max_steps": plan.num_steps,
            "expected_batch_size": case.expected_batch_size,
            "capacity": plan.capacity,
            "delta": plan.delta,
            "max_examples": plan.max_examples,
            "learning_rate": case.learning_rate,
        },
        "steps_per_turn": case.steps_per_turn,
        "first_loss": mean_loss(case, case.params()),
        "parts": parts.measure(case, repetitions) if case.parts else {},
        "trainers": _trainers(case, chosen, repetitions),
    }


def _trainers(case: Case, chosen: Sequence[Contender], repetitions: int) -> dict[str, Any]:
    """Return the result of every chosen contender, or why it is not available."""
    entries, results = turns.race(chosen, functools.partial(_prepare, case), repetitions)
    for name, result in results.items():
        if fastest := turns.fastest(entries, name):
            result |= _result(fastest)
    return results


def _prepare(case: Case, contender: Contender, size: int | None) -> turns.Entry:
    """Return what is ready to run, after two turns."""
    # The first turn compiles.
    watch = clocks.Stopwatch()
    trainer = contender.build(case, size)
    loss = trainer.turn()()
    facts = {"ready_seconds": watch.read().wall, "loss": loss, "trainer": trainer}

    # The second one is the trial.
    trial_seconds = clocks.time_call(trainer.turn).wall
    return turns.Entry(contender.name, size, trainer.turn, facts, trial_seconds, case.steps_per_turn)


def _result(entry: turns.Entry) -> dict[str, Any]:
    """Return the times of one step; what the library says of epsilon comes last, since that may take seconds."""
    trainer: Trainer = entry.facts.pop("trainer")
    stated = clocks.attempt(trainer.epsilon, turns.LIMIT)
    return {
        "steps_per_second": turns.spread([1 / seconds for seconds in entry.seconds]),
        "sampling_prob": trainer.sampling_prob,
        "epsilon": stated.value or {"epsilon": None, "by": stated.error},
        **entry.result(),
    }


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of each case: its bookkeeping, the peers' speed, scan against loop."""
    found = {}
    aims = {case.name: case.overhead_target for case in PRESETS[result["settings"]["preset"]]}
    for name, case in result["cases"].items():
        aim = aims[name]
        if aim is not None:
            ratio = case["parts"][parts.PRIVATE]["over"]["time"]
            found[f"{name}: {parts.PRIVATE} / {parts.CLIPPED}"] = at_most(aim, ratio)
        trainers = case["trainers"].items()
        speeds = {each: at["steps_per_second"]["median"] for each, at in trainers if "steps_per_second" in at}
        if SCAN not in speeds:
            continue

        # Beside the peers, and beside ourselves.
        peers = [each for each in speeds if each not in OWN]
        if peers:
            best = max(peers, key=speeds.__getitem__)
            ratio = speeds[SCAN] / speeds[best]
            found[f"{name}: times faster than the fastest peer"] = at_least(1.0, ratio, beside=best)
        if LOOP in speeds:
            ratio = speeds[SCAN] / speeds[LOOP]
            found[f"{name}: steps/s of run_steps / of a loop of step"] = at_least(LEAST_SCAN_RATIO, ratio, beside=LOOP)
    return found
