"""The command ``language``: from public text to private models, their statements and a table.

The folder of a command holds the tokenizer, the public weights, and a folder for each training with its checkpoints,
its weights and its figures. What is finished there is not done again, and a training that was interrupted goes on from
its last checkpoint.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console
from rich.markdown import Markdown

import gdpjax
from experiments.config import LanguageConfig
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.evaluation import perplexity, sample_of
from experiments.language.finetuning import Finetuning
from experiments.language.lora import LoraConfig, Params
from experiments.language.packing import pack_public
from experiments.language.presets import SETTINGS, Settings
from experiments.language.pretraining import pretrain
from experiments.language.sharding import mesh_of, spread
from experiments.language.storage import load_params, save_params
from experiments.language.texts import Texts, max_units, read_texts
from experiments.language.tokenizer import tokenize
from experiments.language.weights import load_published
from experiments.progress import progress_bar
from experiments.tables import table
from gdpjax.sampling import Poisson, TruncatedPoisson
from gdpjax.sweeps import SEED_NOTICE, RunInterrupted, UserError, make_keys, records
from gdpjax.sweeps.records import upper
from gdpjax.training import CheckpointError, start_run

WEIGHTS, FIGURES, STATEMENT, TABLE = "weights.safetensors", "figures.json", "statement.txt", "table.md"
NOT_PRIVATE = "without privacy"
"""The row of the baseline, of which nothing but its perplexity is in the table."""
NO_CLIP = 1e6
"""A clip norm that no gradient reaches, for the baseline without privacy."""
OWN_SETTINGS = ("batch_size", "length", "epochs")
"""Settings of the preset that a command may give itself."""
STEPS_AT_ONCE = 10
"""Steps between two checkpoints."""

NOTES = """\
Perplexity: exp of the mean cross entropy of a token, on about a tenth of the {unit}s, not trained on. Epsilon:
certified, at delta = {delta:g}, of adding or removing one {unit}, for one training with its settings fixed beforehand;
whoever releases several of these models composes them. Not covered by any epsilon, and not for release where its text
is private: this table with its perplexities, and everything of a training without privacy, of which there is no sample
here. Private text: {private}; of each {unit} at most {tokens} tokens are used. {base}."""

Line = Callable[[str, int], Callable[[int], None]]
"""Adds a line to the progress bar, for so many steps, and returns what moves it."""


class Figures(msgspec.Struct):
    """The figures of a training that is finished.

    ``perplexity`` is None if it diverged, and ``epsilon_upper`` where nothing is private. ``num_lost`` of the steps are
    charged, but were not kept.
    """

    perplexity: float | None
    sample: str
    epsilon_upper: float | None
    num_steps: int = 0
    noise_multiplier: float = 0.0
    num_lost: int = 0


def run(config: LanguageConfig) -> None:
    """Train what is missing, print the table, and write it."""
    given = {name: getattr(config, name) for name in OWN_SETTINGS if getattr(config, name) is not None}
    settings = dataclasses.replace(SETTINGS[config.preset], **given)
    console = Console()
    if config.seed is not None:
        console.print(f"[bold yellow]{SEED_NOTICE}")
    try:
        rows, texts = _trained(config, settings, console)
    except KeyboardInterrupt:
        raise RunInterrupted(f"interrupted; the same command goes on from {config.out}") from None
    except (ValueError, CheckpointError) as error:
        raise UserError(str(error)) from error
    page = _table(rows, config, settings, texts)
    records.write_atomically(config.out / TABLE, page.encode())
    console.print(Markdown(page))
    console.print(f"Table, weights and privacy statements: {config.out}", soft_wrap=True)


def _trained(config: LanguageConfig, settings: Settings, console: Console) -> tuple[dict[str, Figures], Texts]:
    """Return the figures of all trainings, made now or before, and the texts."""
    epsilons = (*config.epsilons, math.inf) if config.baseline else config.epsilons
    plans = {_name(epsilon): _plan(config, settings, epsilon) for epsilon in epsilons}
    begin(config, settings)
    console.print("reading texts")
    model = PRESETS[config.preset]
    base = None
    if config.checkpoint is not None:
        model, base = load_published(config.checkpoint, dtype=jnp.float32)
    model = dataclasses.replace(model, compute_dtype=settings.compute_dtype)
    texts = read_texts(config, settings, model.vocab_size)
    with progress_bar(console) as bar:

        def line(words: str, total: int) -> Callable[[int], None]:
            console.print(f"{words}: {total:,} steps")
            task = bar.add_task(words, total=total)
            return lambda done: bar.update(task, completed=done)

        if base is None:
            base = _public_weights(config, settings, model, texts, line)
        rows = {"public only": _judged(model, base, texts, settings, 0.0)}
        for name, plan in plans.items():
            rows[name] = _row(name, _tuning(config, settings, model, plan), base, texts, settings, config, line)
    return rows, texts


def _name(epsilon: float) -> str:
    """Return the name of a training: of its row, its folder and its key. Two epsilons never share one."""
    return NOT_PRIVATE if math.isinf(epsilon) else f"epsilon {float(epsilon)!r}".removesuffix(".0")


def _plan(config: LanguageConfig, settings: Settings, epsilon: float) -> gdpjax.Plan:
    """Return the plan of one training; an infinite epsilon is the baseline without clipping and noise."""
    sizes = (max_units(config), settings.batch_size)
    if config.capacity is None:
        batches = Poisson(*sizes, epochs=settings.epochs)
    else:
        batches = TruncatedPoisson(*sizes, epochs=settings.epochs, capacity=config.capacity)
    tuned = "the preset's settings, which were chosen on public text"
    preset = SETTINGS[config.preset]
    changed = [name for name in OWN_SETTINGS if getattr(settings, name) != getattr(preset, name)]
    if changed:
        values = [f"{name.replace('_', ' ')} {getattr(settings, name):g}" for name in changed]
        tuned += f", except {', '.join(values)}, which whoever ran the command chose: how is not covered by epsilon"
    return gdpjax.make_plan(
        batches,
        clip=settings.clip if math.isfinite(epsilon) else NO_CLIP,
        delta=config.delta,
        epsilon=epsilon,
        unit=config.unit,
        tuned=tuned,
    )


def begin(config: LanguageConfig, settings: Settings) -> None:
    """Write the settings, or refuse a folder of other ones; other epsilons and devices may be asked for later."""
    described = _described(config, settings)
    if (config.out / records.CONFIG).is_file():
        records.refuse_differences(config.out, described)
        return
    # No epsilon covers figures on private text that was held out.
    records.make_folder(config.out, private=True)
    records.write_json(config.out / records.CONFIG, {"config": described})


def _described(config: LanguageConfig, settings: Settings) -> dict[str, Any]:
    """Return what all trainings of a folder have in common, on whatever devices."""
    described = dataclasses.asdict(config) | {"settings": dataclasses.asdict(settings)}
    # What was given in place of the preset's settings is in those; a baseline may be asked for later.
    for name in ("epsilons", "out", "devices", "microbatch_size", "baseline", *OWN_SETTINGS):
        del described[name]
    return json.loads(json.dumps(described, default=str))


def key_of(config: LanguageConfig, settings: Settings, purpose: str) -> jax.Array:
    """Return the key of one purpose: of the system's entropy, or of the seed and everything that was chosen.

    With one seed, trainings with other settings have other noise: the difference of two models that share it would
    have none.
    """
    return make_keys(config.seed, _described(config, settings) | {"purpose": purpose}).training


def _public_weights(config: LanguageConfig, settings: Settings, model: ModelConfig, texts: Texts, line: Line) -> Params:
    """Return the weights that were trained on public text, from the folder or now."""
    path = config.out / WEIGHTS
    if not path.is_file():
        assert texts.public is not None  # it is left out for published weights only
        rows = pack_public(tokenize(texts.public, texts.tokenizer), length=settings.length)
        key = key_of(config, settings, "public text")
        on_step = line("public text", settings.public.num_steps)
        save_params(path, pretrain(model, rows, settings.public, key, on_step))
    return load_params(path)


def _tuning(config: LanguageConfig, settings: Settings, model: ModelConfig, plan: gdpjax.Plan) -> Finetuning:
    """Return one training. Without privacy there is no noise to put elsewhere."""
    lora = LoraConfig(config.rank) if config.method == "lora" else None
    rate = settings.learning_rate if lora is None else settings.lora_learning_rate
    scaled = config.scale_then_privatize and plan.is_private
    return Finetuning(model, plan, rate, lora, config.microbatch_size, scale_then_privatize=scaled)


def _row(
    name: str,
    tuning: Finetuning,
    base: Params,
    texts: Texts,
    settings: Settings,
    config: LanguageConfig,
    line: Line,
) -> Figures:
    """Train, or go on, or read what was finished; return the figures."""
    folder = config.out / name.replace(" ", "_")
    if (folder / FIGURES).is_file():
        return msgspec.json.decode((folder / FIGURES).read_bytes(), type=Figures)
    initial = tuning.initial(base, jax.random.key(0))

    # On several devices each has all data, a part of the weights, and computes the gradients of a part of a batch.
    sharding = None
    if config.devices is not None:
        mesh = mesh_of(config.devices)
        initial = spread(initial, mesh)
        sharding = NamedSharding(mesh, PartitionSpec())
    training = tuning.training()
    data = training.place(*texts.train.arrays, sharding=sharding)
    key = key_of(config, settings, name)
    run = start_run(folder, training, initial, data, key=key, scan=False, resume=True)
    statement = training.statement()
    on_step = line(name, tuning.plan.num_steps)
    on_step(run.step)
    while not run.finished:
        run.advance(STEPS_AT_ONCE, on_step=on_step)

    # Others on the machine must not read what was trained without noise.
    plan = tuning.plan
    mode = 0o666 if plan.is_private else 0o600
    weights = tuning.weights(run.state.params)
    save_params(folder / WEIGHTS, weights, mode)
    records.write_atomically(folder / STATEMENT, f"{statement}\n".encode())
    figures = _judged(
        tuning.config, weights, texts, settings, float(plan.epsilon_bounds().upper) if plan.is_private else None
    )
    figures.num_steps = plan.num_steps
    figures.noise_multiplier = plan.noise_multiplier
    figures.num_lost = run.num_lost
    records.write_atomically(folder / FIGURES, msgspec.json.encode(figures), mode)
    return figures


def _judged(model: ModelConfig, weights: Params, texts: Texts, settings: Settings, epsilon: float | None) -> Figures:
    """Return the figures of a model."""
    sample = sample_of(model, weights, texts.tokenizer, jax.random.key(1), prompt=settings.prompt)
    measured = perplexity(model, weights, texts.held_out)
    return Figures(measured if math.isfinite(measured) else None, sample, epsilon)


def _table(rows: dict[str, Figures], config: LanguageConfig, settings: Settings, texts: Texts) -> str:
    """Return the table as Markdown."""
    cells = []
    for name, row in rows.items():
        measured = "diverged" if row.perplexity is None else f"{row.perplexity:.2f}"
        epsilon = "" if row.epsilon_upper is None else upper(row.epsilon_upper, 3)
        noise = f"{row.noise_multiplier:.3f}" if row.noise_multiplier else ""
        steps = f"{row.num_steps - row.num_lost}, and {row.num_lost} lost" if row.num_lost else str(row.num_steps)
        cells.append((name, measured, epsilon, noise, steps))
    head = ("model", "perplexity", "epsilon", "noise multiplier", "steps")
    notes = NOTES.format(
        delta=config.delta,
        unit=config.unit,
        private=texts.private_name,
        tokens=settings.length * settings.sequences_per_unit,
        base=f"Public text: {texts.public.describe()}" if texts.public else f"Published weights: {config.checkpoint}",
    )
    # What a model that was trained without noise writes may be private text, word for word.
    samples = [f"*{name}*: {' '.join(row.sample.split())}" for name, row in rows.items() if name != NOT_PRIVATE]
    title = f"# Language model {config.preset}, {config.method}"
    return "\n\n".join([title, table(head, cells), notes, "## Samples", *samples]) + "\n"
