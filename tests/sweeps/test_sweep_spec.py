"""The file of a sweep: every mistake is refused with its line, before anything runs; and the trials that it means."""

import re

import numpy as np
import pytest

from experiments import cli
from gdpjax import accounting
from gdpjax.sweeps import UserError, list_trials, plan_trials
from tests.sweeps.sweeps import SEVERAL, SMALL, spec_of

HEAD = 'dataset = "digits"\n'
TABLE = HEAD + "[hyperparameters]\n"
BAD = {
    "unknown field": (HEAD + "modle = 3\n", "line 2: unknown field 'modle'; did you mean 'model'?"),
    "unknown hyperparameter": (
        TABLE + "epochs = 1\nlearnig_rate = 0.1\n",
        "line 4: unknown field 'learnig_rate'; did you mean 'learning_rate'?",
    ),
    "no dataset": ("search = 'grid'\n", "dataset must be one of digits"),
    "no such dataset": ('dataset = "mnits"\n', "line 1: dataset must be one of digits, mnist, adult, imdb"),
    "no TOML": (HEAD + "epochs = = 3\n", "is not TOML: Invalid value (at line 2, column 10)"),
    "empty list": (TABLE + "learning_rate = []\n", "line 3: learning_rate = [] leaves nothing to train"),
    "outside its table": (
        HEAD + "learning_rate = 1.0\n", "line 2: unknown field 'learning_rate'; the fields are dataset, model",
    ),
    "empty range": (TABLE + "epsilon = { min = 2, max = 1, count = 3 }\n", "line 3: the range of epsilon needs min"),
    "random without a number": (HEAD + 'search = "random"\n', "line 2: search = "),
    "grid with a number": (HEAD + "num_configurations = 3\n", "line 2: search = "),
    "range without count": (TABLE + "epsilon = { min = 1, max = 2 }\n", "line 3: the range of epsilon needs its count"),
    "nan": (TABLE + "learning_rate = [0.1, nan]\n", "line 3: learning_rate must be a number from 1.17549e-38"),
    "more than float32 holds": (
        TABLE + "learning_rate = { min = 0.1, max = 1e39, count = 3 }\n",
        "line 3: learning_rate must be a number from 1.17549e-38 to 3.40282e+38, got 1e+39",
    ),
    "negative": (TABLE + "noise_multiplier = -1\n", "line 3: noise_multiplier must be a number from 1.17549e-38"),
    "a word": (TABLE + 'l2_clip_norm = "one"\n', "line 3: l2_clip_norm: expected numbers, start:stop"),
    "two numbers": (TABLE + 'epsilon = "1:2"\n', "line 3: epsilon: expected numbers, start:stop:count"),
    "a range of one": (TABLE + 'epsilon = "1:2:1"\n', "a range has 2 to 1000000 values"),
    "the logarithm of zero": (TABLE + 'epsilon = "0:2:log4"\n', "above 0 in the logarithm"),
    "no end": (TABLE + 'epsilon = "1:inf:4"\n', "the ends of a range are finite"),
    "half an epoch": (TABLE + "epochs = 1.5\n", "line 3: epochs must be a whole number from 1"),
    "truth": (TABLE + "epochs = true\n", "line 3: epochs must be a whole number from 1"),
    "two targets": (TABLE + "noise_multiplier = 1\nepsilon = 2\n", "line 4: give either epsilon"),
    "a second program": (
        HEAD + "one_program = true\n[hyperparameters]\nlearning_rate = [0.1, 0.2]\nepochs = [1, 2]\n",
        "line 5: one_program = true promises one compiled program, but each value of epochs needs its own",
    ),
    "too many": (
        TABLE + "learning_rate = { min = 1, max = 2, count = 1000 }\nepsilon = { min = 1, max = 2, count = 1000 }\n",
        "1000000 trials; at most 100000 are run in one sweep",
    ),
    "half a range": (TABLE + "epsilon = { min = 1 }\n", "line 3: epsilon: object missing required field `max`"),
    "negative seed": (TABLE + "seeds = [-1]\n", "line 3: seeds: expected `int` >= 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_mistakes_name_the_line(case):
    text, message = BAD[case]
    with pytest.raises(UserError, match=re.escape(message)):
        list_trials(spec_of(text))


def test_fields_with_dots_have_lines():
    """A hyperparameter may be written as one field, or each end of its range as one."""
    text = HEAD + "hyperparameters . epochs = 0\n"
    with pytest.raises(UserError, match="line 2: epochs must be a whole number"):
        spec_of(text)
    text = HEAD + "[hyperparameters]\nlearning_rate.min = 2.0\nlearning_rate.max = 1.0\n"
    with pytest.raises(UserError, match="line 3: the range of learning_rate needs min < max"):
        spec_of(text)


def test_one_program_may_vary_what_is_traced():
    spec = spec_of("one_program = true\n" + SEVERAL)
    assert len(list_trials(spec)) == 8


def test_grid_is_every_combination_once():
    trials = list_trials(spec_of(SMALL + "learning_rate = [0.1, 0.2]\nepsilon = 2.0\nseeds = [7, 8]\n"))
    assert [t.number for t in trials] == [0, 1, 2, 3]
    assert [(t.settings["learning_rate"], t.seed) for t in trials] == [(0.1, 7), (0.1, 8), (0.2, 7), (0.2, 8)]
    logarithmic = list_trials(spec_of(SMALL + "learning_rate = { min = 0.01, max = 1, count = 3, log = true }\n"))
    assert [t.settings["learning_rate"] for t in logarithmic] == [0.01, 0.1, 1.0]
    assert len({t.settings["learning_rate"] for t in logarithmic}) == 3


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("learning_rate", "1,0.5,1", [1.0, 0.5]),
        ("learning_rate", "2:1:3", [2.0, 1.5, 1.0]),
        ("learning_rate", "1e-7:1e-5:log3", [1e-7, 1e-6, 1e-5]),
        ("batch_size", "1000:10000:log4, 20000", [1000, 2154, 4642, 10000, 20000]),
    ],
)
def test_numbers_and_ranges_are_values_in_order_each_once(name, text, expected):
    trials = list_trials(spec_of(f'{TABLE}{name} = "{text}"\n'))
    assert [trial.settings[name] for trial in trials] == expected


def test_random_search_is_the_same_each_time_and_within_its_ranges():
    text = 'search = "random"\nnum_configurations = 200\nsearch_seed = {}\n' + SMALL.replace("epochs = 1\n", "")
    text += (
        "epochs = { min = 1, max = 4 }\nlearning_rate = { min = 0.01, max = 1.0, log = true }\nl2_clip_norm = [1, 2]"
    )
    first, again, other = (list_trials(spec_of(text.replace("{}", str(seed)))) for seed in (1, 1, 2))
    assert [t.settings for t in first] == [t.settings for t in again] != [t.settings for t in other]
    assert {t.settings["epochs"] for t in first} == {1, 2, 3, 4}
    rates = sorted(t.settings["learning_rate"] for t in first)
    assert 0.01 <= rates[0] < 0.02 < 0.5 < rates[-1] <= 1.0
    assert 0.05 < rates[100] < 0.2, "uniform in the logarithm"
    assert {t.settings["l2_clip_norm"] for t in first} == {1.0, 2.0}


def test_targets_are_met_with_the_noise_that_is_used():
    """The noise multiplier is a float32 number, the certified epsilon is the plan's own, and within the target."""
    trials = plan_trials(spec := spec_of(SMALL + "epsilon = [1.0, 3.0]\n"), list_trials(spec), 64)
    for trial, target in zip(trials, (1.0, 3.0), strict=True):
        noise = trial.settings["noise_multiplier"]
        assert np.float32(noise) == noise == trial.plan.noise_multiplier == trial.cost.noise_multiplier
        assert 0.99 * target < trial.cost.epsilon_upper <= target * (1 + 1e-9)
        lower, upper = trial.plan.epsilon_bounds()
        assert trial.cost.epsilon_upper == pytest.approx(float(upper), rel=1e-6)
        assert trial.cost.epsilon_lower == pytest.approx(float(lower), rel=1e-6)


def planned(noise_multiplier, delta):
    """The only trial of three epochs of 100 steps on 10,000 examples."""
    text = f"delta = {delta}\n{TABLE}batch_size = 100\nepochs = 3\nnoise_multiplier = {noise_multiplier}\n"
    (trial,) = plan_trials(spec := spec_of(text), list_trials(spec), 10_000)
    return trial


def test_a_trial_costs_what_its_plan_states():
    trial = planned(1.3, 1e-5)
    cost = trial.cost
    assert (cost.num_steps, cost.delta, cost.sampling_prob) == (300, 1e-5, pytest.approx(0.01))
    assert cost.mu_clt == pytest.approx(0.01 * np.sqrt(300 * np.expm1(1 / 1.3**2)), rel=1e-5)
    assert cost.neighboring_relation == "replace_special"
    assert 0 < cost.epsilon_lower <= cost.epsilon_upper <= cost.epsilon_moments_accountant
    assert cost.epsilon_clt == pytest.approx(cost.epsilon_upper, rel=0.2)
    assert cost.overflow == trial.plan.overflow


def test_overflow_is_paid_in_the_upper_bound():
    """Batches that do not fit are charged to delta, of which they take a part in 10^5 here."""
    cost = planned(500.0, 6e-14).cost
    run = (cost.noise_multiplier, cost.sampling_prob, cost.num_steps)
    left = (6e-14 - cost.overflow) / (1 - cost.overflow)
    bound = float(accounting.moments_accountant_epsilon(*run, left))
    assert cost.epsilon_moments_accountant == pytest.approx(bound, rel=1e-9)
    assert cost.epsilon_moments_accountant > accounting.moments_accountant_epsilon(*run, 6e-14)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("noise_multiplier = [2.0, 0.05]", "no plan for noise_multiplier 0.05, .*: noise_.* too small for finite"),
        ("epsilon = [8, 1000, 1e6]", "no plan for epsilon 1000.0, batch_size .*: .* cannot be reached: the"),
    ],
)
def test_settings_without_a_plan_are_refused(line, message):
    """Trap 87: no row may be labelled with an epsilon that it has not."""
    spec = spec_of(SMALL + line + "\n")
    with pytest.raises(UserError, match=r"line \d+: " + message):
        plan_trials(spec, list_trials(spec), 64)


def test_absent_files_are_one_line_and_nothing_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    assert cli.main(["sweep", "none.toml"]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
    (tmp_path / "sweep.toml").write_text('dataset = "adult"\n')
    assert cli.main(["sweep", "sweep.toml"]) == 2
    assert "Adult: no a9a" in capsys.readouterr().err
    assert cli.main(["sweep", "sweep.toml", "--width", "0"]) == 2
    assert cli.main(["sweep", "sweep.toml", "--memory-gb", "nan"]) == 2
    assert not (tmp_path / "runs").exists()
