"""Tiny runs of the benchmarks are complete, and everybody computes the same; never a time."""

import functools
import importlib
import json
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import harness, summary
from benchmarks.accounting import arbiter
from benchmarks.bench_language import BENCHMARK as LANGUAGE
from benchmarks.language import steps
from gdpjax import accounting

# What needs no package of the extra: torch and jax_privacy stay out of a suite in which warnings are errors.
TINY: dict[str, dict[str, Any]] = {
    "accounting_cpu": dict(configurations=12, subset=2, repetitions=1, patience=0.0, sweep_seconds=0.5),
    "allocation_cpu": dict(configurations=2, repetitions=1),
    "clipping_cpu": dict(
        preset="cpu-tiny",
        repetitions=1,
        cases=("mlp", "cnn", "transformer"),
        contenders=("no privacy", "gdpjax auto", "gdpjax ghost", "gdpjax microbatch", "plain vmap"),
    ),
    "training_cpu": dict(
        preset="cpu-tiny", repetitions=2, cases=("digits_mlp",), contenders=("gdpjax run_steps", "gdpjax step")
    ),
    "correlated_cpu": dict(quick=True, repetitions=2, peer=False),
    "language_tiny": dict(
        preset="smallest",
        repetitions=2,
        contenders=("no privacy", "gdpjax auto", "gdpjax microbatch"),
    ),
    "sweeps_cpu": dict(
        dataset="digits",
        configurations=8,
        steps=4,
        repetitions=1,
        alone=1,
        batch_size=32,
        epochs=1,
    ),
}


def benchmark_of(name: str) -> harness.Benchmark:
    return importlib.import_module(f"benchmarks.bench_{name.partition('_')[0]}").BENCHMARK


@functools.cache
def tiny(name: str) -> dict[str, Any]:
    benchmark = benchmark_of(name)
    result = harness.run(benchmark, benchmark.settings._replace(**TINY[name]))
    return json.loads(json.dumps(result, allow_nan=False)) | {"command": "pytest", "memory_kept": False}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_run_writes_what_the_committed_one_wrote(name, tmp_path, capsys):
    result, committed = tiny(name), summary.read(name)
    assert committed is not None
    assert set(result) >= set(committed) - {"missing"}
    for target in result.get("targets", {}).values():
        assert {"target", "measured", "met", "at_least"} <= set(target)

    # The tables are printed as they are written.
    report = importlib.import_module(benchmark_of(name).report)
    harness.write(result, tmp_path / "tiny.json", report)
    assert (tmp_path / "tiny.md").read_text().strip() == capsys.readouterr().out.strip()
    assert (tmp_path / "tiny.png").exists() == hasattr(report, "draw")


@pytest.mark.slow
def test_nobody_s_bracket_contradicts_ours():
    result = tiny("accounting_cpu")
    assert result["accuracy"]["moments_accountant_epsilon"]["below_certified_lower"] == 0
    for name, library in result["comparison"]["libraries"].items():
        assert library["wrong_side"] == [], name


@pytest.mark.slow
def test_the_arbiter_tells_a_false_end_from_a_true_one():
    run = (2.0, 0.05, 100, 1e-6)
    low, high = (float(end) for end in accounting.epsilon_bounds(*run))

    # Ends of the peer that are certainly false.
    assert arbiter.verdict(run, "upper", 0.99 * low, [low, high]) == "the peer"
    assert arbiter.verdict(run, "lower", 1.01 * high, [low, high]) == "the peer"

    # A true end of the peer, which a false bracket contradicts, and two ends that nobody can tell apart.
    assert arbiter.verdict(run, "upper", 1.01 * high, [1.02 * high, 1.03 * high]) == "gdpjax"
    assert arbiter.verdict(run, "upper", high, [low, high]) == "undecided"


@pytest.mark.slow
def test_the_brackets_of_random_allocation_meet():
    assert all(row["brackets_meet"] for row in tiny("allocation_cpu")["rows"])


@pytest.mark.slow
def test_everybody_s_clipped_sum_is_the_same():
    for measured in tiny("clipping_cpu")["cases"].values():
        # The slack for rounding shortens our gradients, here by about 2^-13; a wrong clip is far more off.
        for name in ("gdpjax auto", "gdpjax microbatch"):
            assert measured["contenders"][name]["relative_error"] < 1e-3


@pytest.mark.slow
def test_a_loop_of_steps_and_a_scan_train_alike():
    case = tiny("training_cpu")["cases"]["digits_mlp"]
    by_scan, by_loop = (trainer["loss"] for trainer in case["trainers"].values())
    assert by_scan == pytest.approx(by_loop, rel=1e-5)
    assert by_scan != case["first_loss"]


@pytest.mark.slow
def test_correlation_pays_and_no_loss_is_worse_than_the_record():
    result = tiny("correlated_cpu")
    for row in result["optimizers"]:
        assert row["loss_ratio"] <= 1.001
    for run in result["errors"]:
        assert all(family["of_independent"] < 1 for family in run["families"][1:])

    # The state of each beside that of independent noise, in float32 copies of the parameters.
    ((size, contenders),) = result["costs"].items()
    independent = contenders["gdpjax independent"]["state_bytes"]
    names = ("lambda-CGD", "BISR 8, drawn again", "BISR 8, ring buffer", "BandMF 8, ring buffer", "BLT 3")
    extra = [(contenders[f"gdpjax {name}"]["state_bytes"] - independent) // (4 * int(size)) for name in names]
    assert extra == [0, 0, 8, 7, 3]


@pytest.mark.slow
@pytest.mark.parametrize("case", LANGUAGE.preset("smallest").values(), ids=lambda case: case.name)
def test_everybody_has_the_same_loss_and_chunks_change_nothing(case):
    # The loss of our training is that of the others.
    task = steps.Task(case)
    row = [array[0] for array in task.rows]
    ours = jax.jit(task.finetuning("auto", 1).loss)(task.private_state.params, *row)
    np.testing.assert_allclose(ours, jax.jit(task.loss)(task.trained, *row, task.base), rtol=1e-6)

    # A mean over chunks is the mean over all units.
    moments = []
    for size in (1, 4):
        function, arguments = steps.CONTENDERS[0].build(task, size)
        moments.append(jax.tree.leaves(jax.jit(function)(*arguments)[1][0].mu))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), *moments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cases": ("none",)}, "unknown case 'none'"),
        ({"preset": "7B"}, "unknown preset '7B'"),
        ({"contenders": ("none",)}, "unknown contender 'none'"),
    ],
)
def test_what_is_not_there_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        harness.run(LANGUAGE, LANGUAGE.settings._replace(**{"preset": "smallest", **settings}))
