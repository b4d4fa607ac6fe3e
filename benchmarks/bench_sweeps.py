"""Training many configurations in one compiled program, beside one scan for each configuration and a loop of steps.

    GDPJAX_DATA=/path/to/data python -m benchmarks.bench_sweeps --output benchmarks/results/sweeps_cpu.json

Three ways to train the same configurations of Adult (a9a; learning rate, clip norm, noise multiplier and keys differ),
each with the same model, plan and step:

* ``one program``: what ``python -m experiments sweep`` does: compiled once, many side by side in each thread;
* ``a scan each``: the hyperparameters are constants, so each configuration compiles a scan of its own;
* ``a loop each``: a jitted step, compiled for each configuration, in a Python loop.

The throughput is steps of training (of one configuration) per second, over a part of the run that is the same for all
three; it is given with and without compilation, for the planned length. The two that compile each configuration anew
are timed on a few of them.
"""

import concurrent.futures
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import harness
from experiments.tables import document, named, setting, table_of, targets_table

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
TARGETS = {SCAN: 2.0, LOOP: 5.0}


class Settings(NamedTuple):
    """Settings of a run: of ``configurations``, a multiple of 4 from 8 on, the other ways are timed on ``alone``."""

    dataset: str = "adult"
    configurations: int = 32
    steps: int = 200
    repetitions: int = 7
    alone: int = 3
    threads: int = 2
    batch_size: int = 256
    epochs: int = 18


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once."""
    from benchmarks import turns
    from experiments.sweeps.named_task import FIELDS, named_task
    from gdpjax.sweeps import list_trials, load_examples, plan_trials, read_spec

    options = settings._asdict() | {"count": settings.configurations // 4}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "benchmark.toml"
        path.write_text(SPEC.format_map(options))
        spec = read_spec(path, FIELDS, named_task)
    examples = load_examples(spec.task.load)
    trials = plan_trials(spec, list_trials(spec), examples.num_examples)
    assert len(trials) == settings.configurations

    work = (spec.task, examples)
    entries = [
        _together(trials, work, settings.steps),
        _alone(SCAN, trials, work, settings, _scan),
        _alone(LOOP, trials, work, settings, _loop),
    ]
    turns.take_turns(entries, settings.repetitions)
    num_steps = trials[0].plan.num_steps
    planned = len(trials) * num_steps
    ways = {}
    for entry in entries:
        # A whole sweep compiles its programs first.
        compiling = entry.facts["compile_seconds"] * entry.facts["programs"]
        ways[entry.name] = {
            "steps_per_second": turns.spread([1 / seconds for seconds in entry.seconds]),
            "with_compilation": planned / (compiling + planned * entry.median),
            **entry.result(),
        }
    yield {"planned_steps": num_steps, "ways": ways}


def targets(result: dict[str, Any]) -> dict[str, Any]:
    """Return how many times as fast one program is, once compiled; a target is judged by that, turn by turn."""
    from benchmarks import turns

    one, *others = named(result["ways"])
    found = {}
    for other in others:
        by_round = turns.ratios(other["seconds"]["all"], one["seconds"]["all"])
        aim = TARGETS[other["name"]]
        found[f"{ONE} / {other['name']}"] = harness.at_least(aim, statistics.median(by_round))
    return found


def _entry(name: str, call: Callable[[], Any], num_steps: int, facts: dict[str, Any]) -> Any:
    """Return what takes turns, after a first call."""
    from benchmarks import clocks, turns

    call()
    return turns.Entry(name, None, call, facts, clocks.time_call(call).wall, num_steps)


def _together(trials: list[Any], work: tuple[Any, Any], steps: int) -> Any:
    """Return all configurations trained by the sweep's own program, in its threads."""
    import jax

    from benchmarks import clocks
    from gdpjax.sweeps import Blueprint, arguments_of, make_program, num_slots

    # One program for as many configurations as go through one thread.
    slots = min(num_slots(), len(trials))
    width = len(trials) // slots
    first_trial = trials[0]
    blueprint = Blueprint(*work, first_trial.plan, first_trial.settings)
    data = blueprint.training(first_trial.settings).place(*blueprint.examples.train)
    watch = clocks.Stopwatch()
    program = make_program(blueprint, data, width=width, memory_bytes=10**11, slots=slots)
    facts = {"compile_seconds": watch.read().wall, "programs": 1, "width": program.width, "threads": slots}

    # The hyperparameters and the first states of each thread's configurations.
    starts = []
    for first in range(0, len(trials), width):
        chunk = trials[first : first + width]
        keys = [trial.keys(jax.random.key(0)) for trial in chunk]
        hyper, keys = arguments_of([trial.settings for trial in chunk], keys, blueprint.real, program.width)
        starts.append((hyper, program.start(hyper, keys)))

    num_calls = max(1, steps // program.steps_per_call)
    pool = concurrent.futures.ThreadPoolExecutor(slots)

    def advance(start: Any) -> Any:
        hyper, state = start
        for _ in range(num_calls):
            state = program.advance(hyper, state, data)
        return jax.block_until_ready(state)

    num_steps = num_calls * program.steps_per_call * len(trials)
    return _entry(ONE, lambda: list(pool.map(advance, starts)), num_steps, facts)


def _scan(training: Any, state: Any, data: Any, num_steps: int) -> Callable[[], Any]:
    """Return a configuration's steps as one compiled scan."""
    import jax

    program = training.run_steps.lower(state, data, num_steps).compile()
    return lambda: jax.block_until_ready(program(state, data)[0])


def _loop(training: Any, state: Any, data: Any, num_steps: int) -> Callable[[], Any]:
    """Return a configuration's jitted step in a Python loop. The first step is counted as compilation."""
    import jax

    training.step(state, data)[0].status.block_until_ready()

    def call() -> Any:
        # The jitted step is quicker to call than what is compiled ahead of time.
        after = state
        for _ in range(num_steps):
            after, _ = training.step(after, data)
        return jax.block_until_ready(after)

    return call


def _alone(
    name: str,
    trials: list[Any],
    work: tuple[Any, Any],
    settings: Settings,
    compiled: Callable[..., Callable[[], Any]],
) -> Any:
    """Return the first few configurations one after another, each compiled by itself."""
    import jax

    from benchmarks import clocks
    from gdpjax.sweeps import Blueprint

    calls, seconds = [], []
    for trial in trials[: settings.alone]:
        blueprint = Blueprint(*work, trial.plan, trial.settings)
        training = blueprint.training(trial.settings)
        data = training.place(*blueprint.examples.train)
        params = blueprint.model(trial.settings).init(jax.random.key(trial.number))
        state = training.init(params, jax.random.key(100 + trial.number))
        watch = clocks.Stopwatch()
        calls.append(compiled(training, state, data, settings.steps))
        seconds.append(watch.read().wall)

    facts = {"compile_seconds": statistics.median(seconds), "programs": len(trials), "timed": len(calls)}
    return _entry(name, lambda: [call() for call in calls], settings.steps * len(calls), facts)


SPEEDS = """
way | name
steps/s | steps_per_second.median
quartiles | steps_per_second | {q1:,.0f} to {q3:,.0f}
programs | programs
seconds for each program | compile_seconds
steps/s with compilation | with_compilation
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the tables that go beside the JSON."""
    settings, together = result["settings"], result["ways"][ONE]
    what = (
        f"{settings['configurations']} configurations of {settings['dataset']}, {result['planned_steps']} steps of "
        f"{settings['batch_size']} expected each; {together['width']} side by side in each of {together['threads']} "
        "thread(s)."
    )
    sections = [("Speed", table_of(SPEEDS, named(result["ways"]))), ("Targets", targets_table(result))]
    return document("Sweeps of trainings", [setting(result), what], sections)


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_sweeps",
    what="training steps of one configuration per second, three ways to train the same configurations",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax"),
    settings=Settings(),
    measure=measure,
    report="benchmarks.bench_sweeps",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
