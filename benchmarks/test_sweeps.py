"""A sweep of trainings in one vmapped program, beside one compiled scan for each configuration and a loop of steps.

    GDPJAX_DATA=/path/to/data python -m benchmarks.test_sweeps --output benchmarks/results/sweeps_cpu.json

Three ways to train the same configurations of Adult (a9a; learning rate, clip norm, noise multiplier and keys differ),
each with the same model, plan and step:

* ``one program``: what ``python -m experiments sweep`` does: all side by side, compiled once;
* ``a scan each``: the hyperparameters are constants, so each configuration compiles a scan of its own;
* ``a loop each``: a jitted step, compiled for each configuration, in a Python loop.

The throughput is steps of training (of one configuration) per second, over a part of the run that is the same for all
three; it is given with and without compilation, for the planned length. The two that compile each configuration anew
are timed on a few of them, and said so.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from benchmarks import machine, tables

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax")
SPEC = """
dataset = "{dataset}"
one_program = true
[hyperparameters]
learning_rate = {{ min = 0.05, max = 1.0, count = {count}, log = true }}
noise_multiplier = [0.55, 1.1]
l2_clip_norm = [0.5, 1.0]
batch_size = {batch_size}
epochs = {epochs}
seeds = [0]
"""
ONE, SCAN, LOOP = "one program", "a scan each", "a loop each"
TARGETS = {"cpu": {SCAN: 2.0, LOOP: 5.0}, "gpu": {SCAN: 10.0, LOOP: 30.0}}


class Settings(NamedTuple):
    """Of a run. ``alone``: how many of the configurations the other two ways are timed on."""

    dataset: str = "adult"
    configurations: int = 32
    steps: int = 200
    repetitions: int = 3
    alone: int = 3
    threads: int = 2
    batch_size: int = 256
    epochs: int = 18


def run(settings: Settings) -> dict[str, Any]:
    """The whole benchmark. JAX is imported after the cores are chosen."""
    load_before = machine.load_average()
    trials, dataset = _trials(settings)
    ways = {ONE: _together, SCAN: _scan, LOOP: _loop}
    begun = time.perf_counter()
    measured = {name: way(trials, dataset, settings) for name, way in ways.items()}
    steps = trials[0].plan.max_steps
    for at in measured.values():
        at["steps_per_second"] = statistics.median(at["configuration_steps"] / s for s in at["run_seconds"])
        at["with_compilation"] = len(trials) * steps / (
            at["compile_seconds"] * at["programs"] + len(trials) * steps / at["steps_per_second"]
        )  # fmt: skip
    targets = TARGETS["cpu" if _platform() == "cpu" else "gpu"]
    return {
        "what": "training steps of one configuration per second, three ways to train the same configurations",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "planned_steps": steps,
        "load_average_before": load_before,
        "load_average_after": machine.load_average(),
        "total_seconds": time.perf_counter() - begun,
        "ways": measured,
        "targets": {name: _verdict(measured, name, target) for name, target in targets.items()},
    }


def _verdict(measured: dict[str, Any], name: str, target: float) -> dict[str, Any]:
    """How many times as fast one program is, once compiled; the target is judged by that."""
    ratio = measured[ONE]["steps_per_second"] / measured[name]["steps_per_second"]
    whole = measured[ONE]["with_compilation"] / measured[name]["with_compilation"]
    return {"target": target, "measured": ratio, "met": ratio >= target, "measured_with_compilation": whole}


def _platform() -> str:
    import jax

    return jax.default_backend()


def _trials(settings: Settings) -> tuple[list[Any], Any]:
    from experiments import datasets
    from experiments.sweeps import list_trials, parse_spec, plan_trials

    options = settings._asdict() | {"count": settings.configurations // 4}
    spec = parse_spec(pathlib.Path("benchmark.toml"), SPEC.format_map(options))
    dataset = datasets.load(settings.dataset)
    trials = plan_trials(spec, list_trials(spec), dataset.num_examples)
    assert len(trials) == settings.configurations
    return trials, dataset


def _measure(compiling: Callable[[], Callable[[], Any]], settings: Settings) -> tuple[float, list[float]]:
    """Seconds to compile, and of each repetition; nothing is asynchronous when a clock is read."""
    import jax

    begun = time.perf_counter()
    call = compiling()
    compile_seconds = time.perf_counter() - begun
    jax.block_until_ready(call())
    seconds = []
    for _ in range(settings.repetitions):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begun)
    return compile_seconds, seconds


def _together(trials: list[Any], dataset: Any, settings: Settings) -> dict[str, Any]:
    """All configurations through the sweep's own program."""
    import jax

    from experiments.sweeps import arguments_of, compile_shape, keys_of

    program, data = compile_shape(trials, dataset, width=len(trials), memory_bytes=10**11)
    hyper, keys = arguments_of(trials, [keys_of(trial, jax.random.key(0)) for trial in trials], program.width)
    state = program.start(hyper, keys)
    calls = max(1, settings.steps // program.steps_per_call)

    def call() -> Any:
        after = state
        for _ in range(calls):
            after = program.advance(hyper, after, data)
        return after

    _, seconds = _measure(lambda: call, settings)
    steps = calls * program.steps_per_call * len(trials)
    more = {"temp_bytes": program.memory_bytes, "width": program.width}
    return _result(program.compile_seconds, seconds, steps, program.num_compiled) | more


def _result(compile_seconds: float, seconds: list[float], steps: int, programs: int) -> dict[str, Any]:
    return {
        "compile_seconds": compile_seconds,
        "run_seconds": seconds,
        "configuration_steps": steps,
        "programs": programs,
    }


def _scan(trials: list[Any], dataset: Any, settings: Settings) -> dict[str, Any]:
    """A configuration's steps as one compiled scan."""

    def compiling(training: Any, state: Any, data: Any) -> Callable[[], Any]:
        compiled = training.run_steps.lower(state, data, settings.steps).compile()
        return lambda: compiled(state, data)[0]

    return _alone(trials, dataset, settings, compiling)


def _loop(trials: list[Any], dataset: Any, settings: Settings) -> dict[str, Any]:
    """A configuration's jitted step in a Python loop. The first step is counted as compilation."""

    def compiling(training: Any, state: Any, data: Any) -> Callable[[], Any]:
        training.step(state, data)[0].status.block_until_ready()

        def call() -> Any:
            after = state
            for _ in range(settings.steps):
                after, _ = training.step(after, data)  # quicker to call than what is compiled ahead of time
            return after

        return call

    return _alone(trials, dataset, settings, compiling)


def _alone(trials: list[Any], dataset: Any, settings: Settings, compiling: Callable[..., Any]) -> dict[str, Any]:
    """The first few configurations one after another, each compiled by itself; medians over them."""
    import jax

    from experiments.engine import build_engine

    compile_seconds, seconds = [], []
    for trial in trials[: settings.alone]:
        engine = build_engine(trial.config, dataset, trial.plan, jax.random.key(trial.number))
        data = engine.training.place(dataset.train_inputs, dataset.train_labels)
        state = engine.training.init(engine.params, jax.random.key(100 + trial.number))
        once, each = _measure(lambda t=engine.training, s=state, d=data: compiling(t, s, d), settings)
        compile_seconds.append(once)
        seconds += each
    return _result(statistics.median(compile_seconds), seconds, settings.steps, len(trials))


def markdown(result: dict[str, Any]) -> str:
    """The tables that go beside the JSON."""
    columns = ("way", "steps/s", "steps/s with compilation", "compilations", "seconds each")
    rows = [
        (name, at["steps_per_second"], at["with_compilation"], at["programs"], at["compile_seconds"])
        for name, at in result["ways"].items()
    ]
    verdicts = [
        (f"{ONE} / {name}", at["target"], at["measured"], "yes" if at["met"] else "no", at["measured_with_compilation"])
        for name, at in result["targets"].items()
    ]
    head = ("ratio", "target", "measured", "met", "with compilation")
    about = result["machine"]
    return "\n\n".join(
        [
            "# Sweeps of trainings",
            f"`{result['command']}`",
            f"{result['settings']['configurations']} configurations of {result['settings']['dataset']}, "
            f"{result['planned_steps']} steps of {result['settings']['batch_size']} expected each; {about['device']}, "
            f"{about['cpu_cores_used']} cores of {about['cpu']}; load average {result['load_average_before']} before.",
            tables.table(columns, rows),
            tables.table(head, verdicts),
        ]
    ) + "\n"  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON and the tables beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; tables go beside it")
    defaults = Settings()
    for name, default in defaults._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    machine.use_cores(options["threads"])
    command = shlex.join(["python", "-m", "benchmarks.test_sweeps", *(arguments or sys.argv[1:])])
    result = run(Settings(**options)) | {"command": command}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    output.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table():
    settings = Settings("digits", configurations=4, steps=4, repetitions=1, alone=1, batch_size=32, epochs=1)
    result = json.loads(json.dumps(run(settings), allow_nan=False)) | {"command": "pytest"}
    assert set(result["ways"]) == {ONE, SCAN, LOOP}
    for at in result["ways"].values():
        assert at["steps_per_second"] > at["with_compilation"] > 0
    assert result["ways"][ONE]["programs"] == 1
    assert set(result["targets"]) == {SCAN, LOOP}
    assert all(name in markdown(result) for name in (ONE, SCAN, LOOP))


if __name__ == "__main__":
    main()
