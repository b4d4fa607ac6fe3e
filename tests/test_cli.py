"""The command line: keys, figures, standings, caveats and errors."""

import io
import json
import os
import subprocess
import sys
import time

import pytest

from gdpjax import Bounds
from gdpjax.accounting import (
    certified,
    clt_epsilon,
    clt_mu_poisson,
    epsilon_bounds,
    gdp_epsilon,
    moments_accountant_epsilon,
)
from gdpjax.cli import CLT_CAVEAT, _account, main
from gdpjax.cli._progress import Elapsed
from gdpjax.cli._report import rounded
from gdpjax.tradeoff import NoGuarantee

KEYS = [
    "num_steps", "sampling_prob", "delta", "mu_clt", "epsilon_clt", "clt_reliable", "mu_upper", "mu_failure",
    "epsilon_lower", "epsilon_upper", "epsilon_moments_accountant",
]  # fmt: skip
MNIST = ["--num-examples", "60000", "--batch-size", "256", "--epochs", "15"]


def run(capsys, *arguments):
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_account_json(capsys):
    result = json.loads(run(capsys, "account", "--noise-multiplier", "1.3", *MNIST, "--delta", "1e-5", "--json"))
    assert list(result) == ["noise_multiplier", *KEYS]
    assert (result["noise_multiplier"], result["delta"]) == (1.3, 1e-5)
    assert result["num_steps"] == 3516
    assert result["sampling_prob"] == 256 / 60_000
    assert result["mu_clt"] == clt_mu_poisson(1.3, 256 / 60_000, 3516)
    assert result["epsilon_clt"] == clt_epsilon(1.3, 256 / 60_000, 3516, 1e-5)
    assert result["epsilon_moments_accountant"] == moments_accountant_epsilon(1.3, 256 / 60_000, 3516, 1e-5)
    assert result["clt_reliable"] is True
    assert (result["epsilon_lower"], result["epsilon_upper"]) == epsilon_bounds(1.3, 256 / 60_000, 3516, 1e-5)
    assert result["epsilon_lower"] <= 0.8645 <= result["epsilon_upper"] < result["epsilon_moments_accountant"]
    assert result["mu_failure"] == 1e-10
    assert result["mu_clt"] < result["mu_upper"] < 1.1 * result["mu_clt"]


def test_account_table_states_every_standing(capsys):
    out = run(
        capsys, "account", "--noise-multiplier", "1", "--sampling-prob", ".01", "--num-steps", "100", "--delta", "1e-5"
    )
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert list(lines) == ["quantity", "noise_multiplier", *KEYS]
    assert lines["delta"].split()[1] == "1e-05"
    assert all(CLT_CAVEAT in lines[key] for key in ("mu_clt", "epsilon_clt"))
    assert all("certified" in lines[key] for key in ("mu_upper", "epsilon_lower", "epsilon_upper"))
    assert "upper bound" in lines["epsilon_moments_accountant"]
    starts = {line.index(word) for line, word in zip(out.splitlines(), ["standing", "given"], strict=False)}
    assert len(starts) == 1


def test_infinite_figures_are_valid_json(capsys):
    arguments = ["--noise-multiplier", ".01", "--sampling-prob", ".1", "--num-steps", "1", "--delta", "1e-5", "--json"]
    out = run(capsys, "account", *arguments)
    assert json.loads(out, parse_constant=pytest.fail)["epsilon_clt"] == "inf"


def test_a_run_without_noise_is_said_not_to_be_private(capsys):
    arguments = ["account", "--noise-multiplier", "0", *MNIST, "--delta", "1e-5"]
    lines = run(capsys, *arguments).splitlines()
    assert all("inf" in line and "NOT PRIVATE" in line for line in lines if line.startswith(("epsilon", "mu_clt")))
    result = json.loads(run(capsys, *arguments, "--json"), parse_constant=pytest.fail)
    assert list(result) == ["noise_multiplier", *KEYS]
    assert result["epsilon_lower"] == result["epsilon_upper"] == result["mu_upper"] == "inf"


def test_the_names_of_a_plan_are_options_too(capsys):
    arguments = ["account", "--noise-multiplier", "0", "--delta", "1e-5", "--epochs", "15", "--json"]
    plans = run(capsys, *arguments, "--max-examples", "60000", "--expected-batch-size", "256")
    assert plans == run(capsys, *arguments, "--num-examples", "60000", "--batch-size", "256")


@pytest.mark.parametrize("accountant", ["numeric", "rdp", "clt"])
def test_calibrate(capsys, accountant):
    arguments = ["--epsilon", "2", "--delta", "1e-5", *MNIST, "--accountant", accountant]
    result = json.loads(run(capsys, "calibrate", *arguments, "--json"))
    assert list(result) == ["noise_multiplier", "epsilon", *KEYS]
    assert (result["epsilon"], result["delta"]) == (2.0, 1e-5)
    key = {"numeric": "epsilon_upper", "rdp": "epsilon_moments_accountant", "clt": "epsilon_clt"}[accountant]
    assert result[key] == pytest.approx(2.0, rel=1e-5)
    assert result["mu_upper"] is None, "it takes half a minute to compile, and nobody asked"
    line = run(capsys, "calibrate", *arguments).splitlines()[1]
    assert (CLT_CAVEAT if accountant == "clt" else "safe") in line
    assert float(line.split()[1]) == result["noise_multiplier"]


@pytest.mark.parametrize(("epsilon", "sampling_prob", "num_steps"), [(4, 0.01, 1000), (1.5, 0.05, 50), (3, 0.004, 9)])
def test_the_printed_noise_meets_the_target(capsys, epsilon, sampling_prob, num_steps):
    """A person copies the number that is printed, with its rounding."""
    arguments = ["--epsilon", epsilon, "--delta", 1e-5, "--sampling-prob", sampling_prob, "--num-steps", num_steps]
    line = run(capsys, "calibrate", *map(str, arguments)).splitlines()[1]
    noise = float(line.split()[1])
    assert epsilon_bounds(noise, sampling_prob, num_steps, 1e-5).upper <= epsilon
    assert epsilon_bounds(noise * (1 - 1e-5), sampling_prob, num_steps, 1e-5).upper > epsilon


def test_what_a_person_may_copy_is_rounded_to_the_safe_side(capsys):
    arguments = ["--noise-multiplier", "1.1", "--sampling-prob", "0.0123456789", "--num-steps", "77", "--delta", "1e-5"]
    exact = json.loads(run(capsys, "account", *arguments, "--json"))
    lines = {line.split()[0]: line.split()[1] for line in run(capsys, "account", *arguments).splitlines()[1:]}
    for key in ("mu_clt", "epsilon_clt", "mu_upper", "epsilon_upper", "epsilon_moments_accountant"):
        assert exact[key] <= float(lines[key]) < exact[key] * (1 + 1e-5), key
    assert exact["epsilon_lower"] * (1 - 1e-5) < float(lines["epsilon_lower"]) <= exact["epsilon_lower"]
    assert float(lines["sampling_prob"]) == 0.0123456789


@pytest.mark.parametrize("digits", [1, 3, 8])
def test_rounded(digits):
    for value in (1.2345641, 9.9999999999, 0.1, 1e-300, 123456789.123, 5e-324, 2.0):
        up, down = (float(rounded(value, digits, side)) for side in ("up", "down"))
        assert down <= value <= up <= value * (1 + 1.01 * 10 ** (1 - digits)) + 5e-324
        assert float(rounded(value, digits, "exact")) == value
    assert rounded(float("inf"), 3, "up") == "inf"


def test_calibrate_to_mu(capsys):
    result = json.loads(run(capsys, "calibrate", "--mu", "0.5", *MNIST, "--accountant", "clt", "--json"))
    assert result["mu_clt"] == pytest.approx(0.5)
    assert (result["mu"], result["delta"]) == (0.5, None)
    assert result["epsilon_clt"] is None  # no delta was given


def test_calibrate_to_mu_reports_the_mu_of_its_target(capsys, monkeypatch):
    """At another failure probability than the target's, the certified mu would be above the target."""
    asked = []

    class Asked(NoGuarantee):
        def mu(self, failure):
            asked.append(failure)
            return Bounds(0.0, 0.5)

    monkeypatch.setattr(_account, "certified", lambda *run: Asked())
    monkeypatch.setattr(_account, "calibrate_noise_multiplier", lambda **target: asked.append(target["failure"]) or 1.0)
    result = json.loads(run(capsys, "calibrate", "--mu", "0.5", "--failure", "1e-6", *MNIST, "--json"))
    assert set(asked) == {1e-6}
    assert result["mu_failure"] == 1e-6


def test_convert_of_a_mu_whose_square_overflows(capsys):
    assert main(["convert", "--mu", "1e160", "--delta", "1e-5"]) == 0
    assert capsys.readouterr().out.count("too large to be computed") == 2


def test_convert(capsys):
    result = json.loads(run(capsys, "convert", "--mu", "1", "--delta", "1e-5", "--json"))
    assert result["epsilon"] == gdp_epsilon(1e-5, 1.0)
    assert result["rho"] == 0.5
    assert result["standing"]["epsilon"] == "exact"
    back = json.loads(run(capsys, "convert", "--epsilon", str(result["epsilon"]), "--delta", "1e-5", "--json"))
    assert back["mu"] == pytest.approx(1.0, rel=1e-12)
    assert "Gaussian mechanism" in back["standing"]["mu"]
    zero_concentrated = json.loads(run(capsys, "convert", "--rho", "0.5", "--delta", "1e-5", "--json"))
    assert zero_concentrated["mu"] is None
    assert "not implied" in zero_concentrated["standing"]["mu"]
    assert result["epsilon"] < zero_concentrated["epsilon"] < 1.1 * result["epsilon"]
    assert zero_concentrated["standing"]["epsilon"] == "upper bound"
    inverse = run(capsys, "convert", "--rho", "0.5", "--epsilon", str(zero_concentrated["epsilon"]), "--json")
    assert json.loads(inverse)["delta"] == pytest.approx(1e-5, rel=1e-6)
    assert "needs --delta" in run(capsys, "convert", "--mu", "1")


RUN = ["--sampling-prob", ".1", "--num-steps", "10", "--delta", "1e-5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["account", "--noise-multiplier", "-1", *RUN], "noise_multiplier must be a finite number > 0, got -1"),
        (["account", "--noise-multiplier", "nan", *RUN], "noise_multiplier must be a finite number > 0, got nan"),
        (["account", "--noise-multiplier", "1", *RUN[:-1], "1"], "delta must be a number in"),
        (["account", "--noise-multiplier", "1", "--sampling-prob", "2", *RUN[2:]], r"--sampling-prob must be"),
        (
            ["account", "--noise-multiplier", "1", "--num-examples", "0", "--batch-size", "1", *RUN[2:]],
            "--max-examples",
        ),
        (["account", "--noise-multiplier", "1", *RUN[2:]], "give either --max-examples and --expected-batch-size"),
        (["account", "--noise-multiplier", "1", *RUN, "--num-examples", "5"], "give either --max-examples"),
        (["account", "--noise-multiplier", "x", *RUN], "expected one number, got 'x'"),
        (["account", "--noise-multiplier", "0.5:2", *RUN], "expected one number, got '0.5:2'; lists and ranges"),
        (["account", "--noise-multiplier", "1", *RUN[:-1], "-1e-5"], "delta must be a number in"),
        (["account", "--noise-multiplier", "-inf", *RUN], "noise_multiplier must be a finite number > 0, got -inf"),
        (["convert", "--mu", "-.5"], "--mu must be a finite number >= 0, got -0.5"),
        (["audit", "scores.csv", "--seed", "1.5"], "expected one whole number, got '1.5'"),
        (["calibrate", "--epsilon", "2", "--mu", "1", *RUN], "either --mu or --epsilon"),
        (["calibrate", *RUN, "--accountant", "rdp"], "complete target"),
        (["convert", "--mu", "-1"], "--mu must be a finite number >= 0, got -1"),
        (["convert", "--mu", "1", "--rho", "1"], "give one of"),
        (["convert", "--mu", "1", "--epsilon", "1", "--delta", ".1"], "at most one of"),
        (["convert", "--epsilon", "1"], "give one of"),
        (["account", *RUN[:2], "--delta", "1e-5", "--steps", "2500"], "no option --steps; did you mean '--num-steps'?"),
        (["account", "--sigma", "3", "-q", "4096"], "no option --sigma; did you mean '--noise-multiplier'?"),
        (["account", "-q", "4096"], "gdpjax account: error: there is no option -q; see gdpjax account --help"),
        (["plot", "steps", "--sigma=3"], "gdpjax plot steps: error: there is no option --sigma; did you mean"),
        (["sweep-trainings", "spec.toml", "--resum", "--uot", "x"], "no option --uot; did you mean '--out'?"),
        (["audit", "scores.csv", "--", "-x", "--sigma"], "unrecognized arguments: -x --sigma"),
        (["--sigma", "account"], "gdpjax: error: there is no option --sigma"),
        (["bogus"], "invalid choice"),
        ([], "required"),
    ],
)
def test_bad_input_is_one_line_and_status_two(capsys, arguments, message):
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_runs_as_a_module():
    command = [sys.executable, "-W", "error", "-m", "gdpjax", "convert", "--mu", "-1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_long_command_counts_its_seconds_on_a_terminal():
    terminal, silent = Terminal(), io.StringIO()
    with Elapsed(terminal, "gdpjax calibrate"), Elapsed(silent, "gdpjax calibrate"):
        waited = [terminal.getvalue()]
        while "computing, " not in waited[-1]:
            time.sleep(0.05)
            waited.append(terminal.getvalue())
    assert waited[0] == "", "nothing for a quick command"
    assert "gdpjax calibrate: computing, 1 s" in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r"), "wiped out"
    assert silent.getvalue() == ""


def test_a_full_disk_behind_the_standard_output_is_one_line():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "gdpjax", "convert", "--mu", "1"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert "No space left on device" in result.stderr


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        (["--advantage", "0.1"], lambda curve: (curve.advantage().upper, 0.1)),
        (["--tpr", "0.05", "--fpr", "0.01"], lambda curve: (curve.tpr(0.01).upper, 0.05)),
        (["--bayes-success", "0.6"], lambda curve: (curve.bayes_success(0.5).upper, 0.6)),
    ],
)
def test_the_printed_noise_meets_a_target_in_terms_of_attacks(capsys, target, answer):
    run_options = ["--sampling-prob", "0.01", "--num-steps", "1000"]
    noise = float(run(capsys, "calibrate", *target, *run_options).splitlines()[1].split()[1])
    reached, goal = answer(certified(noise, 0.01, 1000))
    assert reached <= goal < 1.001 * reached
    assert main(["calibrate", *target, "--mu", "1", *run_options]) == 2
    assert main(["calibrate", *target, "--accountant", "rdp", *run_options]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("arguments", [["convert", "--mu", "1"], ["convert", "--help"]])
def test_a_reader_that_went_away_is_no_error(arguments):
    """As in ``gdpjax convert --mu 1 | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gdpjax", *arguments]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")
