"""The smallest run of the language benchmark is complete, and its operations are counted right; never a time."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import summary, writing
from benchmarks.bench_language import Settings, merge, run
from benchmarks.language import cases, race, report, steps

OURS = ("no privacy", "gdpjax auto", "gdpjax microbatch")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    settings = Settings(
        "smallest",
        repetitions=2,
        contenders=OURS,
        device_flops=1e12,
    )
    return run(settings)


def measured(result: dict[str, Any], case: str, contender: str) -> dict[str, Any]:
    """Return the results of a contender, by size."""
    return result["cases"][case]["contenders"][contender]["sizes"]


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    for case in ("full", "lora"):
        for contender in OURS:
            assert not again["cases"][case]["contenders"][contender]["refused"]
            by_size = measured(again, case, contender)
            assert list(by_size) == ["1", "2"]
            for of_size in by_size.values():
                assert of_size["mfu"] > 0
                assert of_size["xla_flops"] > 0
                assert of_size["xla_bytes"]["held"] > of_size["xla_bytes"]["temporaries"]
    tables = report.markdown(again | {"command": "pytest"})
    for words in (*OURS, "adapters of rank 8", "TFLOP a second", "products, GFLOP"):
        assert words in tables


@pytest.mark.slow
def test_products_are_counted_as_they_are_predicted(result):
    for case in ("full", "lora"):
        for contender in OURS:
            for of_size in measured(result, case, contender).values():
                predicted = of_size["predicted"]["product_flops"]
                assert of_size["product_flops"] == pytest.approx(predicted, rel=1e-9), contender


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_everybody_has_the_same_loss_and_chunks_change_nothing(number):
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
    for name, preset in cases.PRESETS.items():
        assert [case.name for case in preset] == ["full", "lora"]
        for case in preset:
            assert case.length <= case.config.max_length, name
            assert all(case.num_units % size == 0 for size in case.sizes), name


def test_products_in_loops_are_counted_as_often_as_they_are_done():
    matrix = jnp.ones((3, 3))

    def multiply(carry, _):
        return matrix @ carry, None

    def looped(x):
        result, _ = jax.lax.scan(multiply, x, None, length=5)
        return result

    def unknown(x):
        return jax.lax.while_loop(lambda carry: carry.sum() < 1e6, lambda carry: matrix @ carry, x)

    # A product of two 3 by 3 matrices has 27 multiplications and as many additions.
    assert race.product_flops(jax.make_jaxpr(looped)(matrix)) == 5 * 2 * 27
    assert race.product_flops(jax.make_jaxpr(unknown)(matrix)) is None
    assert race.product_flops(jax.make_jaxpr(lambda x: x + 1)(matrix)) == 0


def test_the_device_s_peak_is_a_bound_where_an_earlier_call_had_needed_more():
    before = {"in_use": 10 * report.MIB, "peak": 50 * report.MIB}
    assert race._added(None, None) is None
    rose = race._added(before, {"in_use": 12 * report.MIB, "peak": 60 * report.MIB})
    assert report._device(rose) == "50"
    assert report._device(race._added(before, before)) == "<= 40"
    assert report._device(None) is None


def _made_up(device_flops: float | None, mfu: float | None) -> dict[str, Any]:
    """Return a result with all that the tables are made of, where nothing could be known."""
    spread = {"median": 0.5, "q1": 0.4, "q3": 0.6}
    of_size = {
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
        "gdpjax auto": {
            "sizes": {"1": of_size},
            "refused": {"4": "XlaRuntimeError: RESOURCE_EXHAUSTED"},
        },
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
    tables = report.markdown(_made_up(None, None))
    for words in ("gdpjax auto, microbatch 4: XlaRuntimeError", "jax_privacy: ImportError", "--device-flops"):
        assert words in tables
    assert "%" not in tables
    assert "40.0%" in report.markdown(_made_up(1e15, 0.4))


def test_the_page_of_benchmarks_shows_what_there_is(monkeypatch, tmp_path):
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
