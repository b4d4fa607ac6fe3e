"""Training on public text, without noise: what private fine-tuning begins with.

    params = pretrain(config, rows, PublicSchedule(num_steps=200), key)

Text that anybody can read costs no epsilon. Only text that was public before goes in here: a corpus that somebody
collected and declares public afterwards is a private corpus with a label.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.language.config import ModelConfig
from experiments.language.lora import Params
from experiments.language.model import init_params, sequence_loss

_WEIGHT_DECAY = 0.1


class PublicSchedule(NamedTuple):
    """The length and the learning rates of training on public text.

    Attributes:
      num_steps: updates.
      batch_size: rows in a batch.
      learning_rate: of AdamW, reached after a tenth of the steps, and falling to a tenth of it along a cosine.
    """

    num_steps: int
    batch_size: int
    learning_rate: float

    def optimizer(self) -> optax.GradientTransformation:
        """Return AdamW behind a clip of the whole batch's gradient, as language models are usually trained."""
        rate = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=self.learning_rate,
            warmup_steps=max(1, self.num_steps // 10),
            decay_steps=max(2, self.num_steps),
            end_value=self.learning_rate / 10,
        )
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=_WEIGHT_DECAY))


def pretrain(
    config: ModelConfig,
    rows: tuple[np.ndarray, np.ndarray],
    schedule: PublicSchedule,
    key: jax.Array,
    on_step: Callable[[int], None],
) -> Params:
    """Return parameters that were trained on public text.

    Args:
      config: the shape of the model.
      rows: public text in rows, of `experiments.language.packing.pack_public`.
      schedule: how long, and how fast.
      key: initial weights and batches are functions of it.
      on_step: called after each step with the number of steps done.
    """
    init_key, batch_key = jax.random.split(key)
    params = init_params(config, init_key)
    optimizer = schedule.optimizer()
    state = optimizer.init(params)
    tokens, segment_ids = map(jnp.asarray, rows)

    @jax.jit
    def step(params: Any, state: Any, number: jax.Array) -> tuple[Any, Any]:
        drawn = jax.random.randint(jax.random.fold_in(batch_key, number), (schedule.batch_size,), 0, len(tokens))

        # All targets of the batch count alike. Nothing is private here, so that rows may be mixed.
        gradient = jax.grad(sequence_loss, 1)(config, params, tokens[drawn], segment_ids[drawn])
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for number in range(schedule.num_steps):
        params, state = step(params, state, jnp.asarray(number))
        on_step(number + 1)
    return params
