"""A sweep of trainings in one vmapped program, beside one compiled scan for each configuration and a loop of steps.

    GDPJAX_DATA=/path/to/data python -m benchmarks.bench_sweeps --output benchmarks/results/sweeps_cpu.json

Three ways to train the same configurations of Adult (a9a; learning rate, clip norm, noise multiplier and keys differ),
each with the same model, plan and step:

* ``one program``: what ``python -m experiments sweep`` does: compiled once, many side by side in each thread;
* ``a scan each``: the hyperparameters are constants, so each configuration compiles a scan of its own;
* ``a loop each``: a jitted step, compiled for each configuration, in a Python loop.

The throughput is steps of training (of one configuration) per second, over a part of the run that is the same for all
three; it is given with and without compilation, for the planned length. The three take turns, so that a disturbance of
the machine falls on all; processor time is kept beside the clock's. The two that compile each configuration anew are
timed on a few of them, and said so.

Beside that, how long a file of a thousand trials takes to open (`benchmarks.sweep_report`).
"""

import concurrent.futures
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import figures, harness, sweep_report
from benchmarks.tables import document, named, setting, table, table_of

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
    report_trials: int = 1000


class Way(NamedTuple):
    """A way to train, compiled.

    Args:
        call: takes ``configuration_steps`` steps.
        configuration_steps: steps of one configuration, added up over those that a call trains.
        compile_seconds: of one program.
        compilations: for all configurations.
        programs: how many are compiled for all of them.
        facts: what else is written down.
    """

    call: Callable[[], Any]
    configuration_steps: int
    compile_seconds: float
    compilations: int
    programs: int
    facts: dict[str, Any]


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once."""
    from benchmarks import turns

    report = sweep_report.measure(settings.report_trials)

    # Everybody compiles and runs once before the clock starts.
    trials, work = _trials(settings)
    ways = {
        ONE: _together(trials, work, settings),
        SCAN: _alone(trials, work, settings, _scan),
        LOOP: _alone(trials, work, settings, _loop),
    }
    for way in ways.values():
        way.call()
    calls = {name: way.call for name, way in ways.items()}
    times = turns.in_turn(calls, settings.repetitions)
    steps = trials[0].plan.num_steps
    planned = len(trials) * steps
    yield {
        "planned_steps": steps,
        "ways": {name: _measured(way, times[name], planned) for name, way in ways.items()},
        "report": report,
    }


def targets(result: dict[str, Any]) -> dict[str, Any]:
    """Return how many times as fast one program is, once compiled; a target is judged by that, turn by turn."""
    from benchmarks import turns

    one, *others = named(result["ways"])
    found = {}
    for other in others:
        of_calls = turns.ratios(other["seconds"], one["seconds"])
        steps = one["configuration_steps"] / other["configuration_steps"]
        found[f"{ONE} / {other['name']}"] = harness.at_least(
            TARGETS[other["name"]],
            statistics.median(ratio * steps for ratio in of_calls),
            by_processor_time=one["steps_per_second"]["per_cpu_second"] / other["steps_per_second"]["per_cpu_second"],
            with_compilation=one["with_compilation"] / other["with_compilation"],
        )
    return found


def _measured(way: Way, times: list[Any], planned: int) -> dict[str, Any]:
    """Return a way's rates, once compiled and with the compilation of ``planned`` steps."""
    from benchmarks import clocks

    rates = clocks.rates(way.configuration_steps, times)

    # The rate of a whole sweep, whose programs are compiled first.
    compiling = way.compile_seconds * way.programs
    training = planned / rates["median"]
    return {
        "configuration_steps": way.configuration_steps,
        "compile_seconds": way.compile_seconds,
        "compilations": way.compilations,
        "programs": way.programs,
        "steps_per_second": rates,
        "seconds": [each.wall for each in times],
        "cpu_seconds": [each.cpu for each in times],
        "with_compilation": planned / (compiling + training),
        **way.facts,
    }


def _trials(settings: Settings) -> tuple[list[Any], "Work"]:
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
    return trials, Work(spec.task, examples)


class Work(NamedTuple):
    """A task and its data in memory."""

    task: Any
    examples: Any


def _compiling(call: Callable[[], Any]) -> tuple[Any, float, int]:
    """Return what a call returns, its seconds, and how often it compiled."""
    from benchmarks import clocks

    before, watch = clocks.compilations(), clocks.Stopwatch()
    value = call()
    return value, watch.read().wall, clocks.compilations() - before


def _together(trials: list[Any], work: "Work", settings: Settings) -> Way:
    """Return all configurations trained by the sweep's own program, in its threads."""
    import jax

    from gdpjax.sweeps import Blueprint, arguments_of, make_program, num_slots

    # One program for as many configurations as go through one thread.
    slots = min(num_slots(), len(trials))
    width = len(trials) // slots
    first_trial = trials[0]
    blueprint = Blueprint(work.task, work.examples, first_trial.plan, first_trial.settings)
    data = blueprint.training(first_trial.settings).place(*work.examples.train)
    program, seconds, compilations = _compiling(
        lambda: make_program(blueprint, data, width=width, memory_bytes=10**11, slots=slots)
    )

    # The hyperparameters and the first states of each thread's configurations.
    starts = []
    for first in range(0, len(trials), width):
        chunk = trials[first : first + width]
        chunk_keys = [trial.keys(jax.random.key(0)) for trial in chunk]
        chunk_settings = [trial.settings for trial in chunk]
        hyper, keys = arguments_of(chunk_settings, chunk_keys, blueprint.real, program.width)
        starts.append((hyper, program.start(hyper, keys)))

    num_calls = max(1, settings.steps // program.steps_per_call)
    pool = concurrent.futures.ThreadPoolExecutor(slots)

    def advance(start: Any) -> Any:
        hyper, state = start
        for _ in range(num_calls):
            state = program.advance(hyper, state, data)
        return jax.block_until_ready(state)

    def call() -> list[Any]:
        return list(pool.map(advance, starts))

    return Way(
        call,
        configuration_steps=num_calls * program.steps_per_call * len(trials),
        compile_seconds=seconds,
        compilations=compilations,
        programs=1,
        facts={
            "memory_bytes": program.memory_bytes,
            "width": program.width,
            "threads": slots,
        },
    )


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


def _alone(trials: list[Any], work: "Work", settings: Settings, compiled: Callable[..., Any]) -> Way:
    """Return the first few configurations one after another, each compiled by itself."""
    import jax

    from gdpjax.sweeps import Blueprint

    made = []
    for trial in trials[: settings.alone]:
        blueprint = Blueprint(work.task, work.examples, trial.plan, trial.settings)
        training = blueprint.training(trial.settings)
        data = training.place(*work.examples.train)
        params = blueprint.model(trial.settings).init(jax.random.key(trial.number))
        state = training.init(params, jax.random.key(100 + trial.number))
        made.append(_compiling(lambda each=(training, state, data): compiled(*each, settings.steps)))
    calls, seconds, counts = zip(*made, strict=True)

    def call() -> list[Any]:
        return [call_one() for call_one in calls]

    # All configurations would compile as often as these do.
    compilations_of_one = round(statistics.median(counts))
    return Way(
        call,
        configuration_steps=settings.steps * len(calls),
        compile_seconds=statistics.median(seconds),
        compilations=compilations_of_one * len(trials),
        programs=len(trials),
        facts={"configurations_timed": len(calls)},
    )


SPEEDS = """
way | name
steps/s | steps_per_second.median
least | steps_per_second.min
most | steps_per_second.max
steps per processor second | steps_per_second.per_cpu_second
programs | programs
compilations | compilations
seconds for each program | compile_seconds
steps/s with compilation | with_compilation
"""
RATIOS = """
ratio | name
wanted | target
measured | measured
met | met | met
by processor time | by_processor_time
with compilation | with_compilation
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the tables that go beside the JSON."""
    settings, report = result["settings"], result["report"]
    together = result["ways"][ONE]
    what = (
        f"{settings['configurations']} configurations of {settings['dataset']}, {result['planned_steps']} steps of "
        f"{settings['batch_size']} expected each; {together['width']} side by side in each of {together['threads']} "
        "thread(s)."
    )
    opened = f"{report['trials']} made-up trials, a page of {report['page_bytes'] / 1e6:.2f} MB."
    seconds = [(name.replace("_", " "), of_part) for name, of_part in report["seconds"].items()]
    sections = [
        ("Speed", table_of(SPEEDS, named(result["ways"]))),
        ("Targets", table_of(RATIOS, named(result["targets"]))),
        ("Opening results", f"{opened}\n\n{table(('what', 'seconds'), seconds)}"),
    ]
    return document("Sweeps of trainings", [setting(result), what], sections)


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draw the steps per second of the three ways, compiled and with compilation."""
    once_compiled = {name: way["steps_per_second"]["median"] for name, way in result["ways"].items()}
    with_compilation = {name: way["with_compilation"] for name, way in result["ways"].items()}
    with figures.picture(path, size=(4.8, 2.2)) as (_, axes):
        figures.bars(axes, once_compiled, -0.2, 0.38, color=figures.OURS[0], label="once compiled")
        figures.bars(axes, with_compilation, 0.2, 0.38, color=figures.PEERS[2], label="with compilation")
        axes.set(xlabel="training steps of one configuration per second")
        axes.legend(loc="lower right")


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_sweeps",
    what="training steps of one configuration per second, three ways to train the same configurations",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax"),
    settings=Settings,
    measure=measure,
    report="benchmarks.bench_sweeps",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
