"""Why IMDb may have been published with a higher accuracy: clipping by the norm of rows that were not yet added.

In TensorFlow the gradient of an embedding is a list of rows, one for each of the 256 positions, in which a word that
occurs twice has two rows. The norm of that list, sqrt(sum_t ||g_t||^2), is not the norm of the gradient, which adds the
rows of equal words first; padding alone is often half of the positions. Clipping by the first norm leaves gradients up
to 16 times as long as the clip norm, so that the run has a fraction of the privacy it states, and learns more.

This trains the paper's settings both ways, on the same batches and noise. The second way is NOT private at the epsilon
that is stated for it; it is here to compare with what was published, not to be used.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int
from rich.console import Console

from experiments import data, models
from experiments.config import PRESETS
from experiments.models.scores import initial_params, make_scores
from experiments.tables import mean_and_stdev
from experiments.train.tasks import numbers_of
from gdpjax.sampling import poisson_sample
from gdpjax.sweeps import plan_of, records

SEEDS = tuple(range(8))
FILE = "imdb_clipping.json"
WAYS = {
    "added first": True,
    "not added": False,
}
"""Whether the rows of equal words are added before the norm is taken, by the name in the result file."""

WHAT = (
    "IMDb with the paper's settings, test accuracy when gradients are clipped by their norm (equal words added first) "
    "and by the norm of the list of rows (not added), which breaks the stated sensitivity"
)
"""What the result file says of itself."""

EMBEDDING = "Embed_0"
Params = Any
"""The parameters of the paper's network: ``Embed_0``, ``Dense_0`` and ``Dense_1``."""


def write(results: Path, console: Console) -> None:
    """Train each seed both ways and write the accuracies."""
    accuracies: dict[str, list[float]] = {name: [] for name in WAYS}
    for seed in SEEDS:
        for name, add_equal_words in WAYS.items():
            score = accuracy(seed, add_equal_words)
            accuracies[name].append(score)
            console.print(f"seed {seed}, equal words {name}: {100 * score:.2f} %")

    found = {}
    for name, scores in accuracies.items():
        found[name] = mean_and_stdev(scores) | {"seeds": scores}
    result = {
        "what": WHAT,
        "command": "python -m experiments reproduce imdb-clipping",
        "published": {"test_accuracy": 0.84},
        "found": found,
        "fingerprint": records.fingerprint(),
    }
    results.mkdir(parents=True, exist_ok=True)
    records.write_json(results / FILE, result)
    console.print(f"Result: {results / FILE}", soft_wrap=True)


def accuracy(seed: int, add_equal_words: bool) -> float:
    """Return the test accuracy after the paper's epochs; batches, noise and weights depend on the seed alone."""
    # The paper's settings, and the reviews.
    config = PRESETS["imdb"]
    clip = config.privacy.l2_clip_norm
    dataset = data.load("imdb")
    tokens = jnp.asarray(dataset.train_inputs)
    labels = jnp.asarray(dataset.train_labels)
    plan = plan_of(numbers_of(config), config.privacy.delta, dataset.num_examples)

    # The network, and the first weights.
    init_key, sampling_key, noise_key = jax.random.split(jax.random.key(seed), 3)
    model = models.build(config.model.model, dataset.num_classes)
    params = initial_params(model, dataset.example, init_key)
    optimizer = optax.adam(config.optimizer.learning_rate)

    @jax.jit
    def step(params: Params, state: Any, number: Int[Array, ""]) -> tuple[Params, Any]:
        # Each step has keys of its own.
        batch_key = jax.random.fold_in(sampling_key, number)
        noise_key_of_step = jax.random.fold_in(noise_key, number)

        # The noisy sum of clipped gradients.
        batch = poisson_sample(batch_key, plan.max_examples, plan.sampling_prob, plan.capacity)
        words, classes, is_padding = batch.take(tokens, labels)
        total = clipped_sum(
            params,
            words,
            classes,
            is_padding,
            clip,
            add_equal_words,
        )
        noisy = _with_noise(total, plan.noise_multiplier * clip, noise_key_of_step)

        # The update by the mean.
        mean = jax.tree.map(lambda leaf: leaf / plan.expected_batch_size, noisy)
        updates, state = optimizer.update(mean, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for number in range(plan.num_steps):
        params, state = step(params, state, jnp.asarray(number))
    return make_scores(model, dataset)(params)["test_accuracy"]


def _with_noise(total: Params, stddev: float, key: jax.Array) -> Params:
    """Add normal noise to every leaf.

    It is drawn as it was when the result file was made. Private training takes the noise of gdpjax, which is proof
    against floating point; the second way here is not private anyhow.
    """
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = []
    for leaf, key_of_leaf in zip(leaves, keys, strict=True):
        noise = stddev * jax.random.normal(key_of_leaf, leaf.shape)
        noisy.append(leaf + noise)
    return jax.tree.unflatten(structure, noisy)


def clipped_sum(
    params: Params,
    words: Int[Array, "batch length"],
    labels: Int[Array, " batch"],
    is_padding: Bool[Array, " batch"],
    clip: Any,
    add_equal_words: bool,
) -> Params:
    """Return the sum of clipped gradients, ``sum_i min(1, C / n_i) g_i``, with n_i one norm or the other.

    The network's mean of word vectors is written out, so that its gradient is that of the mean, at every position.
    """
    table = params[EMBEDDING]["embedding"]
    length = words.shape[1]
    head = {name: value for name, value in params.items() if name != EMBEDDING}

    def gradient_of_one(
        row: Int[Array, " length"],
        label: Int[Array, ""],
    ) -> tuple[Params, Float[Array, " size"], Float[Array, ""]]:
        """Return an example's gradient with respect to the head and to the mean vector, and its squared norm."""
        gradient = jax.grad(_loss_of_mean, (0, 1))
        of_head, of_mean = gradient(head, table[row].mean(0), label)

        # Every position has the same row, of_mean / length. Added, the row of a word that occurs c times is c times as
        # long, and sum_w c_w^2 is the sum over positions of the count of their word. Not added, each count is one.
        num_rows = (row[:, None] == row).sum() if add_equal_words else length
        of_table = jnp.sum(of_mean**2) * num_rows / length**2
        squared_norm = of_table + sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(of_head))
        return of_head, of_mean, squared_norm

    of_head, of_mean, squared_norm = jax.vmap(gradient_of_one)(words, labels)

    # What each gradient is multiplied by.
    clip_factor = jnp.minimum(1, clip / jnp.sqrt(squared_norm))
    factor = jnp.where(is_padding, 0, clip_factor)
    total = jax.tree.map(lambda leaf: jnp.tensordot(factor, leaf, 1), of_head)

    # Each position of each example adds its row to the table.
    row = factor[:, None] * of_mean / length
    size = of_mean.shape[1]
    rows = jnp.broadcast_to(row[:, None], (*words.shape, size))
    sum_of_rows = jnp.zeros_like(table).at[words].add(rows)
    return total | {EMBEDDING: {"embedding": sum_of_rows}}


def _loss_of_mean(head: Params, mean: Float[Array, " size"], label: Int[Array, ""]) -> Float[Array, ""]:
    """Return the loss of an example, given the mean of its word vectors."""
    first = head["Dense_0"]
    second = head["Dense_1"]
    hidden = jax.nn.relu(mean @ first["kernel"] + first["bias"])
    logits = hidden @ second["kernel"] + second["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)
