"""Training on public text, without noise: what private fine-tuning begins with.

    params = pretrain(config, rows, PublicSchedule(num_steps=200), key)

Text that anybody can read costs no epsilon. Only text that was public before goes in here: a corpus that somebody
collected and declares public afterwards is a private corpus with a label.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.errors import UserError
from experiments.language.config import ModelConfig
from experiments.language.model import init_params, sequence_loss
from experiments.language.packing import Rows


@dataclasses.dataclass(frozen=True)
class PublicSchedule:
    """The length and the learning rates of training on public text.

    Attributes:
      num_steps: updates, at least 1; 0 leaves the initial weights as they are.
      batch_size: rows in a batch.
      learning_rate: of Adam, reached after a tenth of the steps, and falling to a tenth of it along a cosine.
      weight_decay: of AdamW.
    """

    num_steps: int = 200
    batch_size: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        if self.num_steps < 0 or self.batch_size < 1:
            raise UserError(
                f"expected num_steps >= 0 and batch_size >= 1 of public text, got {self.num_steps} and "
                f"{self.batch_size}"
            )

    def optimizer(self) -> optax.GradientTransformation:
        """Return AdamW behind a clip of the whole batch's gradient, as language models are usually trained."""
        rate = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=self.learning_rate,
            warmup_steps=max(1, self.num_steps // 10),
            decay_steps=max(2, self.num_steps),
            end_value=self.learning_rate / 10,
        )
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=self.weight_decay))


def pretrain(
    config: ModelConfig,
    rows: Rows,
    schedule: PublicSchedule,
    key: jax.Array,
    *,
    params: Any = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> Any:
    """Return parameters that were trained on public text.

    Args:
      config: the shape of the model.
      rows: public text in rows, of `experiments.language.packing.pack_public`.
      schedule: how long, and how fast.
      key: initial weights and batches are functions of it.
      params: weights to begin with, such as published ones; None for random ones.
      on_step: called after each step with the number of steps done.
    """
    init_key, batch_key = jax.random.split(key)
    if params is None:
        params = init_params(config, init_key)
    optimizer = schedule.optimizer()
    state = optimizer.init(params)
    tokens, segment_ids = jnp.asarray(rows.tokens), jnp.asarray(rows.segment_ids)

    def batch_loss(params: Any, tokens: jax.Array, segment_ids: jax.Array) -> jax.Array:
        # All targets of the batch count alike. Nothing is private here, so that rows may be mixed.
        return sequence_loss(config, params, tokens, segment_ids)

    @jax.jit
    def step(params: Any, state: Any, number: jax.Array) -> tuple[Any, Any]:
        drawn = jax.random.randint(jax.random.fold_in(batch_key, number), (schedule.batch_size,), 0, len(rows))
        gradient = jax.grad(batch_loss)(params, tokens[drawn], segment_ids[drawn])
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for number in range(schedule.num_steps):
        params, state = step(params, state, jnp.asarray(number))
        on_step(number + 1)
    return jax.block_until_ready(params)
