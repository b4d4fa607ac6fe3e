"""The command from text to table, on texts and a model that are over in seconds."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import save_file

from experiments.config import LanguageConfig
from experiments.language import command
from experiments.language.config import PRESETS
from experiments.language.presets import Settings
from experiments.language.pretraining import PublicSchedule
from experiments.language.storage import load_params
from gdpjax.sweeps import RunInterrupted, UserError
from gdpjax.training import Run
from tests.eight_devices import report_of
from tests.language.test_model import random_params
from tests.language.test_weights import LLAMA, tensors_of

SMALL = dataclasses.replace(
    PRESETS["tiny"],
    vocab_size=300,
    num_layers=2,
    model_width=16,
    num_heads=2,
    num_kv_heads=1,
    head_width=8,
    hidden_width=24,
    max_length=32,
)
QUICK = Settings(
    length=16,
    sequences_per_unit=2,
    public=PublicSchedule(num_steps=3, batch_size=4, learning_rate=3e-3),
    batch_size=8,
    epochs=2,
    learning_rate=1e-3,
    compute_dtype="float32",
    prompt="the",
)
PUBLISHED = {**LLAMA, "vocab_size": 300}
WORDS = "the cat sat on a mat and saw how an old dog ran by it with two red shoes"


@pytest.fixture(scope="module", autouse=True)
def small_presets():
    """Small settings under the name "tiny"."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "PRESETS", {"tiny": SMALL})
        patch.setattr(command, "SETTINGS", {"tiny": QUICK})
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a public and a private text."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


def write_texts(folder):
    """Write texts of some words."""
    draw, words = np.random.default_rng(0), WORDS.split()

    def text(length):
        return " ".join(draw.choice(words, length))

    lines = [{"text": text(20), "user": f"user {number % 30}"} for number in range(60)]
    (folder / "public.jsonl").write_text("".join(json.dumps({"text": text(30)}) + "\n" for _ in range(20)))
    (folder / "private.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def config_of(texts, out):
    return LanguageConfig(
        private=str(texts / "private.jsonl"),
        public=texts / "public.jsonl",
        unit="user",
        max_units=40,
        epsilons=(2.0,),
        seed=3,
        out=out,
    )


@pytest.fixture
def small(texts, tmp_path):
    # Another seed than ``whole``: its trainings begin with other public weights, which may not share noise.
    return dataclasses.replace(config_of(texts, tmp_path / "out"), seed=4)


def measure_nothing(patch):
    """Leave out perplexity and samples, whose programs take seconds to compile."""

    def perplexity(*args):
        return 9.0

    def sample_of(*args, **options):
        return ""

    patch.setattr(command, "perplexity", perplexity)
    patch.setattr(command, "sample_of", sample_of)


@pytest.fixture
def nothing_measured(monkeypatch):
    measure_nothing(monkeypatch)


@pytest.fixture(params=["no step", pytest.param("every step", marks=pytest.mark.slow)])
def steps(request, monkeypatch):
    """Whether trainings make their steps; without them plans, statements and files are the same."""
    if request.param == "no step":
        monkeypatch.setattr(Run, "finished", True)
    return request.param


@pytest.fixture(scope="module")
def whole(texts, tmp_path_factory):
    """A command that ran from its beginning to its end, but for the steps of the baseline."""
    config = config_of(texts, tmp_path_factory.mktemp("whole") / "out")
    was_finished = Run.finished.fget

    def finished(run):
        return not run.training.plan.is_private or was_finished(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "finished", property(finished))
        command.run(config)
    return config


@pytest.fixture(scope="module")
def public_model(texts, tmp_path_factory):
    """A command that made a tokenizer, and whose public weights are random: their training takes seconds to compile."""
    config = dataclasses.replace(config_of(texts, tmp_path_factory.mktemp("public") / "out"), baseline=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "pretrain", lambda model, *args: random_params(model))
        measure_nothing(patch)
        command.run(dataclasses.replace(config, epsilons=()))
    return config


@pytest.fixture(scope="module")
def adapted(whole, texts, tmp_path_factory):
    """The same with adapters and without the baseline."""
    config = config_of(texts, tmp_path_factory.mktemp("adapted") / "out")
    config = dataclasses.replace(config, method="lora", rank=2, baseline=False)
    begin_with_the_public_model(whole, config)
    with pytest.MonkeyPatch.context() as patch:
        measure_nothing(patch)
        command.run(config)
    return config


def begin_with_the_public_model(whole, config):
    """Put tokenizer and public weights, which were made before, into the folder of another command."""
    config.out.mkdir()
    for name in ("tokenizer.json", command.WEIGHTS):
        shutil.copy(whole.out / name, config.out / name)


def copy_without(config, out, training):
    """Return the command in a copy of its folder that lacks one training."""
    shutil.copytree(config.out, out)
    shutil.rmtree(out / training)
    return dataclasses.replace(config, out=out)


def weights_of(config, name="epsilon_2"):
    return load_params(config.out / name / command.WEIGHTS)


def flat(params):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(params)}


def test_from_text_to_table_and_no_step_is_made_twice(whole, monkeypatch):
    assert whole.out.stat().st_mode & 0o077 == 0, "for the owner alone"
    table = (whole.out / command.TABLE).read_text()
    for name in ("public only", "epsilon 2", "without privacy"):
        assert f"| {name} |" in table
    statement = (whole.out / "epsilon_2" / command.STATEMENT).read_text()
    assert "user" in statement
    assert "epsilon <=" in statement
    figures = json.loads((whole.out / "epsilon_2" / command.FIGURES).read_text())
    assert figures["epsilon_upper"] <= 2.0
    assert figures["num_steps"] == 10  # two epochs of 40 / 8, whatever the number of users

    def never(*args, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr(command, "pretrain", never)
    monkeypatch.setattr(Run, "advance", never)
    command.run(whole)
    assert (whole.out / command.TABLE).read_text() == table


@pytest.mark.slow
def test_an_interrupted_command_goes_on_to_the_same_weights(adapted, tmp_path, nothing_measured, monkeypatch):
    config = copy_without(adapted, tmp_path / "out", "epsilon_2")
    monkeypatch.setattr(command, "STEPS_AT_ONCE", 4)
    advance, calls = Run.advance, []

    def interrupted(run, *args, **options):
        calls.append(run.step)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return advance(run, *args, **options)

    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(RunInterrupted, match="the same command goes on"):
        command.run(config)
    command.run(config)
    assert calls[:3] == [0, 4, 4]
    expected = flat(weights_of(adapted))
    for name, leaf in flat(weights_of(config)).items():
        np.testing.assert_array_equal(leaf, expected[name])


def test_adapters_change_only_their_targets(adapted):
    base, tuned = flat(load_params(adapted.out / command.WEIGHTS)), flat(weights_of(adapted))
    rounded = {name: leaf.astype(jnp.bfloat16).astype(np.float32) for name, leaf in base.items()}
    changed = [name for name in base if not np.array_equal(rounded[name], tuned[name])]
    assert changed == [f"['layers']['attention']['{name}']['kernel']" for name in ("query", "value")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_units": 4}, "expected_batch_size"),
        ({"max_units": None}, "a public bound on the number of users"),
        ({"delta": 2.0}, "delta"),
        ({"epochs": 0.0}, "epochs"),
        ({"length": 33}, "at most max_length = 32"),
        ({"max_units": 20}, "more than the plan's public max_examples"),
        ({"devices": 9}, "from 1 to 1 devices"),
        ({"private": "nowhere"}, "there is no .txt or .jsonl file"),
    ],
)
def test_what_does_not_go_together_is_refused(public_model, small, changes, message):
    begin_with_the_public_model(public_model, small)
    with pytest.raises(UserError, match=message):
        command.run(dataclasses.replace(small, **changes))


def test_a_folder_of_other_settings_is_refused(small):
    command.begin(small, QUICK)
    with pytest.raises(UserError, match="max_units"):
        command.begin(dataclasses.replace(small, max_units=50), QUICK)
    command.begin(dataclasses.replace(small, epsilons=(1.0,)), QUICK)


def test_settings_of_the_command_take_the_place_of_the_presets(public_model, small, steps, nothing_measured):
    config = dataclasses.replace(small, batch_size=10, length=12, epochs=1.0, baseline=False)
    begin_with_the_public_model(public_model, config)
    command.run(config)
    table = (config.out / command.TABLE).read_text()
    assert "| epsilon 2 |" in table
    assert "| without privacy |" not in table
    assert "at most 24 tokens" in table
    assert not (config.out / "without_privacy").exists()
    figures = json.loads((config.out / "epsilon_2" / command.FIGURES).read_text())
    assert figures["num_steps"] == 4  # one epoch of 40 / 10
    statement = (config.out / "epsilon_2" / command.STATEMENT).read_text()
    assert "except batch size 10, length 12, epochs 1, which whoever ran the command chose" in statement


@pytest.mark.slow
def test_devices_share_a_training_and_others_go_on_with_it():
    report = report_of("tests.language.command_on_a_mesh", "--xla_backend_optimization_level=0")
    assert (report["interrupted"], report["devices"]) == (4, 4)
    assert report["error"] <= 2e-5
    assert report["moved"]
    assert "| epsilon 2 |" in report["table"]


@pytest.fixture
def published(public_model, small, tmp_path):
    """A command that begins with published weights in bfloat16, of the shape of these tests' Llama model."""
    folder = tmp_path / "published"
    tensors = {name: x.astype(jnp.bfloat16) for name, x in tensors_of(PUBLISHED).items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    save_file(tensors, folder / "model.safetensors")
    tokenizer = public_model.out / "tokenizer.json"
    # The baseline is not what these tests are about.
    return dataclasses.replace(small, public=None, checkpoint=folder, tokenizer=tokenizer, baseline=False)


def test_published_weights_are_trained_in_float32(published, steps, nothing_measured):
    """Steps of Adam are shorter than half a unit in the last place of most weights in bfloat16."""
    command.run(published)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(weights_of(published))]
    assert {leaf.dtype.name for leaf in leaves} == {"float32"}
    if steps == "every step":
        assert any(np.any(leaf != leaf.astype(jnp.bfloat16).astype(np.float32)) for leaf in leaves)
    table = (published.out / command.TABLE).read_text()
    assert "Published weights" in table
    assert "Public text" not in table


def test_a_tokenizer_of_another_model_is_refused(published):
    """Its units would have a gradient of NaN, and be left out without a word."""
    document = {**PUBLISHED, "vocab_size": 100}
    folder = published.checkpoint
    (folder / "config.json").write_text(json.dumps(document))
    save_file(tensors_of(document), folder / "model.safetensors")
    with pytest.raises(UserError, match="at most the 100 tokens of the model"):
        command.run(published)


def test_truncated_batches_and_scaled_steps(public_model, small, steps, nothing_measured):
    """The options of memory and of the coordinates of the noise go into the plan, and into the statement."""
    config = dataclasses.replace(small, capacity=12, scale_then_privatize=True)
    begin_with_the_public_model(public_model, config)
    command.run(config)
    statement = (config.out / "epsilon_2" / command.STATEMENT).read_text()
    assert "scale-then-privatize" in statement
    assert "12" in statement
    assert "truncated" in statement
    # Without noise there is nothing to put elsewhere.
    baseline = (config.out / "without_privacy" / command.STATEMENT).read_text()
    assert "scale-then-privatize" not in baseline


def test_one_seed_has_other_noise_for_other_settings(small):
    keys = []
    for config in (small, dataclasses.replace(small, method="lora"), dataclasses.replace(small, capacity=12)):
        keys.append(jax.random.key_data(command.key_of(config, QUICK, "epsilon 2")).tolist())
    keys.append(jax.random.key_data(command.key_of(small, QUICK, "epsilon 3")).tolist())
    assert len({tuple(key) for key in keys}) == 4


def test_what_was_trained_without_noise_is_not_shown(public_model, small, nothing_measured, monkeypatch):
    """A model without privacy may recite private text, so that its sample is not in the table."""
    monkeypatch.setattr(Run, "finished", True)
    begin_with_the_public_model(public_model, small)
    command.run(small)
    table = (small.out / command.TABLE).read_text()
    assert "| without privacy |" in table
    assert "*epsilon 2*:" in table
    assert "*without privacy*:" not in table
    for name in (command.WEIGHTS, command.FIGURES):
        assert (small.out / "without_privacy" / name).stat().st_mode & 0o077 == 0


def test_no_two_epsilons_share_a_name(small):
    names = [command._name(epsilon) for epsilon in (2.0, 2, 2.0000001, 1e6, 1e6 + 1, 1e-9, float("inf"))]
    assert names[0] == names[1] == "epsilon 2"
    assert len(set(names)) == 6
