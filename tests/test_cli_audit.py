"""`gdpjax audit` takes files of scores or the step of this installation, and its exit status is its verdict."""

import json
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax import Bounds
from gdpjax.accounting import epsilon_bounds, gdp_epsilon, tradeoff_bounds
from gdpjax.auditing import _installation, _step_checks, audit_many_runs, audit_one_run, worst_cases
from gdpjax.cli import main

StepCheck = namedtuple("StepCheck", "p_value statement")


def run(capsys, *arguments, status=0):
    """Return what the command printed: its result, or its complaint if the status is 2."""
    command = ["audit", *(str(argument) for argument in arguments)]
    assert main(command) == status
    captured = capsys.readouterr()
    has_complaint = captured.err != ""
    assert has_complaint == (status == 2)
    return captured.err if status == 2 else captured.out


def run_json(capsys, *arguments, status=0):
    return json.loads(run(capsys, *arguments, "--json", status=status))


def write(path, scores, included, header="score,included"):
    """Write a file of scores, and return its path."""
    lines = [header, *(f"{score},{coin}" for score, coin in zip(scores, included, strict=True))]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def data(tmp_path):
    """Return scores of 2,000 canaries, those included, and the path of their file."""
    generator = np.random.default_rng(0)
    included = generator.random(2000) < 0.5
    scores = included + generator.normal(size=2000)
    path = write(tmp_path / "scores.csv", scores, included.astype(int))
    return scores, included, path


def test_one_run(capsys, data):
    """The figures of a file are those of `audit_one_run` with the command's defaults or options."""
    scores, included, path = data
    result = run_json(capsys, path)
    audit = audit_one_run(scores, included, key=jax.random.key(0), delta=1e-5)
    assert result == {
        "epsilon_lower": audit.epsilon,
        "mu_lower": audit.mu,
        "delta": 1e-5,
        "confidence": audit.confidence,
        "num_canaries": 2000,
        "num_guesses": 200,
        "num_correct": audit.num_correct,
    }
    assert 0 < result["epsilon_lower"] < gdp_epsilon(1e-5, 1.0)
    assert 0.4 < result["mu_lower"] < 1

    with_options = run_json(capsys, path, "--num-guesses", 100, 400, "--confidence", 0.9, "--delta", 1e-3)
    assert with_options["num_guesses"] in (100, 400)
    assert with_options["confidence"] == pytest.approx(0.9)
    assert with_options["delta"] == 1e-3

    table = run(capsys, path)
    assert table.count("empirical lower") == 2
    assert "confidence" in table


def test_many_runs(capsys, data):
    """The figures of a file of many runs are those of `audit_many_runs`, with a threshold chosen or given."""
    scores, included, path = data
    result = run_json(capsys, path, "--many-runs", "--seed", 3)
    audit = audit_many_runs(scores, included, key=jax.random.key(3), delta=1e-5)
    assert result["mu_lower"] == audit.mu
    assert result["epsilon_lower"] == audit.epsilon
    assert result["epsilon_lower_if_gaussian"] == audit.epsilon_if_gaussian

    with_threshold = run_json(capsys, path, "--many-runs", "--threshold", 0.5)
    assert with_threshold["threshold"] == 0.5
    assert with_threshold["num_runs"] == 2000
    table = run(capsys, path, "--many-runs")
    assert "if the trade-off curve is Gaussian" in " ".join(table.split())


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("score,member\n1,1\n", [], "needs the columns score and included, got score, member"),
        ("score,included\n1,1\nnan,0\n", [], "NaN at index 1"),
        ("score,included\n1,1\n2,0.5\n", [], "line 3"),
        ("score,included\n1,1\n2\n", [], "line 3"),
        ("score,included\n" + "1,1\n" * 200, [], "fair coins"),
        ("score,included\n1,1\n", ["--threshold", "2"], "--threshold does not belong to an audit of one run"),
        ("score,included\n1,1\n", ["--many-runs", "--num-guesses", "2"], "--num-guesses does not belong"),
        ("score,included\n1,1\n", ["--num-releases", "100"], "--num-releases does not belong"),
        ("score,included\n1,1\n", ["--step"], "either a file of scores or --step"),
    ],
)
def test_bad_input(capsys, tmp_path, text, options, message):
    """A damaged file or an option that does not belong is refused in words."""
    path = tmp_path / "scores.csv"
    path.write_text(text)
    assert message in run(capsys, path, *options, status=2)


def without_sampling(noise_multiplier, sampling_prob, num_steps, delta):
    """Return epsilon bounds that are exact for full batches and upper bounds for others, and compile nothing."""
    mu = np.sqrt(num_steps) / noise_multiplier
    return Bounds(0, gdp_epsilon(delta, mu))


@pytest.mark.parametrize("certified", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_step_of_this_installation(capsys, monkeypatch, certified):
    """Every worst case and every check of the step is consistent with what is claimed."""
    names = ["steady", "opposed", "turning", "huge", "overflowing", "missing", "silent", "sampled", "mislabeled"]
    if not certified:
        # One program, and no accountant to compile.
        names = ["steady", "silent"]
        monkeypatch.setattr(_step_checks, "_LEAF", 2**14)
        monkeypatch.setattr(_step_checks, "_DRAWS_PER_RELEASE", 2**6)
        monkeypatch.setattr(_installation, "epsilon_bounds", without_sampling)
        cases = worst_cases()
        monkeypatch.setattr(_installation, "worst_cases", lambda: {name: cases[name] for name in names})

    report = run_json(capsys, "--step", "--num-releases", 1024)
    assert report["sound"] is True
    assert report["confidence"] == 0.9999
    assert list(report["cases"]) == names
    for case in report["cases"].values():
        assert case["verdict"] == "consistent"
        assert 0 <= case["epsilon_lower"] <= case["epsilon_upper"]
        if certified:
            bounds = epsilon_bounds(case["noise_multiplier"], case["sampling_prob"], case["num_steps"], 1e-5)
            assert case["epsilon_upper"] == pytest.approx(float(bounds.upper), rel=1e-3)
        assert 0 <= case["claimed_beta"] <= 1
    assert report["cases"]["steady"]["mu_lower"] > 0.6
    assert len(report["checks"]) == 14
    for check in report["checks"].values():
        assert check["verdict"] == "consistent"
        assert 5e-5 / 14 < check["p_value"] <= 1


@pytest.mark.slow
def test_the_claimed_curves_are_the_certified_ones():
    """The curve that a worst case claims is between the certified bounds of its run."""
    alpha = np.array([0.001, 0.02, 0.2, 0.5, 0.9])
    for name, case in worst_cases().items():
        bounds = tradeoff_bounds(*case.run, alpha)
        claimed = case.claimed()(alpha)
        assert (bounds.lower <= claimed + 1e-12).all(), name
        assert (claimed <= bounds.upper + 1e-12).all(), name


def release_with_half_the_noise(key, included):
    return jnp.float32(2) * included + jax.random.normal(key)


def release_without_noise(key, included):
    return included


def test_a_refuted_bound_is_status_1(capsys, monkeypatch):
    """A case with less noise than it claims and a failed check are named, and the status is 1."""
    case = worst_cases()["steady"]._replace(num_steps=1)
    cases = {
        "half": case._replace(release=release_with_half_the_noise, noise_multiplier=1.0),
        "open": case._replace(release=release_without_noise, noise_multiplier=4.0),
    }
    checks = {
        "ledger": StepCheck(p_value=0.0, statement="wrong"),
        "sampling": StepCheck(p_value=0.5, statement="right"),
    }
    monkeypatch.setattr(_installation, "worst_cases", lambda: cases)
    monkeypatch.setattr(_installation, "step_checks", lambda key, num_releases: checks)
    monkeypatch.setattr(_installation, "epsilon_bounds", without_sampling)
    table = run(capsys, "--step", "--num-releases", 2048, status=1)
    lines = {line.split()[0]: line for line in table.splitlines() if line}
    assert max(map(len, lines.values())) <= 80
    assert "REFUTED: trade-off" in lines["half"]
    assert "REFUTED: epsilon" in lines["open"]
    assert "FAILED" in lines["ledger"]
    assert "FAILED" not in lines["sampling"]
    assert table.strip().endswith("2 worst cases refuted, 1 checks failed: half, open, ledger")
    report = run_json(capsys, "--step", "--releases", 2048, status=1)
    assert report["sound"] is False
