"""The command ``language``: from public text to private models, their statements and a table.

The folder of a command holds the tokenizer, the public weights, and a folder for each training with its checkpoints,
its weights and its figures. What is finished there is not done again, and a training that was interrupted goes on from
its last checkpoint.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.markdown import Markdown

import gdpjax
from experiments.config import LanguageConfig
from experiments.errors import RunInterrupted, UserError
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.evaluation import perplexity, sample_of
from experiments.language.finetuning import Finetuning
from experiments.language.lora import LoraConfig
from experiments.language.packing import pack_public
from experiments.language.presets import SETTINGS, Settings
from experiments.language.pretraining import pretrain
from experiments.language.sharding import check_batch, mesh_of, sizes_of, spread
from experiments.language.storage import load_params, save_params
from experiments.language.texts import Texts, max_units, read_texts
from experiments.language.tokenizer import tokenize
from experiments.language.weights import load_published
from experiments.progress import progress_bar
from experiments.tables import markdown_table
from gdpjax.sampling import Poisson, TruncatedPoisson
from gdpjax.sweeps import SEED_NOTICE, make_keys, records
from gdpjax.sweeps.records import upper
from gdpjax.training import CheckpointError, Data, Run, start_run

TEXTS = "texts_digest.NOT_FOR_RELEASE.txt"
WEIGHTS, FIGURES, STATEMENT, TABLE = "weights.safetensors", "figures.json", "statement.txt", "table.md"
NOT_PRIVATE = "without privacy"
"""The row of the baseline, of which nothing but its perplexity is in the table."""
NO_CLIP = 1e6
"""A clip norm that no gradient reaches, for the baseline without privacy."""
OWN_SETTINGS = ("batch_size", "length", "epochs")
"""Settings of the preset that a command may give itself."""
STEPS_AT_ONCE = 10
"""Steps between two checkpoints."""
UNITS_ON_A_PROCESSOR = 8
"""Units that are taken at a time on a mesh, and where a device does not say how much memory it has."""

NOTES = """\
Perplexity: exp of the mean cross entropy of a token, on {held_out}. Epsilon: certified, at delta = {delta:g}, of adding
or removing one {unit}, for one training with its settings fixed beforehand; whoever releases several of these models
composes them. Not covered by any epsilon, and not for release where its text is private: this table with its
perplexities{baseline}. Private text: {private};
of each {unit} at most {tokens} tokens are used. {base}."""


BASELINE_NOTE = ", and everything of the training without privacy, of which there is no sample here"


class Figures(msgspec.Struct):
    """The figures of a training that is finished.

    ``epsilon_upper`` is None where nothing is private. ``num_lost`` of the steps are charged, but were not kept.

    JSON has no infinities and no NaN, so that the perplexity of a training that diverged is a text.
    """

    perplexity: float | str
    sample: str
    epsilon_upper: float | None
    num_steps: int
    noise_multiplier: float
    num_lost: int = 0


def run(config: LanguageConfig) -> None:
    """Train what is missing, print the table, and write it."""
    settings = _settings(config)
    _check(config, settings)
    _begin(config, settings)
    console = Console()
    if config.seed is not None:
        console.print(f"[bold yellow]{SEED_NOTICE}")
    console.print("reading texts")
    published = None if config.checkpoint is None else load_published(config.checkpoint, dtype=jnp.float32)
    vocab_size = PRESETS[config.preset].vocab_size if published is None else published[0].vocab_size
    texts = read_texts(config, settings, vocab_size, config.out)
    _refuse_other_texts(config, texts)

    try:
        with _bar(console) as bar:
            model, base = published or _public_model(config, settings, texts, bar)
            _check_length(settings, model)
            model = dataclasses.replace(model, compute_dtype=settings.compute_dtype)
            rows = {"public only": _judged(model, base, texts, settings, 0.0, 0, 0.0)}
            for epsilon in (*config.epsilons, math.inf) if config.baseline else config.epsilons:
                name = _name(epsilon)
                tuning = _tuning(config, settings, model, epsilon)
                rows[name] = _row(tuning, base, texts, settings, config, name, bar)
    except KeyboardInterrupt:
        raise RunInterrupted(f"interrupted; the same command goes on from {config.out}") from None
    except CheckpointError as error:
        raise UserError(str(error)) from error

    table = _table(rows, config, settings, texts)
    records.write_atomically(config.out / TABLE, table.encode())
    console.print(Markdown(table))
    console.print(f"Table, weights and privacy statements: {config.out}", soft_wrap=True)


def _name(epsilon: float) -> str:
    """Return the name of a training: of its row, its folder and its key. Two epsilons never share one."""
    return NOT_PRIVATE if math.isinf(epsilon) else f"epsilon {float(epsilon)!r}".removesuffix(".0")


def _settings(config: LanguageConfig) -> Settings:
    """Return the settings of the preset, with those in their place that were given."""
    return dataclasses.replace(SETTINGS[config.preset], **_given(config))


def _given(config: LanguageConfig) -> dict[str, Any]:
    """Return the settings that were given in the place of the preset's."""
    values = {name: getattr(config, name) for name in OWN_SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _tuned(config: LanguageConfig) -> str:
    """Return what the statement says about how the settings were chosen."""
    given = [f"{name.replace('_', ' ')} {value:g}" for name, value in _given(config).items()]
    preset = "the preset's settings, which were chosen on public text"
    if not given:
        return preset
    return f"{preset}, but for {', '.join(given)}, which whoever ran the command chose: how is not covered by epsilon"


def _check_length(settings: Settings, model: ModelConfig) -> None:
    """Refuse sequences that are longer than the model takes."""
    if settings.length > model.max_length:
        raise UserError(f"expected a length of at most {model.max_length}, which is the model's, got {settings.length}")


def _check(config: LanguageConfig, settings: Settings) -> None:
    """Refuse what does not go together, before anything is read."""
    if not config.epsilons or not all(0 < epsilon < math.inf for epsilon in config.epsilons):
        raise UserError(f"expected finite epsilons > 0, got {config.epsilons}")
    if (config.checkpoint is None) != (config.tokenizer is None):
        raise UserError("published weights and their tokenizer belong together: give both --checkpoint and --tokenizer")
    if config.checkpoint is not None and config.public is not None:
        raise UserError("--public is for training from the beginning; leave it out with --checkpoint")
    for name, least in (("batch_size", 1), ("length", 2)):
        count = getattr(config, name)
        if count is not None and count < least:
            raise UserError(f"expected {name} to be a whole number of at least {least}, got {count}")
    if config.epochs is not None and not 0 < config.epochs < math.inf:
        raise UserError(f"expected epochs to be a finite number > 0, got {config.epochs}")
    if config.checkpoint is None:
        _check_length(settings, PRESETS[config.preset])
    most = max_units(config)
    if most < settings.batch_size:
        raise UserError(f"expected max_units of at least the batch size {settings.batch_size}, got {most}")
    if not 0 < config.delta < 1:
        raise UserError(f"expected delta between 0 and 1, got {config.delta}")
    if config.seed is not None and not 0 <= config.seed < 2**32:
        raise UserError(f"expected a seed from 0 to 2^32 - 1, got {config.seed}")
    for name, count in (("capacity", config.capacity), ("microbatch_size", config.microbatch_size)):
        if count is not None and count < 1:
            raise UserError(f"expected {name} to be a whole number of at least 1, got {count}")
    if config.capacity is not None and config.capacity < settings.batch_size:
        raise UserError(f"expected a capacity of at least the batch size {settings.batch_size}, got {config.capacity}")
    if config.device_gb is not None and not config.device_gb > 0:
        raise UserError(f"expected device_gb to be a positive number, got {config.device_gb}")
    if config.device_gb is not None and config.mesh is not None:
        raise UserError("the compiler's account is for one device: on a mesh give --microbatch-size, not --device-gb")
    _mesh(config)


def _begin(config: LanguageConfig, settings: Settings) -> None:
    """Write the settings, or refuse a folder of other ones; other epsilons and devices may be asked for later."""
    described = _described(config, settings)
    if (config.out / records.CONFIG).is_file():
        records.refuse_differences(config.out, described)
        return
    config.out.mkdir(parents=True, exist_ok=True)
    records.write_json(config.out / records.CONFIG, {"config": described})


def _described(config: LanguageConfig, settings: Settings) -> dict[str, Any]:
    """Return what all trainings of a folder have in common, on whatever devices."""
    described = dataclasses.asdict(config) | {"settings": dataclasses.asdict(settings)}
    # What was given in the place of the preset's settings is in those; a baseline may be asked for later.
    for name in ("epsilons", "out", "mesh", "device_gb", "baseline", *OWN_SETTINGS):
        del described[name]
    return json.loads(json.dumps(described, default=str))


def _refuse_other_texts(config: LanguageConfig, texts: Texts) -> None:
    """Keep a digest of all texts and published weights, or refuse those of a folder that was begun with other ones.

    A table would otherwise show trainings on different texts side by side. The digest tells whether somebody's text was
    there, so it is not for release.
    """
    digest = hashlib.sha256()
    for units in (texts.train, texts.held_out):
        for array in units.arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
    if texts.public is not None:
        for document in texts.public.documents:
            digest.update(document.encode())
    if config.checkpoint is not None:
        for path in sorted(config.checkpoint.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    path = config.out / TEXTS
    if not path.is_file():
        records.write_atomically(path, f"{digest.hexdigest()}\n", 0o600)
    elif path.read_text().strip() != digest.hexdigest():
        raise UserError(
            f"the texts or the published weights are not those that {config.out} was begun with (or packages whose "
            "documentation is the public text were upgraded); restore them, or choose another --out"
        )


@contextlib.contextmanager
def _bar(console: Console) -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Give a function that adds a line to a progress bar, and returns what moves it."""
    progress = progress_bar(console)

    def new_line(words: str, total: int) -> Callable[[int], None]:
        if not console.is_terminal:
            console.print(f"{words}: {total:,} steps")
        line = progress.add_task(words, total=total)
        return lambda done: progress.update(line, completed=done)

    with progress:
        yield new_line


def _key(config: LanguageConfig, settings: Settings, purpose: str) -> jax.Array:
    """Return the key of one purpose: of the system's entropy, or of the seed and everything that was chosen.

    With one seed, trainings with other settings have other noise: the difference of two models that share it would
    have none.
    """
    if config.seed is None:
        return gdpjax.fresh_key()
    return make_keys(config.seed, _described(config, settings) | {"purpose": purpose}).training


def _public_model(
    config: LanguageConfig, settings: Settings, texts: Texts, bar: Callable[[str, int], Callable[[int], None]]
) -> tuple[ModelConfig, Any]:
    """Return the model that was trained on public text, from the folder or now."""
    model = dataclasses.replace(PRESETS[config.preset], compute_dtype=settings.compute_dtype)
    path = config.out / WEIGHTS
    if not path.is_file():
        assert texts.public is not None  # it is left out for published weights only
        rows = pack_public(tokenize(texts.public, texts.tokenizer), length=settings.length)
        line = bar("public text", settings.public.num_steps)
        save_params(path, pretrain(model, rows, settings.public, _key(config, settings, "public text"), on_step=line))
    return model, load_params(path)


def _mesh(config: LanguageConfig) -> Mesh | None:
    """Return the devices that share a private training, or None for one device."""
    return None if config.mesh is None else mesh_of(sizes_of(config.mesh))


def _tuning(config: LanguageConfig, settings: Settings, model: ModelConfig, epsilon: float) -> Finetuning:
    """Return one training; an infinite epsilon is the baseline without clipping and noise."""
    lora = LoraConfig(config.rank, config.alpha, config.targets) if config.method == "lora" else None
    try:
        sizes = (max_units(config), settings.batch_size)
        if config.capacity is None:
            batches = Poisson(*sizes, epochs=settings.epochs)
        else:
            batches = TruncatedPoisson(*sizes, epochs=settings.epochs, capacity=config.capacity)
        plan = gdpjax.make_plan(
            batches,
            clip=settings.clip if math.isfinite(epsilon) else NO_CLIP,
            delta=config.delta,
            epsilon=epsilon,
            unit=config.unit,
            tuned=_tuned(config),
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    rate = settings.learning_rate if lora is None else settings.lora_learning_rate
    # Without privacy there is no noise to put elsewhere.
    scaled = config.scale_then_privatize and plan.is_private
    return Finetuning(model, plan, rate, lora, config.microbatch_size, scale_then_privatize=scaled)


def _row(
    tuning: Finetuning,
    base: Any,
    texts: Texts,
    settings: Settings,
    config: LanguageConfig,
    name: str,
    bar: Callable[[str, int], Callable[[int], None]],
) -> Figures:
    """Train, or go on, or read what was finished; return the figures."""
    folder = config.out / name.replace(" ", "_")
    if (folder / FIGURES).is_file():
        return msgspec.convert(records.read_json(folder / FIGURES, Figures), Figures)
    run = _run(tuning, base, texts, settings, config, folder, name)
    statement = run.training.statement()
    line = bar(name, tuning.plan.num_steps)
    line(run.step)
    while not run.finished:
        run.advance(STEPS_AT_ONCE, on_step=line)

    # Others on the machine must not read what was trained without noise.
    mode = 0o666 if tuning.plan.is_private else 0o600
    weights = tuning.weights(run.state.params)
    save_params(folder / WEIGHTS, weights, mode)
    records.write_atomically(folder / STATEMENT, f"{statement}\n".encode())
    plan = tuning.plan
    epsilon_upper = float(plan.epsilon_bounds().upper) if plan.is_private else None
    figures = _judged(tuning.config, weights, texts, settings, epsilon_upper, plan.num_steps, plan.noise_multiplier)
    figures.num_lost = run.num_lost
    records.write_atomically(folder / FIGURES, msgspec.json.encode(figures), mode)
    return figures


def _run(
    tuning: Finetuning, base: Any, texts: Texts, settings: Settings, config: LanguageConfig, folder: Path, name: str
) -> Run:
    """Begin the run of a folder, or resume it."""
    initial = tuning.initial(base, jax.random.key(0))

    # On a mesh each device has all data, a part of the weights, and computes the gradients of a part of a batch.
    mesh, sharding = _mesh(config), None
    if mesh is not None:
        check_batch(tuning.plan.capacity, mesh)
        initial = spread(initial, mesh)
        sharding = NamedSharding(mesh, PartitionSpec())
    try:
        data = tuning.training().place(*texts.train.arrays, sharding=sharding)
    except ValueError as error:
        raise UserError(f"{error} (--max-units)") from None
    training = _fitted(tuning, initial, data, config).training()
    key = _key(config, settings, name)
    return start_run(folder, training, initial, data, key=key, scan=False, resume=True)


def _fitted(tuning: Finetuning, initial: Any, data: Data, config: LanguageConfig) -> Finetuning:
    """Return the training with a microbatch that fits the memory."""
    if config.microbatch_size is not None:
        return tuning
    memory_bytes = _memory_bytes(config)
    if memory_bytes is None or config.mesh is not None:
        # A processor is not quicker with more, and trying sizes out would take longer than a small model's training.
        return dataclasses.replace(tuning, microbatch_size=UNITS_ON_A_PROCESSOR)
    try:
        # A run holds more than a step does: the state of its last checkpoint, and the weights that it began with.
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(tuning.training().init, initial, key)
        held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state, initial)))
        return tuning.fitted(initial, data, max(1.0, memory_bytes - held))
    except ValueError as error:
        raise UserError(f"{error} (--device-gb, --method lora)") from None


def _memory_bytes(config: LanguageConfig) -> float | None:
    """Return the bytes that a step may take, where that was said by the user or the device."""
    if config.device_gb is not None:
        return 1e9 * config.device_gb
    stats = jax.local_devices()[0].memory_stats()
    if stats is None or "bytes_limit" not in stats:
        return None
    return 0.9 * stats["bytes_limit"]


def _judged(
    model: ModelConfig, weights: Any, texts: Texts, settings: Settings, epsilon: float | None, steps: int, noise: float
) -> Figures:
    """Return the figures of a model."""
    sample = sample_of(model, weights, texts.tokenizer, jax.random.key(1), prompt=settings.prompt)
    measured = perplexity(model, weights, texts.held_out)
    return Figures(measured if math.isfinite(measured) else str(measured), sample, epsilon, steps, noise)


def _steps(row: Figures) -> str:
    """Return how many steps the weights come from, and how many were charged beside them."""
    if row.num_lost:
        return f"{row.num_steps - row.num_lost}, and {row.num_lost} lost"
    return str(row.num_steps or "")


def _table(rows: dict[str, Figures], config: LanguageConfig, settings: Settings, texts: Texts) -> str:
    """Return the table as Markdown."""
    cells = []
    for name, row in rows.items():
        epsilon = "" if row.epsilon_upper is None else upper(row.epsilon_upper, 3)
        noise = f"{row.noise_multiplier:.3f}" if row.noise_multiplier else ""
        cells.append((name, f"{float(row.perplexity):.2f}", epsilon, noise, _steps(row)))
    head = ("model", "perplexity", "epsilon", "noise multiplier", "steps")
    if texts.public is None:
        base = f"Published weights: {config.checkpoint}"
    else:
        base = f"Public text: {texts.public.describe()}"
    notes = NOTES.format(
        held_out=texts.held_out_name,
        delta=config.delta,
        unit=config.unit,
        baseline=BASELINE_NOTE if NOT_PRIVATE in rows else "",
        private=texts.private_name,
        tokens=settings.length * settings.sequences_per_unit,
        base=base,
    )
    # What a model that was trained without noise writes may be private text, word for word.
    samples = "\n\n".join(
        f"*{name}*: {' '.join(row.sample.split())}" for name, row in rows.items() if name != NOT_PRIVATE
    )
    model = config.preset if config.checkpoint is None else f"{config.checkpoint.name}, settings of {config.preset}"
    title = f"# Language model {model}, {config.method}"
    return "\n\n".join([title, markdown_table(head, cells), notes, "## Samples", samples]) + "\n"
