"""The configuration of an experiment, one frozen dataclass a concern; the command line's flags come from these.

`PRESETS` holds the defaults of ``train`` for each data set, so ``train --dataset mnist --help`` shows the paper's.
"""

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec
import tyro

DatasetName = Literal["digits", "mnist", "adult", "imdb", "movielens", "mnist_scattering", "imdb_words"]
ModelName = Literal["mlp", "paper_cnn", "paper_mlp", "paper_text", "paper_recommender", "linear", "factors"]
OptimizerName = Literal["sgd", "adam"]
ReproduceName = Literal["mnist", "adult", "imdb", "movielens", "figure4", "all", "imdb-clipping", "figures"]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The data to learn from."""

    dataset: DatasetName = "digits"
    """digits: 1,797 images of scikit-learn, no download. mnist, adult (a9a), imdb, movielens (1M): from the
    folder in GDPJAX_DATA, or downloaded. mnist_scattering, imdb_words: the same images and reviews as features for a
    linear model, the former in coordinates that scikit-learn's digits chose."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    model: ModelName = "mlp"
    """mlp: one hidden layer of 64 tanh units, for images. linear: for vectors of features. factors: for pairs of a user
    and a movie. Those named paper_...: the networks of arXiv:1911.11607, for 28x28 images, vectors of features, reviews
    of 256 words, and pairs of a user and a movie."""


@dataclasses.dataclass(frozen=True)
class PrivacyConfig:
    """The numbers that decide the privacy of a run, together with the batch size and the epochs."""

    noise_multiplier: float
    """Standard deviation of the noise divided by the sensitivity of the clipped sum."""
    l2_clip_norm: float
    """Largest l2 norm of one example's gradient; longer ones are scaled down to it."""
    delta: float
    """The delta of the (epsilon, delta) that is reported."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, which uses the noisy gradients."""

    optimizer: OptimizerName
    """DP-SGD or DP-Adam: the same noisy gradient, another step."""
    learning_rate: float
    """Step size."""
    batch_size: int
    """Expected size of a Poisson batch; every example joins with probability batch_size / (number of examples)."""
    epochs: int
    """Passes over the data in expectation: round(epochs * examples / batch_size) steps."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The folder of the run; nothing here changes what is computed, except the seed."""

    out: Path | None = None
    """Folder of the run. Default: runs/<dataset>-<date and time>."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, bit for bit."""
    seed: int | None = None
    """Makes the run reproducible, and so NOT private against anyone who knows the seed. Default: system entropy."""
    diagnostics: bool = True
    """Write training losses and gradient norms to a file that is outside epsilon and not for release."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train one model with differential privacy."""

    data: DataConfig
    model: ModelConfig
    privacy: PrivacyConfig
    optimizer: OptimizerConfig
    run: RunConfig = RunConfig()


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Train on digits with the defaults of train, print its epsilon and save a figure."""

    run: RunConfig = RunConfig()


@dataclasses.dataclass(frozen=True)
class FiguresConfig:
    """Draw the figures of docs/fdp.md and correlated.md; the histogram uses the Adult data if GDPJAX_DATA has them."""

    output: Path = Path("docs/figures")
    """Folder of the SVG files."""


@dataclasses.dataclass(frozen=True)
class CorrelatedConfig:
    """Compare correlated noise with Poisson DP-SGD at equal epsilon. Interrupted, the same command goes on."""

    task: Literal["adult", "mnist"] = "adult"
    """adult: logistic regression, minutes on one core. mnist: the network of arXiv:1911.11607, hours on two
    cores."""
    seeds: int = 5
    """Trainings of each method at each epsilon, with the settings that were chosen on held-out training data."""
    runs: Path = Path("runs/correlated")
    """Folder of what was trained; a training on record is not run again."""
    results: Path = Path("benchmarks/results")
    """Folder of the result file and its table."""
    figures: Path = Path("docs/figures")
    """Folder of the figure."""


@dataclasses.dataclass(frozen=True)
class LanguageConfig:
    """Fine-tune a language model privately, at several epsilons. Interrupted, the same command goes on."""

    preset: Literal["tiny", "small", "124M", "355M", "1B"] = "tiny"
    """Shape of the model, and how it is trained: lengths, batch, epochs, learning rates (docs/language.md lists
    them). With --checkpoint the shape is that of the weights. tiny: minutes on two cores. From 124M on for a GPU."""
    batch_size: int | None = None
    """Expected number of units in a batch of private training, at most --max-units. Default: the preset's."""
    length: int | None = None
    """Tokens in a sequence, at most those that the model takes. Default: the preset's."""
    epochs: float | None = None
    """Expected times that a unit takes part in private training. Default: the preset's."""
    baseline: bool = True
    """Train without privacy, too, to compare. --no-baseline leaves that out."""
    private: str = "scipy"
    """Text to fine-tune on: scipy or optax (docstrings that stand in for private text), or a
    .jsonl or .txt file, or a folder of them; see docs/language.md. A line of a .jsonl file is {"text": ..., "user":
    ...}."""
    public: Path | None = None
    """Public text for the tokenizer and for pre-training: a .jsonl or .txt file, or a folder of them. Not with
    --checkpoint. Default: documentation that every installation has."""
    unit: Literal["document", "user"] = "document"
    """What epsilon is for: one document, or all documents of one user."""
    max_units: int | None = None
    """A public bound on the number of documents or users; how many there are is private. At least the batch size.
    Needed for files of your own."""
    method: Literal["full", "lora"] = "full"
    """Train all weights, or low-rank adapters over a frozen base in bfloat16."""
    rank: int = 8
    """Rank of the adapters."""
    epsilons: tuple[float, ...] = (1.0, 3.0, 8.0)
    """One private training for each."""
    delta: float = 1e-5
    """Of (epsilon, delta)."""
    checkpoint: Path | None = None
    """Published weights to begin with, a folder of the Llama or Gemma family, instead of public pre-training."""
    tokenizer: Path | None = None
    """tokenizer.json of the published weights."""
    capacity: int | None = None
    """At most so many units in a batch (truncated Poisson), which bounds the memory and the time of a step. At least
    the batch size; the nearer it is, the more noise is needed. Default: no bound; a batch that is too large
    for the memory planned for it ends the run."""
    scale_then_privatize: bool = False
    """Clip and noise in the coordinates in which Adam takes its steps (arXiv:2507.01129), at the same epsilon."""
    microbatch_size: int = 8
    """Units whose gradients are computed at a time: ``language-cost`` says how many fit a device."""
    devices: int | None = None
    """Devices that share the units of a batch and the weights. Their number has to divide the capacity of a batch.
    Default: one device."""
    seed: int | None = None
    """Makes a run reproducible, and NOT private against those who know it. Default: the system's entropy."""
    out: Path = Path("runs/language")
    """Folder of tokenizer, weights, checkpoints and the table; one for each choice of texts and settings."""


@dataclasses.dataclass(frozen=True)
class LanguageCostConfig:
    """Predict the operations and the memory of a private step of a language model, and what fits a device."""

    preset: Literal["tiny", "small", "124M", "355M", "1B", "7B"] = "124M"
    """The shape of the model."""
    device_gb: float = 80.0
    """Memory of the device, in 10^9 bytes. XLA's workspaces and fragments take some of it too: leave a tenth."""
    units: int = 1024
    """Units, documents or users, of a step: noise and update are shared among their tokens. The memory depends on how
    many are taken at a time, which is what the table tells."""
    sequences: int = 1
    """Sequences of a unit."""
    length: int | None = None
    """Tokens of a sequence. Default: 1024, or the longest that the model takes."""
    method: Literal["full", "lora"] = "full"
    """Train all weights, or low-rank adapters over a frozen base in bfloat16."""
    rank: int = 8
    """Rank of the adapters."""


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Train many configurations, those of one shape in one compiled program, and report."""

    spec: tyro.conf.Positional[Path]
    """The sweep, as TOML; see docs/sweeps.md."""
    out: Path | None = None
    """Folder of the sweep. Default: runs/sweep-<name of the spec>."""
    resume: bool = False
    """Continue the sweep in --out: no trial on record is run again."""
    width: int = 32
    """Trials that are trained side by side, at most; a crash loses those."""
    memory_gb: float = 4.0
    """Memory that the compiled programs which run side by side may need, by the compiler's own account; with Ray, each
    of them."""
    backend: Literal["local", "ray"] = "local"
    """local: on this machine. ray: chunks of trials as tasks of a Ray cluster (pip install '.[distributed]')."""
    ray_address: str | None = None
    """Address of the cluster's head, such as 10.0.0.1:6379. Default: the cluster that this machine belongs to."""


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """Repeat the experiments of arXiv:1911.11607 on the full data. Interrupted, the same command goes on."""

    what: tyro.conf.Positional[ReproduceName]
    """figure4 trains the runs of the paper's figure 4; imdb-clipping shows why IMDb was published higher; figures draws
    all figures from the result files."""
    runs: Path = Path("runs/reproduce")
    """Folder of the runs."""
    results: Path = Path("benchmarks/results")
    """Folder of the result files and tables."""
    figures: Path = Path("docs/figures")
    """Folder of the pictures."""
    seeds: int | None = None
    """Seeds of every setting. Default: eight for IMDb and MNIST's first row, one for its others, three elsewhere."""
    rows: tuple[str, ...] = ()
    """Train only these lines of one experiment's table, by their names."""
    report: bool = False
    """Train nothing; write the tables of what is finished, here or in the result files."""


@dataclasses.dataclass(frozen=True)
class RecipesConfig:
    """Better than the paper: search on training data, train the best with several seeds, compare (docs/recipes.md)."""

    what: tyro.conf.Positional[Literal["mnist", "adult", "imdb", "movielens", "all"]]
    """Which recipes; what is finished in the folder of the sweeps is not run again."""
    runs: Path = Path("runs/recipes")
    """Folder of the sweeps."""
    results: Path = Path("benchmarks/results")
    """Folder of recipes.json and its table."""


PRESETS: dict[str, TrainConfig] = msgspec.toml.decode(
    Path(__file__).with_name("presets.toml").read_bytes(), type=dict[str, TrainConfig]
)


def identity(config: TrainConfig) -> dict[str, object]:
    """Return the settings, flat, that decide what is computed: all but the run's folder and whether it is resumed."""
    flat: dict[str, object] = {}
    for field in dataclasses.fields(config):
        flat |= dataclasses.asdict(getattr(config, field.name))
    return {name: value for name, value in flat.items() if name not in ("out", "resume")}
