"""``gdpjax new``, ``train``, ``sweep-trainings`` and ``sweep-report``: from a template to a report."""

import json
import re
import sys
from pathlib import Path

import pytest

from gdpjax.cli import main


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return the folder that ``gdpjax new`` makes."""
    folder = tmp_path_factory.mktemp("project")
    assert main(["new", str(folder)]) == 0
    yield folder
    sys.modules.pop("my_task", None)


def test_the_template_trains(project, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", str(project / "train.toml"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "epsilon, certified" in said
    assert "accuracy (%)" in said
    result = json.loads((out / "result.json").read_text())
    assert result["privacy"]["epsilon_upper"] <= 3.0
    assert result["accuracy"] > 0.5

    # What was left at the defaults of build and optimizer is on record, too, and so are the target and the spec.
    config = json.loads((out / "config.json").read_text())
    assert config["hyperparameters"] == result["hyperparameters"]
    noise_multiplier = result["hyperparameters"].pop("noise_multiplier")
    assert noise_multiplier == result["privacy"]["noise_multiplier"]
    assert result["hyperparameters"] == {
        "learning_rate": 0.1,
        "l2_clip_norm": 1.0,
        "epsilon": 3.0,
        "batch_size": 50,
        "epochs": 3,
        "momentum": 0.9,
        "label_smoothing": 0.0,
        "width": 16,
    }
    assert (out / "spec.toml").read_text() == (project / "train.toml").read_text()
    assert main(["train", str(project / "train.toml"), "--out", str(out)]) == 2
    assert "already holds a run: add --resume" in capsys.readouterr().err
    assert main(["train", str(project / "train.toml"), "--out", str(out), "--resume"]) == 0


@pytest.mark.slow
def test_the_template_is_swept(project, tmp_path, capsys):
    out = tmp_path / "sweep"
    assert main(["sweep-trainings", str(project / "sweep.toml"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "24 of 24 trials finished, 0 failed." in said
    text = (out / "report" / "index.html").read_text()
    assert "20% of the training" in text
    before = sorted((out / "parts").iterdir())
    assert main(["sweep-trainings", str(project / "sweep.toml"), "--out", str(out), "--resume"]) == 0
    assert sorted((out / "parts").iterdir()) == before
    assert main(["sweep-report", str(out)]) == 0


@pytest.mark.filterwarnings("ignore:PRIVATE")
@pytest.mark.parametrize("what", ["score", "parameters"])
def test_a_model_that_is_not_finite_is_a_failure_and_is_kept(what, tmp_path, capsys, monkeypatch):
    """The run ends with status 1, as a trial of a sweep would fail, and its files are there."""
    name = f"not_finite_{what}"
    scale = {"score": "jnp.nan", "parameters": "1.0"}[what]
    rate = {"score": "0.1", "parameters": "1e38"}[what]
    (tmp_path / f"{name}.py").write_text(
        "import jax.numpy as jnp\nimport numpy as np\nfrom gdpjax.sweeps import Model\n"
        "X = np.ones((16, 1), np.float32)\nload = lambda: (X, X)\n"
        "def build(example):\n"
        "    return Model(lambda key: jnp.zeros(1), lambda w, x: jnp.sum((w - x) ** 2),\n"
        f"        lambda w, x: {{'size': {scale} * jnp.minimum(jnp.abs(w[0]), 1.0)}})\n"
    )
    (tmp_path / "train.toml").write_text(
        f'data = "{name}:load"\nmodel = "{name}:build"\noptimizer = "sgd"\ndelta = 1e-3\n[hyperparameters]\n'
        f"learning_rate = {rate}\nl2_clip_norm = 1e3\nnoise_multiplier = 2.0\nbatch_size = 8\nepochs = 1\n"
    )
    assert main(["train", str(tmp_path / "train.toml"), "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    expected = {"score": "the score size is nan", "parameters": "diverged: the trained parameters are not finite"}
    assert expected[what] in said.err
    assert "epsilon, certified" in said.out
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize("failing", ["learning_rate = [3e38, 0.1]", "learning_rate = 0.1"])
def test_a_sweep_of_which_a_trial_failed_ends_with_status_1(failing, project, tmp_path, capsys):
    text = (project / "train.toml").read_text()
    spec = project / "some.toml"
    spec.write_text(re.sub(r"(?m)^learning_rate = .*$", failing, text))
    has_failed = "3e38" in failing
    arguments = ["sweep-trainings", str(spec), "--out", str(tmp_path / "sweep")]
    assert main(arguments) == (1 if has_failed else 0)
    said = capsys.readouterr().out
    assert ("2 of 2 trials finished, 1 failed" if has_failed else "1 of 1 trial finished, 0 failed") in said
    assert (tmp_path / "sweep" / "report" / "index.html").is_file()


def test_a_folder_with_other_files_is_not_written_into(tmp_path, capsys):
    (tmp_path / ".git").mkdir()
    (tmp_path / "thesis.tex").write_text("")
    assert main(["new", str(tmp_path)]) == 2
    assert f"{tmp_path} holds other files, such as thesis.tex; choose a new folder or an empty one" in (
        capsys.readouterr().err
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", "thesis.tex"]
    (tmp_path / "thesis.tex").unlink()
    assert main(["new", str(tmp_path)]) == 0, "a new repository is empty"


WRONG = {
    'data = "my_task:lood"': r"line 2: data: the module my_task has no function lood; did you mean 'load'\?",
    'data = "my_tusk:load"': r"line 2: importing my_tusk failed: ModuleNotFoundError: No module named 'my_tusk'",
    'model = "builtins:nope"': r"line 3: model: the module builtins has no function nope",
    'data = "my_task"': r'line 2: data must be "module:function", got \'my_task\'',
    'data = "my_task.py:load"': r'line 2: data must be "module:function", got \'my_task.py:load\'',
    'optimizer = ["sgd", "adam"]': r"line 4: optimizer must be .*, got ",
    'optimizer = "sdg"': r"line 4: optimizer must be \"module:function\", or one of .*, got 'sdg'; did you mean",
    "epochs = 0": r"line 12: epochs must be a whole number from 1",
    "epochs = [1, 2]": r"line 7: train takes one value of each hyperparameter, got 2 trials",
    "batch_size = 2000": r"line 11: expected_batch_size must be at least 1 and at most num_examples=1000, got 2000",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_spec_is_refused_with_its_line(line, project, tmp_path, capsys):
    name = line.split(" ")[0]
    text = re.sub(rf"(?m)^{name} = .*$", lambda _: line, (project / "train.toml").read_text())
    spec = project / "wrong.toml"
    spec.write_text(text)
    assert main(["train", str(spec), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert re.search(WRONG[line], said), said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_score_that_there_is_not_is_refused_before_a_training(project, tmp_path, capsys):
    spec = project / "scored.toml"
    spec.write_text((project / "train.toml").read_text().replace("delta =", 'score = "auc"\ndelta =', 1))
    assert main(["train", str(spec), "--out", str(tmp_path / "run")]) == 2
    assert "line 5: score must be one of accuracy, got 'auc'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_module_of_another_folder_is_not_taken_for_this_one(project, tmp_path, capsys):
    # The module is imported, and then more examples are asked for in a batch than there are.
    too_large = re.sub(r"(?m)^batch_size = .*$", "batch_size = 2000", (project / "train.toml").read_text())
    (project / "too_large.toml").write_text(too_large)
    assert main(["train", str(project / "too_large.toml"), "--out", str(tmp_path / "run")]) == 2
    assert Path(sys.modules["my_task"].__file__).parent == project
    assert main(["new", str(tmp_path / "second")]) == 0
    assert main(["train", str(tmp_path / "second" / "train.toml"), "--out", str(tmp_path / "other")]) == 2
    assert "has the name of another module" in capsys.readouterr().err
