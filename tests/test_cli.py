"""The command line prints figures with their standing and caveats, and says what is wrong in one line."""

import json
import math

import pytest

from gdpjax.accounting import (
    certified,
    clt_epsilon,
    clt_mu_poisson,
    epsilon_bounds,
    gdp_epsilon,
    moments_accountant_epsilon,
)
from gdpjax.cli import main

KEYS = ["num_steps", "sampling_prob", "delta", "mu_clt", "epsilon_clt", "clt_reliable", "mu_upper", "mu_failure"]
KEYS += ["epsilon_lower", "epsilon_upper", "epsilon_moments_accountant"]
MNIST = ["--num-examples", "60000", "--batch-size", "256", "--epochs", "15"]


def run(capsys, *arguments):
    """Return what a command printed, which succeeds without a word on the standard error."""
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def run_json(capsys, *arguments):
    """Return what a command printed with --json; NaN and infinities are no JSON."""
    return json.loads(run(capsys, *arguments, "--json"), parse_constant=pytest.fail)


def lines_by_quantity(table):
    """Return the lines of a table by their first words."""
    found, key = {}, ""
    for line in table.splitlines():
        assert len(line) <= 80
        # The last column is wrapped.
        if line.startswith(" "):
            found[key] += f" {line.strip()}"
        else:
            key = line.split()[0]
            found[key] = line
    return found


def test_account_json(capsys):
    """The figures are those of the Python functions, and in their order."""
    result = run_json(capsys, "account", "--noise-multiplier", "1.3", *MNIST, "--delta", "1e-5")
    assert list(result) == ["noise_multiplier", *KEYS]
    training = (1.3, 256 / 60_000, 3516)
    assert tuple(result[name] for name in ("noise_multiplier", "sampling_prob", "num_steps")) == training
    assert result["delta"] == 1e-5
    assert result["mu_clt"] == clt_mu_poisson(*training)
    assert result["epsilon_clt"] == clt_epsilon(*training, 1e-5)
    assert result["epsilon_moments_accountant"] == moments_accountant_epsilon(*training, 1e-5)
    assert result["clt_reliable"] is True
    assert (result["epsilon_lower"], result["epsilon_upper"]) == epsilon_bounds(*training, 1e-5)
    assert result["epsilon_lower"] <= 0.86454 <= result["epsilon_upper"] < result["epsilon_moments_accountant"]
    assert result["mu_failure"] == 1e-10
    assert result["mu_clt"] < result["mu_upper"] < 1.1 * result["mu_clt"]


def test_account_table_states_every_standing(capsys):
    """The table has a line for each figure, which says whether it is certified, a bound or asymptotic."""
    options = ["--noise-multiplier", "1", "--sampling-prob", ".01", "--num-steps", "100", "--delta", "1e-5"]
    table = run(capsys, "account", *options)
    lines = lines_by_quantity(table)
    assert list(lines) == ["quantity", "noise_multiplier", *KEYS]
    assert lines["delta"].split()[1] == "1e-05"
    for key in ("mu_clt", "epsilon_clt"):
        assert "asymptotic, no guarantee: may understate" in lines[key]
    for key in ("mu_upper", "epsilon_lower", "epsilon_upper"):
        assert "certified" in lines[key]
    assert "upper bound" in lines["epsilon_moments_accountant"]

    # The column of standings is aligned with its heading.
    heading, first_line, *_ = table.splitlines()
    assert heading.index("standing") == first_line.index("given")


def test_a_delta_above_one_over_the_size_is_called_too_large(capsys):
    """Publishing one of 60,000 examples at random meets such a delta."""
    for delta, is_large in (("1e-5", False), ("1e-3", True)):
        table = run(capsys, "account", "--noise-multiplier", "1", *MNIST, "--delta", delta)
        assert ("TOO LARGE" in lines_by_quantity(table)["delta"]) == is_large


def test_a_run_without_noise_is_said_not_to_be_private(capsys):
    """Every figure is infinite, unless delta covers that anyone takes part, and every line says what is not private."""
    arguments = ["account", "--noise-multiplier", "0", *MNIST, "--delta", "1e-5"]
    for line in lines_by_quantity(run(capsys, *arguments)).values():
        if line.startswith(("epsilon", "mu_clt")):
            assert "inf" in line
            assert "NOT PRIVATE" in line

    result = run_json(capsys, *arguments)
    assert list(result) == ["noise_multiplier", *KEYS]
    assert result["epsilon_lower"] == result["epsilon_upper"] == result["mu_upper"] == "inf"
    rare = ["--sampling-prob", "1e-9", "--num-steps", "1"]
    assert run_json(capsys, *arguments[:3], *rare, "--delta", "1e-5")["epsilon_lower"] == 0


KEY_OF_ACCOUNTANT = {"numeric": "epsilon_upper", "rdp": "epsilon_moments_accountant", "clt": "epsilon_clt"}


@pytest.mark.parametrize("accountant", ["numeric", "rdp", "clt"])
def test_calibrate(capsys, accountant):
    """The noise meets the target by the accountant that was chosen, and the table says whether that is safe."""
    arguments = ["calibrate", "--epsilon", "2", "--delta", "1e-5", *MNIST, "--accountant", accountant]
    result = run_json(capsys, *arguments)
    assert list(result) == ["noise_multiplier", "epsilon", *KEYS]
    assert (result["epsilon"], result["delta"]) == (2.0, 1e-5)
    epsilon = result[KEY_OF_ACCOUNTANT[accountant]]
    assert epsilon == pytest.approx(2.0, rel=1e-5)
    assert result["mu_upper"] is None, "it takes half a minute to compile, and nobody asked"

    line = lines_by_quantity(run(capsys, *arguments))["noise_multiplier"]
    standing = "may understate" if accountant == "clt" else "safe"
    assert standing in line
    assert float(line.split()[1]) == result["noise_multiplier"]


@pytest.mark.parametrize(("epsilon", "sampling_prob", "num_steps"), [(4, 0.01, 1000), (1.5, 0.05, 50), (3, 0.004, 9)])
def test_the_printed_noise_meets_the_target(capsys, epsilon, sampling_prob, num_steps):
    """The number that is printed, with its rounding, meets the target, and hardly less would not."""
    options = ["--epsilon", epsilon, "--delta", 1e-5, "--sampling-prob", sampling_prob, "--num-steps", num_steps]
    table = run(capsys, "calibrate", *(str(option) for option in options))
    noise_multiplier = float(table.splitlines()[1].split()[1])
    reached = epsilon_bounds(noise_multiplier, sampling_prob, num_steps, 1e-5)
    assert reached.upper <= epsilon
    with_less = epsilon_bounds(noise_multiplier * (1 - 1e-5), sampling_prob, num_steps, 1e-5)
    assert with_less.upper > epsilon


def test_what_a_person_may_copy_is_rounded_to_the_safe_side(capsys):
    """In the table upper bounds are rounded up and lower bounds down, and the options are as they were given."""
    options = ["--noise-multiplier", "1.1", "--sampling-prob", "0.0123456789", "--num-steps", "77", "--delta", "1e-5"]
    exact = run_json(capsys, "account", *options)
    printed = {key: line.split()[1] for key, line in lines_by_quantity(run(capsys, "account", *options)).items()}
    for key in ("mu_clt", "epsilon_clt", "mu_upper", "epsilon_upper", "epsilon_moments_accountant"):
        assert len(printed[key]) <= 6
        assert exact[key] <= float(printed[key]) < exact[key] * (1 + 1e-3), key
    exact_lower = exact["epsilon_lower"]
    assert exact_lower * (1 - 1e-3) < float(printed["epsilon_lower"]) <= exact_lower
    assert float(printed["sampling_prob"]) == 0.0123456789


def test_calibrate_to_mu_reports_the_mu_of_its_target(capsys):
    """The certified mu is that of the target's failure probability: at another one it would be above the target."""
    run_of_all = ["--sampling-prob", "1", "--num-steps", "10", "--delta", "1e-5"]
    result = run_json(capsys, "calibrate", "--mu", "0.5", "--failure", "1e-3", *run_of_all)
    assert result["mu_failure"] == 1e-3
    assert 0.4999 < result["mu_upper"] <= 0.5
    assert result["noise_multiplier"] < math.sqrt(10) / 0.5, "what fails needs no noise"


def test_convert_to_a_delta_below_all_floats(capsys):
    """It is not rounded to zero."""
    found = run_json(capsys, "convert", "--mu", "0.01", "--epsilon", "9")
    assert 0 < found["delta"] < 1e-300
    assert found["standing"]["delta"] == "upper bound"


def test_convert(capsys):
    """Statements of mu, epsilon and rho are converted into each other where one implies the other."""
    of_mu = run_json(capsys, "convert", "--mu", "1", "--delta", "1e-5")
    epsilon = of_mu["epsilon"]
    assert epsilon == gdp_epsilon(1e-5, 1.0)
    assert of_mu["rho"] == 0.5
    assert of_mu["standing"]["epsilon"] == "exact"

    of_epsilon = run_json(capsys, "convert", "--epsilon", str(epsilon), "--delta", "1e-5")
    assert of_epsilon["mu"] == pytest.approx(1.0, rel=1e-12)
    assert "Gaussian mechanism" in of_epsilon["standing"]["mu"]

    # Zero-concentrated DP implies no mu, and a slightly larger epsilon.
    of_rho = run_json(capsys, "convert", "--rho", "0.5", "--delta", "1e-5")
    assert of_rho["mu"] is None
    assert "not implied" in of_rho["standing"]["mu"]
    assert epsilon < of_rho["epsilon"] < 1.1 * epsilon
    assert of_rho["standing"]["epsilon"] == "upper bound"
    inverse = run_json(capsys, "convert", "--rho", "0.5", "--epsilon", str(of_rho["epsilon"]))
    assert inverse["delta"] == pytest.approx(1e-5, rel=1e-6)
    assert "needs --delta" in run(capsys, "convert", "--mu", "1")


RUN = ["--sampling-prob", ".1", "--num-steps", "10", "--delta", "1e-5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["account", "--noise-multiplier", "-1", *RUN], "noise_multiplier must be a finite number > 0, got -1"),
        (["account", "--noise-multiplier", "1", *RUN[:-1], "1"], "delta must be a number strictly between 0 and 1"),
        (
            ["account", "--noise-multiplier", "1", "--num-examples", "0", "--batch-size", "1", *RUN[2:]],
            "max_examples must be a whole number",
        ),
        (["account", "--noise-multiplier", "1", *RUN[2:]], "give either --max-examples and --expected-batch-size"),
        (["account", "--noise-multiplier", "1", *RUN, "--num-examples", "5"], "give either --max-examples"),
        (["account", "--noise-multiplier", "x", *RUN], "--noise-multiplier: invalid float value: 'x'"),
        (["calibrate", "--epsilon", "2", "--mu", "1", *RUN], "give one complete target: both epsilon and delta, or mu"),
        (["convert", "--mu", "-1"], "--mu must be a finite number >= 0, got -1"),
        (["convert", "--epsilon", "1"], "give one of --mu and --rho"),
        (["account", "--sigma", "3", "-q", "4096"], "no option --sigma; did you mean '--noise-multiplier'?"),
        (["sweep-trainings", "spec.toml", "--resum", "--uot", "x"], "no option --uot; did you mean '--out'?"),
        (["bogus"], "invalid choice"),
        ([], "required"),
    ],
)
def test_bad_input_is_one_line_and_status_two(capsys, arguments, message):
    """A wrong command ends with status 2 and one line on the standard error."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        (["--advantage", "0.1"], lambda curve: (curve.advantage().upper, 0.1)),
        (["--tpr", "0.05", "--fpr", "0.01"], lambda curve: (curve.tpr(0.01).upper, 0.05)),
        (["--bayes-success", "0.6"], lambda curve: (curve.bayes_success(0.5).upper, 0.6)),
    ],
)
def test_the_printed_noise_meets_a_target_in_terms_of_attacks(capsys, target, answer):
    """The certified risk of the printed noise is just below its target, which goes with no other one."""
    run_options = ["--sampling-prob", "0.01", "--num-steps", "1000"]
    table = run(capsys, "calibrate", *target, *run_options)
    noise_multiplier = float(table.splitlines()[1].split()[1])
    reached, goal = answer(certified(noise_multiplier, 0.01, 1000))
    assert reached <= goal < 1.001 * reached
    assert main(["calibrate", *target, "--mu", "1", *run_options]) == 2
    assert main(["calibrate", *target, "--accountant", "rdp", *run_options]) == 2
    capsys.readouterr()
