"""Flags, defaults, and mistakes: one line, exit code 2, nothing started."""

import pytest

from experiments import cli
from experiments.config import PRESETS, DemoConfig, TrainConfig, identity
from experiments.train import command


def test_mnist_defaults_are_the_papers_first_row():
    _, config = cli.parse(["train", "--dataset", "mnist"])
    expected = {
        "dataset": "mnist",
        "model": "paper_cnn",
        "optimizer": "sgd",
        "noise_multiplier": 1.3,
        "learning_rate": 0.25,
        "l2_clip_norm": 1.5,
        "batch_size": 256,
        "epochs": 15,
        "delta": 1e-5,
    }
    assert expected.items() <= identity(config).items()


def test_flags_override_and_commands_are_told_apart():
    chosen, config = cli.parse(["train", "--epochs", "2", "--dataset=mnist", "--optimizer", "adam", "--seed", "5"])
    assert isinstance(config, TrainConfig)
    assert chosen is cli.COMMANDS["train"]
    assert (config.optimizer.epochs, config.optimizer.optimizer, config.run.seed) == (2, "adam", 5)
    assert config.privacy == PRESETS["mnist"].privacy
    chosen, config = cli.parse(["demo"])
    assert isinstance(config, DemoConfig)
    assert chosen is cli.COMMANDS["demo"]


MISTAKES = [
    ("noise_multiplier", ["--noise-multiplier", "-1"]),
    ("noise_multiplier", ["--noise-multiplier", "nan"]),
    ("l2_clip_norm", ["--l2-clip-norm", "0"]),
    ("delta", ["--delta", "1"]),
    ("epochs", ["--epochs", "0"]),
    ("batch_size", ["--batch-size", "1438"]),
]


@pytest.mark.parametrize(("name", "words"), MISTAKES)
def test_mistakes_are_one_line(name, words, tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["train", *words, "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert name in message
    assert message.count("\n") == 1
    assert not out.exists()


@pytest.fixture
def train_that_fails(monkeypatch):
    """``train`` meets a full disk."""

    def run(config):
        raise OSError(28, "No space left on device", "runs/x/metrics.jsonl")

    monkeypatch.setattr(command, "run", run)


def test_a_full_disk_is_one_sentence(train_that_fails, capsys):
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "error: runs/x/metrics.jsonl: No space left on device\n"
