"""A tiny run of the training benchmark is complete, and everybody trains; never a time."""

import json
from typing import Any

import jax
import pytest

from benchmarks import writing
from benchmarks.bench_training import Settings, merge, run
from benchmarks.training import cases, figure, parts, race, report

# What needs no package of the extra: torch and jax_privacy stay out of a suite in which warnings are errors.
WITHOUT_PEERS = ("gdpjax run_steps", "gdpjax step")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings("cpu-tiny", repetitions=2, cases=("digits_mlp",), contenders=WITHOUT_PEERS))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
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
