"""A tiny run of the training benchmark is complete, and everybody trains; never a time."""

import itertools
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
    settings = Settings(
        "cpu-tiny",
        repetitions=2,
        cases=("digits_mlp",),
        contenders=WITHOUT_PEERS,
    )
    return run(settings)


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again["targets"].keys() == {
        "noise of 20,000 coordinates / jax.random.normal",
        "digits_mlp: steps/s of run_steps / of a loop of step",
    }
    case = again["cases"]["digits_mlp"]
    for name, part in case["parts"].items():
        assert {"seconds", "over", "temp_bytes", "flops", "compile_seconds"} <= set(part), name
    assert tuple(case["trainers"]) == WITHOUT_PEERS
    for name, trainer in case["trainers"].items():
        assert {"steps_per_second", "epsilon", "loss"} <= set(trainer), name

    # Everything that was measured is in the tables.
    tables = report.markdown(result | {"command": "pytest", "memory_kept": False})
    for name in (*WITHOUT_PEERS, *case["parts"], *again["noise"]["contenders"], case["title"]):
        assert name in tables


@pytest.mark.slow
def test_a_loop_of_steps_and_a_scan_train_alike(result):
    case = result["cases"]["digits_mlp"]
    by_scan, by_loop = (trainer["loss"] for trainer in case["trainers"].values())
    assert by_scan == pytest.approx(by_loop, rel=1e-5)
    assert by_scan != case["first_loss"]


def test_every_case_s_plan_is_for_its_turns_and_has_a_model_of_its_images():
    for case in itertools.chain(*cases.PRESETS.values()):
        assert case.steps_per_turn <= case.plan().num_steps, case.name
        images, labels = case._replace(num_examples=2).data()
        loss = jax.eval_shape(case.model.loss, case.params(), images[0], labels[0])
        assert loss.shape == (), case.name

    # The paper's network for MNIST has its number of parameters.
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


def _took(ratio: float) -> dict[str, Any]:
    """Return made-up times of a part that takes so many times as long as the first one."""
    return {
        "seconds": {"median": 0.05 * ratio, "q1": 0.05, "q3": 0.06},
        "over": {
            "time": ratio,
            "processor": ratio,
            "by_round": {"q1": ratio, "q3": ratio},
        },
        "compile_seconds": 1.0,
        "temp_bytes": None,
        "flops": 1e6,
    }


def _trained(epsilon: dict[str, Any]) -> dict[str, Any]:
    """Return the made-up result of a training."""
    return {
        **_took(1.0),
        "microbatch_size": None,
        "sampling_prob": 0.004,
        "loss": 2.0,
        "ready_seconds": 1.0,
        "refused": {},
        "epsilon": epsilon,
        "steps_per_second": {"median": 20.0, "q1": 19.0, "q3": 21.0},
    }


def _made_up() -> dict[str, Any]:
    """Return a result with the numbers that the tables and the picture are made of."""
    certified = {"epsilon": 0.875, "lower": 0.75, "by": "certified bracket"}
    return {
        "machine": {"cpu": "some", "cpu_cores_used": 1, "device": "cpu", "versions": {"jax": "1"}},
        "settings": {"threads": 1, "repetitions": 3},
        "missing": {"Opacus hooks": "ImportError: no"},
        "load_average_before": 1.0,
        "load_average_after": 1.0,
        "total_seconds": 10.0,
        "command": "pytest",
        "memory_kept": True,
        "noise": {
            "num_coordinates": 10,
            "contenders": {
                parts.JAX_NORMAL: _took(1.0),
                parts.NOISE: _took(1.6),
            },
        },
        "cases": {
            "mnist_cnn": {
                "title": "CNN",
                "num_parameters": 26_010,
                "plan": {
                    "noise_multiplier": 1.3,
                    "clip_norm": 1.5,
                    "max_steps": 3516,
                    "delta": 1e-5,
                    "capacity": 400,
                },
                "steps_per_turn": 20,
                "first_loss": 2.3,
                "parts": {
                    parts.CLIPPED: _took(1.0),
                    parts.PRIVATE: _took(1.04),
                },
                "trainers": {
                    "gdpjax run_steps": _trained(certified),
                    "gdpjax step": _trained(certified),
                    "jax_privacy": _trained({"epsilon": None, "by": "TimeoutError: more than 900 s"}),
                    "Opacus ghost": {"refused": {"None": "NotImplementedError: no"}},
                },
            }
        },
    }


def test_a_missed_target_and_a_missing_contender_are_reported(tmp_path, capsys):
    result = _made_up()
    result["targets"] = race.targets(cases.CPU, result)
    met = [target["met"] for target in result["targets"].values()]
    assert met == [False, True, True, True]

    # The tables are printed as they are written.
    writing.write(result, tmp_path / "made_up.json", report.markdown, figure.draw)
    tables = (tmp_path / "made_up.md").read_text()
    assert tables.strip() == capsys.readouterr().out.strip()
    expected = (
        "MISSED",
        "+4.0%",
        "[0.7500, 0.8750]",
        "TimeoutError",
        "NotImplementedError",
        "Opacus hooks: ImportError: no",
    )
    for words in expected:
        assert words in tables
    assert (tmp_path / "made_up.png").stat().st_size > 10_000


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown case 'none'"):
        run(Settings("cpu-tiny", cases=("none",)))
