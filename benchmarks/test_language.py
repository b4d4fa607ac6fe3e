"""Private steps of language models, beside the step without privacy on the same rows, and beside jax_privacy.

    python -m benchmarks.test_language --preset tiny --output benchmarks/results/language_tiny.json
    python -m benchmarks.test_language --preset 1B --device-flops 989e12 --output benchmarks/results/language_1B.json

writes the JSON, and tables beside it. ``tiny`` and ``small`` are for a processor; ``124M``, ``355M`` and ``1B`` are for
one GPU, whose dense bfloat16 operations a second are ``--device-flops``. ``--cases`` (full, lora), ``--contenders`` and
``--sizes`` choose some; ``--merge`` keeps the other cases that the output already has, so that a long run can be made
in parts. The peer is jax_privacy (the ``benchmarks-clipping`` extra); a missing one is reported. As a test (``pytest
benchmarks``) the smallest run checks that the result is complete; never a time.
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
    from benchmarks.language.cases import Case

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax", "jax-privacy")


class Settings(NamedTuple):
    """Of a run. No names: all of the preset's cases, all contenders; no sizes: those of each case."""

    preset: str = "tiny"
    threads: int = 1
    repetitions: int = 7
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()
    sizes: Sequence[int] = ()
    device_flops: float | None = None


def run(settings: Settings, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """The whole benchmark; ``save`` gets what there is after each case. JAX is imported after the cores are chosen."""
    from benchmarks.language import cases, race, steps

    start, load_before = time.perf_counter(), machine.load_average()
    preset = cases.PRESETS[_known(settings.preset, cases.PRESETS)]
    chosen_cases = writing.chosen(settings.cases, {case.name: case for case in preset}, "case")
    chosen = writing.chosen(settings.contenders, {each.name: each for each in steps.CONTENDERS}, "contender")
    missing = race.missing(chosen)
    result: dict[str, Any] = {
        "what": "language models: private steps beside the step without privacy on the same rows",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "missing": missing,
        "load_average_before": load_before,
        "cases": {},
    }
    present = [each for each in chosen if each.name not in missing]
    for case in chosen_cases:
        result["cases"][case.name] = _measure(case, present, settings)
        result["load_average_after"] = machine.load_average()
        result["total_seconds"] = time.perf_counter() - start
        save(result)
    return result


def _known(name: str, presets: dict[str, Any]) -> str:
    if name not in presets:
        raise ValueError(f"unknown preset {name!r}; expected one of {', '.join(presets)}")
    return name


def _measure(case: "Case", present: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """One case's race, and what it was."""
    from benchmarks.language import race
    from experiments.language.cost import step_cost

    sizes = tuple(settings.sizes) or case.sizes
    for size in sizes:
        if size < 1 or case.num_units % size:
            raise ValueError(f"expected microbatch sizes that divide the {case.num_units} units of a step, got {size}")
    contenders = race.run(case, present, sizes, settings.repetitions, settings.device_flops)
    rates = []
    for name, contender in contenders.items():
        speeds = [at["tokens_per_second"]["median"] for at in contender["sizes"].values()]
        if speeds:
            rates.append(f"{name} {max(speeds):,.0f}")
    print(f"{case.title}: tokens/s {', '.join(rates)}", file=sys.stderr, flush=True)
    cost = step_cost(case.config, num_units=1, length=case.length, lora=case.lora)
    return {
        "title": case.title,
        "num_parameters": case.config.num_params,
        "num_trained": sum(part.num_trained for part in cost.parts),
        "num_tokens": case.num_tokens,
        "num_units": case.num_units,
        "device_flops": settings.device_flops,
        "contenders": contenders,
    }


def merge(previous: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return ``result`` with the cases that only ``previous`` has; ValueError if they do not belong together."""
    from benchmarks.language import cases

    preset = cases.PRESETS[result["settings"]["preset"]]
    return writing.merge(previous, result, "cases", [case.name for case in preset])


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON and the tables beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; tables go beside it")
    defaults = Settings()
    parser.add_argument("--preset", default=defaults.preset, help="smallest, tiny, small, 124M, 355M or 1B")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="cores and threads")
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--cases", nargs="*", default=(), help="full, lora; both without")
    parser.add_argument("--contenders", nargs="*", default=(), help="names as in the tables; all without")
    parser.add_argument("--sizes", nargs="*", type=int, default=(), help="microbatch sizes; the preset's without")
    parser.add_argument(
        "--device-flops", type=float, help="operations that the device can do in a second, for model flops utilisation"
    )
    parser.add_argument(
        "--merge", action="store_true", help="keep the cases that an earlier part of the run wrote to the output"
    )
    options = vars(parser.parse_args(arguments))
    output, merging = options.pop("output"), options.pop("merge")
    machine.use_cores(options["threads"])
    made_by = {
        "memory_kept": machine.keep_memory(),
        "command": writing.command("benchmarks.test_language", arguments),
    }
    from benchmarks.language import report

    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: dict[str, Any]) -> dict[str, Any]:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(previous, result)

    result = run(Settings(**options), lambda result: writing.write_json(complete(result), output))
    whole = complete(result)
    writing.write_json(whole, output)
    tables = report.markdown(whole)
    output.with_suffix(".md").write_text(tables)
    print(tables)


OURS = ("no privacy", "gdpjax auto", "gdpjax microbatch")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings("smallest", repetitions=2, contenders=OURS, device_flops=1e12))


def measured(result: dict[str, Any], case: str, contender: str) -> dict[str, Any]:
    """Results by size."""
    return result["cases"][case]["contenders"][contender]["sizes"]


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    from benchmarks.language import report

    again = json.loads(json.dumps(result, allow_nan=False))
    for case in ("full", "lora"):
        for contender in OURS:
            assert not again["cases"][case]["contenders"][contender]["refused"]
            sizes = measured(again, case, contender)
            assert list(sizes) == ["1", "2"]
            for at in sizes.values():
                assert at["mfu"] > 0
                assert at["xla_flops"] > 0
                assert at["xla_bytes"]["held"] > at["xla_bytes"]["temporaries"]
    tables = report.markdown(again | {"command": "pytest"})
    for words in (*OURS, "adapters of rank 8", "TFLOP a second", "products, GFLOP"):
        assert words in tables


@pytest.mark.slow
def test_products_are_counted_as_they_are_predicted(result):
    for case in ("full", "lora"):
        for contender in OURS:
            for at in measured(result, case, contender).values():
                assert at["product_flops"] == pytest.approx(at["predicted"]["product_flops"], rel=1e-9), contender


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_everybody_has_the_same_loss_and_chunks_change_nothing(number):
    import jax
    import numpy as np

    from benchmarks.language import cases, steps

    # The loss of our training is that of the others.
    task = steps.Task(cases.PRESETS["smallest"][number])
    row = [array[0] for array in task.rows]
    ours = jax.jit(task.finetuning("auto", 1).loss)(task.private_state.params, *row)
    theirs = jax.jit(task.loss)(task.trained, *row, task.base)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)

    # A mean over chunks is the mean over all units.
    moments = []
    for size in (1, 4):
        function, arguments = steps.CONTENDERS[0].build(task, size)
        _, optimizer_state = jax.jit(function)(*arguments)
        moments.append(jax.tree.leaves(optimizer_state[0].mu))
    for one, other in zip(*moments, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_sizes_divide_the_units_and_texts_fit_the_model():
    from benchmarks.language import cases

    for name, preset in cases.PRESETS.items():
        assert [case.name for case in preset] == ["full", "lora"]
        for case in preset:
            assert case.length <= case.config.max_length, name
            assert all(case.num_units % size == 0 for size in case.sizes), name


def test_products_in_loops_are_counted_as_often_as_they_are_done():
    import jax
    import jax.numpy as jnp

    from benchmarks.language.race import product_flops

    matrix = jnp.ones((3, 3))

    def looped(x):
        return jax.lax.scan(lambda carry, _: (matrix @ carry, None), x, None, length=5)[0]

    def unknown(x):
        return jax.lax.while_loop(lambda carry: carry.sum() < 1e6, lambda carry: matrix @ carry, x)

    assert product_flops(jax.make_jaxpr(looped)(matrix).jaxpr) == 5 * 2 * 27
    assert product_flops(jax.make_jaxpr(unknown)(matrix).jaxpr) is None
    assert product_flops(jax.make_jaxpr(lambda x: x + 1)(matrix).jaxpr) == 0


def test_the_device_s_peak_is_a_bound_where_an_earlier_call_had_needed_more():
    from benchmarks.language import race, report

    before = {"in_use": 10 * report.MIB, "peak": 50 * report.MIB}
    assert race._added(None, None) is None
    rose = race._added(before, {"in_use": 12 * report.MIB, "peak": 60 * report.MIB})
    assert report._device(rose) == "50"
    assert report._device(race._added(before, before)) == "<= 40"
    assert report._device(None) is None


def _made_up(device_flops: float | None, mfu: float | None) -> dict[str, Any]:
    """A result with all that the tables are made of, where nothing could be known."""
    spread = {"median": 0.5, "q1": 0.4, "q3": 0.6}
    at = {
        "seconds": spread,
        "tokens_per_second": spread,
        "over_no_privacy": None,
        "mfu": mfu,
        "compile_seconds": 1.0,
        "product_flops": None,
        "xla_flops": None,
        "xla_bytes": None,
        "device_bytes": None,
        "predicted": None,
    }
    contenders = {
        "gdpjax auto": {"sizes": {"1": at}, "refused": {"4": "XlaRuntimeError: RESOURCE_EXHAUSTED"}},
    }
    case = {
        "title": "some model",
        "num_parameters": 1_000,
        "num_trained": 10,
        "device_flops": device_flops,
        "contenders": contenders,
    }
    return {
        "machine": {"cpu": "some", "cpu_cores_used": 1, "device": "cpu", "versions": {"jax": "1"}},
        "settings": {"preset": "tiny", "threads": 1, "repetitions": 3},
        "missing": {"jax_privacy": "ImportError: no"},
        "load_average_before": 1.0,
        "load_average_after": 1.0,
        "total_seconds": 10.0,
        "command": "pytest",
        "cases": {"full": case},
    }


def test_what_is_missing_refused_or_unknown_is_said():
    from benchmarks.language import report

    tables = report.markdown(_made_up(None, None))
    for words in ("gdpjax auto, microbatch 4: XlaRuntimeError", "jax_privacy: ImportError", "--device-flops"):
        assert words in tables
    assert "%" not in tables
    assert "40.0%" in report.markdown(_made_up(1e15, 0.4))


def test_the_page_of_benchmarks_shows_what_there_is(monkeypatch, tmp_path):
    from benchmarks import summary

    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    writing.write_json(_made_up(None, None), tmp_path / "language_tiny.json")
    rows, (_, body) = summary._language()
    assert [row[1] for row in rows] == ["private step, some model"]
    assert "Not measured yet: small, 124M, 355M, 1B." in body
    assert "| some model | 0.5 |" in body
    assert "language_tiny" in summary.page()


def test_parts_of_a_run_are_merged_in_the_preset_s_order():
    first, second = _made_up(None, None), _made_up(None, None)
    second["cases"] = {"lora": second["cases"]["full"]}
    assert list(merge(second, first)["cases"]) == ["full", "lora"]
    second["settings"]["repetitions"] = 4
    with pytest.raises(ValueError, match="repetitions 4, this one with 3"):
        merge(second, first)


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown case 'none'"):
        run(Settings("smallest", cases=("none",)))
    with pytest.raises(ValueError, match="unknown preset '7B'"):
        run(Settings("7B"))
    with pytest.raises(ValueError, match="divide the 4 units"):
        run(Settings("smallest", sizes=(3,)))


if __name__ == "__main__":
    main()
