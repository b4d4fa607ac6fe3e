"""The private training loop: what its bookkeeping and its noise cost, and steps per second beside other libraries.

    python -m benchmarks.test_training --output benchmarks/results/training_cpu.json

writes the JSON, and tables and a picture beside it. ``--cases`` and ``--contenders`` choose some of them; ``--merge``
keeps the other cases that the output already has, so that a long run can be made in parts. The peers are the
``benchmarks-clipping`` extra; a missing one is reported. As a test (``pytest benchmarks``) a tiny run checks that the
result is complete and that everybody trains; never a time.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from benchmarks import machine, writing

if TYPE_CHECKING:
    from benchmarks.training.cases import Case

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "dp-accounting", "torch", "opacus")


class Settings(NamedTuple):
    """Of a run. No names: all of the preset's cases, all contenders."""

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()


def run(settings: Settings, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """The whole benchmark; ``save`` gets what there is after each case. JAX is imported after the cores are chosen."""
    from benchmarks.training import cases, parts, race, trainers

    start, load_before = time.perf_counter(), machine.load_average()
    chosen_cases = writing.chosen(settings.cases, {case.name: case for case in cases.PRESETS[settings.preset]}, "case")
    chosen = writing.chosen(settings.contenders, {each.name: each for each in trainers.CONTENDERS}, "contender")
    missing = race.missing(chosen)
    present = [each for each in chosen if each.name not in missing]
    if any(each.modules == trainers.TORCH for each in present):
        from benchmarks.clipping import torch_steps

        torch_steps.set_up(settings.threads)
    size = cases.NUM_COORDINATES[settings.preset]
    result: dict[str, Any] = {
        "what": "private training: its bookkeeping, its noise, and steps per second beside other libraries",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "missing": missing,
        "load_average_before": load_before,
        "noise": {"num_coordinates": size, "contenders": parts.measure_noise(size, settings.repetitions)},
        "cases": {},
    }
    for case in chosen_cases:
        result["cases"][case.name] = _measure(case, present, settings.repetitions)
        result["targets"] = race.targets(cases.PRESETS[settings.preset], result)
        result["load_average_after"] = machine.load_average()
        result["total_seconds"] = time.perf_counter() - start
        save(result)
    return result


def _measure(case: "Case", present: Sequence[Any], repetitions: int) -> dict[str, Any]:
    """One case's parts and race, and what it was."""
    import jax

    from benchmarks.training import parts, race

    plan = case.plan()
    measured = parts.measure(case, repetitions) if case.parts else {}
    raced = race.run(case, present, repetitions)
    rates = (f"{name} {at['steps_per_second']['median']:.3g}" for name, at in raced.items() if "seconds" in at)
    print(f"{case.name}: steps/s {', '.join(rates)}", file=sys.stderr, flush=True)
    return {
        "title": case.title,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(case.params())),
        "plan": {
            "noise_multiplier": plan.noise_multiplier,
            "clip_norm": case.clip_norm,
            "max_steps": plan.max_steps,
            "expected_batch_size": case.expected_batch_size,
            "capacity": plan.capacity,
            "delta": plan.delta,
            "max_examples": plan.max_examples,
            "learning_rate": case.learning_rate,
        },
        "steps_per_turn": case.steps_per_turn,
        "first_loss": race.first_loss(case),
        "parts": measured,
        "trainers": raced,
    }


def merge(previous: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return ``result`` with the cases that only ``previous`` has; ValueError if they do not belong together."""
    from benchmarks.training import cases, race

    preset = cases.PRESETS[result["settings"]["preset"]]
    merged = writing.merge(previous, result, "cases", [case.name for case in preset])
    return merged | {"targets": race.targets(preset, merged)}


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON, and the tables and a picture beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="the JSON to write; tables and a picture go beside it"
    )
    defaults = Settings()
    parser.add_argument("--preset", default=defaults.preset, help="cpu or cpu-tiny")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="cores and threads, of JAX and torch")
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--cases", nargs="*", default=(), help="names of the preset's cases; all without")
    parser.add_argument("--contenders", nargs="*", default=(), help="names as in the tables; all without")
    parser.add_argument(
        "--merge", action="store_true", help="keep the cases that an earlier part of the run wrote to the output"
    )
    options = vars(parser.parse_args(arguments))
    output, merging = options.pop("output"), options.pop("merge")
    machine.use_cores(options["threads"])
    kept = machine.keep_memory()
    from benchmarks.training import figure, report

    made_by = {"command": writing.command("benchmarks.test_training", arguments), "memory_kept": kept}
    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: dict[str, Any]) -> dict[str, Any]:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(previous, result)

    result = run(Settings(**options), lambda result: writing.write_json(complete(result), output))
    writing.write(complete(result), output, report.markdown, figure.draw)


# What needs no package of the extra: torch and jax_privacy stay out of a suite in which warnings are errors.
WITHOUT_PEERS = ("gdpjax run_steps", "gdpjax step")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings("cpu-tiny", repetitions=2, cases=("digits_mlp",), contenders=WITHOUT_PEERS))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    from benchmarks.training import report

    again = json.loads(json.dumps(result, allow_nan=False))
    assert again["targets"].keys() == {
        "noise of 20,000 coordinates / jax.random.normal",
        "digits_mlp: steps/s of run_steps / of a loop of step",
    }
    at = again["cases"]["digits_mlp"]
    assert all(
        {"seconds", "over", "temp_bytes", "flops", "compile_seconds"} <= set(part) for part in at["parts"].values()
    )
    assert tuple(at["trainers"]) == WITHOUT_PEERS
    assert all({"steps_per_second", "epsilon", "loss"} <= set(trainer) for trainer in at["trainers"].values())
    tables = report.markdown(result | {"command": "pytest", "memory_kept": False})
    assert all(name in tables for name in (*WITHOUT_PEERS, *at["parts"], *again["noise"]["contenders"], at["title"]))


@pytest.mark.slow
def test_a_loop_of_steps_and_a_scan_train_alike(result):
    at = result["cases"]["digits_mlp"]
    losses = [trainer["loss"] for trainer in at["trainers"].values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != at["first_loss"]


def test_every_case_s_plan_is_for_its_turns_and_has_a_model_of_its_images():
    import jax

    from benchmarks.training import cases

    for case in (case for preset in cases.PRESETS.values() for case in preset):
        assert case.steps_per_turn <= case.plan().max_steps, case.name
        small = case._replace(num_examples=2)
        x, y = small.data()
        assert jax.eval_shape(case.model.loss, case.params(), x[0], y[0]).shape == (), case.name
    sizes = [leaf.size for leaf in jax.tree.leaves(cases.CPU[0].params())]
    assert sum(sizes) == 26_010


def test_parts_of_a_run_are_merged_in_the_preset_s_order():
    first, second = _made_up(), _made_up()
    for result in (first, second):
        result["settings"]["preset"] = "cpu"
    second["cases"] = {"mnist_cnn_64": second["cases"]["mnist_cnn"]}
    assert list(merge(second, first)["cases"]) == ["mnist_cnn", "mnist_cnn_64"]
    second["settings"]["threads"] = 2
    with pytest.raises(ValueError, match="threads 2, this one with 1"):
        merge(second, first)


def _made_up() -> dict[str, Any]:
    """A result with the numbers that the tables and the picture are made of."""
    from benchmarks.training import parts

    def took(ratio: float) -> dict[str, Any]:
        spread = {"median": 0.05 * ratio, "q1": 0.05, "q3": 0.06}
        over = {"time": ratio, "processor": ratio, "by_round": {"q1": ratio, "q3": ratio}}
        return {"seconds": spread, "over": over, "compile_seconds": 1.0, "temp_bytes": None, "flops": 1e6}

    def trained(epsilon: dict[str, Any]) -> dict[str, Any]:
        rest = {"microbatch_size": None, "sampling_prob": 0.004, "loss": 2.0, "ready_seconds": 1.0, "refused": {}}
        return took(1.0) | rest | {"epsilon": epsilon, "steps_per_second": {"median": 20.0, "q1": 19.0, "q3": 21.0}}

    noise = {parts.JAX_NORMAL: took(1.0), parts.NOISE: took(1.6)}
    plan = {"noise_multiplier": 1.3, "clip_norm": 1.5, "max_steps": 3516, "delta": 1e-5, "capacity": 400}
    trainers = {
        "gdpjax run_steps": trained({"epsilon": 0.9, "lower": 0.8, "by": "certified bracket"}),
        "gdpjax step": trained({"epsilon": 0.9, "lower": 0.8, "by": "certified bracket"}),
        "jax_privacy": trained({"epsilon": None, "by": "TimeoutError: more than 900 s"}),
        "Opacus ghost": {"refused": {"None": "NotImplementedError: no"}},
    }
    return {
        "machine": {"cpu": "some", "cpu_cores_used": 1, "device": "cpu", "versions": {"jax": "1"}},
        "settings": {"threads": 1, "repetitions": 3},
        "missing": {"Opacus hooks": "ImportError: no"},
        "load_average_before": 1.0,
        "load_average_after": 1.0,
        "total_seconds": 10.0,
        "command": "pytest",
        "memory_kept": True,
        "noise": {"num_coordinates": 10, "contenders": noise},
        "cases": {
            "mnist_cnn": {
                "title": "CNN",
                "num_parameters": 26_010,
                "plan": plan,
                "steps_per_turn": 20,
                "first_loss": 2.3,
                "parts": {parts.CLIPPED: took(1.0), parts.PRIVATE: took(1.04)},
                "trainers": trainers,
            }
        },
    }


def test_a_missed_target_and_a_missing_contender_are_reported(tmp_path, capsys):
    from benchmarks.training import cases, figure, race, report

    result = _made_up()
    result["targets"] = race.targets(cases.CPU, result)
    assert [at["met"] for at in result["targets"].values()] == [False, True, True, True]
    writing.write(result, tmp_path / "made_up.json", report.markdown, figure.draw)
    tables = (tmp_path / "made_up.md").read_text()
    assert tables.strip() == capsys.readouterr().out.strip()
    assert all(
        text in tables for text in ("MISSED", "+4.0%", "[0.8000, 0.9000]", "TimeoutError", "NotImplementedError")
    )
    assert "Opacus hooks: ImportError: no" in tables
    assert (tmp_path / "made_up.png").stat().st_size > 10_000


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown case 'none'"):
        run(Settings("cpu-tiny", cases=("none",)))


if __name__ == "__main__":
    main()
