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

import argparse
import concurrent.futures
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import machine, sweep_report, writing
from benchmarks.tables import table

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
    """Settings of a run. ``alone``: how many of the configurations the other two ways are timed on."""

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


def run(settings: Settings) -> dict[str, Any]:
    """Run the whole benchmark. JAX is imported after the cores are chosen."""
    from benchmarks import clocks

    load_before = machine.load_average()
    begun = time.perf_counter()
    report = sweep_report.measure(settings.report_trials)

    # Everybody compiles and runs once before the clock starts.
    trials, work = _trials(settings)
    ways = {
        ONE: _together(trials, work, settings),
        SCAN: _scan(trials, work, settings),
        LOOP: _loop(trials, work, settings),
    }
    for way in ways.values():
        way.call()
    calls = {name: way.call for name, way in ways.items()}
    times = clocks.in_turn(calls, settings.repetitions)

    # What was measured, and what was aimed at.
    steps = trials[0].plan.num_steps
    planned = len(trials) * steps
    measured = {name: _measured(way, times[name], planned) for name, way in ways.items()}
    targets = {}
    for name, target in TARGETS["cpu" if _platform() == "cpu" else "gpu"].items():
        targets[f"{ONE} / {name}"] = _verdict(measured, name, target)
    return {
        "what": "training steps of one configuration per second, three ways to train the same configurations",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "planned_steps": steps,
        "load_average_before": load_before,
        "load_average_after": machine.load_average(),
        "total_seconds": time.perf_counter() - begun,
        "ways": measured,
        "targets": targets,
        "report": report,
    }


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


def _verdict(measured: dict[str, Any], name: str, target: float) -> dict[str, Any]:
    """Return how many times as fast one program is, once compiled; the target is judged by that, turn by turn."""
    one = measured[ONE]
    other = measured[name]
    ratios = []
    for our_seconds, their_seconds in zip(one["seconds"], other["seconds"], strict=True):
        seconds_a_step = our_seconds / one["configuration_steps"]
        their_seconds_a_step = their_seconds / other["configuration_steps"]
        ratios.append(their_seconds_a_step / seconds_a_step)
    ratio = statistics.median(ratios)

    by_processor_time = one["steps_per_second"]["per_cpu_second"] / other["steps_per_second"]["per_cpu_second"]
    return {
        "target": target,
        "at_least": True,
        "measured": ratio,
        "met": ratio >= target,
        "by_processor_time": by_processor_time,
        "with_compilation": one["with_compilation"] / other["with_compilation"],
    }


def _platform() -> str:
    import jax

    return jax.default_backend()


def _trials(settings: Settings) -> tuple[list[Any], "Work"]:
    from experiments.sweeps.named_task import NamedTask
    from gdpjax.sweeps import parse_spec
    from gdpjax.sweeps.parts import list_trials, load_examples, plan_trials

    if settings.configurations < 8 or settings.configurations % 4:
        raise ValueError(f"configurations must be a multiple of 4, at least 8, got {settings.configurations}")
    options = settings._asdict() | {"count": settings.configurations // 4}
    spec = parse_spec(pathlib.Path("benchmark.toml"), SPEC.format_map(options), NamedTask())
    examples = load_examples(spec.task)
    trials = plan_trials(spec, list_trials(spec), examples.num_examples)
    assert len(trials) == settings.configurations
    return trials, Work(spec.task, examples)


class Work(NamedTuple):
    """A task and its data in memory."""

    task: Any
    examples: Any


class _Compiling:
    """Seconds and compilations of what runs inside."""

    def __enter__(self) -> "_Compiling":
        from benchmarks import clocks

        self._before = clocks.compilations()
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        from benchmarks import clocks

        self.seconds = time.perf_counter() - self._begun
        self.count = clocks.compilations() - self._before


def _together(trials: list[Any], work: "Work", settings: Settings) -> Way:
    """Return all configurations trained by the sweep's own program, in its threads."""
    import jax

    from gdpjax.sweeps.parts import Blueprint, arguments_of, compile_shape, keys_of, num_slots

    # One program for as many configurations as go through one thread.
    slots = min(num_slots(), len(trials))
    width = len(trials) // slots
    first_trial = trials[0]
    blueprint = Blueprint(work.task, work.examples, first_trial.plan, first_trial.settings)
    with _Compiling() as compiling:
        program, data = compile_shape(blueprint, first_trial.settings, width, memory_bytes=10**11, slots=slots)

    # The hyperparameters and the first states of each thread's configurations.
    starts = []
    for first in range(0, len(trials), width):
        chunk = trials[first : first + width]
        chunk_keys = [keys_of(trial, jax.random.key(0)) for trial in chunk]
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
        compile_seconds=compiling.seconds,
        compilations=compiling.count,
        programs=1,
        facts={
            "memory_bytes": program.memory_bytes,
            "width": program.width,
            "threads": slots,
        },
    )


def _scan(trials: list[Any], work: "Work", settings: Settings) -> Way:
    """Return a configuration's steps as one compiled scan."""
    import jax

    def compiled(training: Any, state: Any, data: Any) -> Callable[[], Any]:
        program = training.run_steps.lower(state, data, settings.steps).compile()
        return lambda: jax.block_until_ready(program(state, data)[0])

    return _alone(trials, work, settings, compiled)


def _loop(trials: list[Any], work: "Work", settings: Settings) -> Way:
    """Return a configuration's jitted step in a Python loop. The first step is counted as compilation."""
    import jax

    def compiled(training: Any, state: Any, data: Any) -> Callable[[], Any]:
        training.step(state, data)[0].status.block_until_ready()

        def call() -> Any:
            # The jitted step is quicker to call than what is compiled ahead of time.
            after = state
            for _ in range(settings.steps):
                after, _ = training.step(after, data)
            return jax.block_until_ready(after)

        return call

    return _alone(trials, work, settings, compiled)


def _alone(trials: list[Any], work: "Work", settings: Settings, compiled: Callable[..., Any]) -> Way:
    """Return the first few configurations one after another, each compiled by itself."""
    import jax

    from gdpjax.sweeps.parts import Blueprint

    calls = []
    seconds = []
    counts = []
    for trial in trials[: settings.alone]:
        blueprint = Blueprint(work.task, work.examples, trial.plan, trial.settings)
        training = blueprint.training(trial.settings)
        data = training.place(*work.examples.train)
        params = blueprint.model(trial.settings).init(jax.random.key(trial.number))
        state = training.init(params, jax.random.key(100 + trial.number))
        with _Compiling() as compiling:
            calls.append(compiled(training, state, data))
        seconds.append(compiling.seconds)
        counts.append(compiling.count)

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


SPEED_COLUMNS = (
    "way",
    "steps/s",
    "least",
    "most",
    "steps per processor second",
    "programs",
    "compilations",
    "seconds for each program",
    "steps/s with compilation",
)
TARGET_COLUMNS = ("ratio", "wanted", "measured", "met", "by processor time", "with compilation")


def markdown(result: dict[str, Any]) -> str:
    """Return the tables that go beside the JSON."""
    settings = result["settings"]
    together = result["ways"][ONE]
    what = (
        f"{settings['configurations']} configurations of {settings['dataset']}, {result['planned_steps']} steps of "
        f"{settings['batch_size']} expected each; {together['width']} side by side in each of {together['threads']} "
        "thread(s)."
    )
    sections = [
        ("Speed", _speed_table(result["ways"])),
        ("Targets", _target_table(result["targets"])),
        ("Opening results", _opening_table(result["report"])),
    ]
    return writing.document("Sweeps of trainings", [writing.setting(result), what], sections)


def _speed_table(ways: dict[str, Any]) -> str:
    rows = []
    for name, way in ways.items():
        rates = way["steps_per_second"]
        speed = (rates["median"], rates["min"], rates["max"], rates["per_cpu_second"])
        compiled = (way["programs"], way["compilations"], way["compile_seconds"], way["with_compilation"])
        rows.append((name, *speed, *compiled))
    return table(SPEED_COLUMNS, rows)


def _target_table(targets: dict[str, Any]) -> str:
    rows = []
    for name, numbers in targets.items():
        met = "met" if numbers["met"] else "MISSED"
        ratios = (numbers["by_processor_time"], numbers["with_compilation"])
        rows.append((name, numbers["target"], numbers["measured"], met, *ratios))
    return table(TARGET_COLUMNS, rows)


def _opening_table(report: dict[str, Any]) -> str:
    about = f"{report['trials']} made-up trials, a page of {report['page_bytes'] / 1e6:.2f} MB."
    rows = [(name.replace("_", " "), seconds) for name, seconds in report["seconds"].items()]
    return f"{about}\n\n{table(('what', 'seconds'), rows)}"


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draw the steps per second of the three ways, compiled and with compilation."""
    # From below: the first way is on top.
    names = list(result["ways"])[::-1]
    ways = [result["ways"][name] for name in names]
    once_compiled = [way["steps_per_second"]["median"] for way in ways]
    with_compilation = [way["with_compilation"] for way in ways]

    with writing.picture(path, size=(4.8, 2.2)) as (_, axes):
        _draw_bars(axes, 0.2, once_compiled, color="#0072B2", label="once compiled")
        _draw_bars(axes, -0.2, with_compilation, color="#D55E00", label="with compilation")
        axes.set_yticks(range(len(names)), names)
        axes.margins(x=0.12)
        axes.set(xlabel="training steps of one configuration per second")
        axes.legend(loc="lower right")


def _draw_bars(axes: Any, offset: float, values: list[float], **style: Any) -> None:
    places = [place + offset for place in range(len(values))]
    bars = axes.barh(places, values, height=0.38, **style)
    axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON, the tables and the picture beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; the rest goes beside it")
    defaults = Settings()
    for name, default in defaults._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    machine.use_cores(options["threads"])
    result = run(Settings(**options)) | {"command": writing.command("benchmarks.bench_sweeps", arguments)}
    writing.write(result, output, markdown, draw)


if __name__ == "__main__":
    main()
