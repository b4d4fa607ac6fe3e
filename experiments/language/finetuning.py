"""Private fine-tuning of a language model on units of text: one plan, and gdpjax's own training loop.

    tuning = Finetuning(config, plan, lora=LoraConfig(rank=8))
    training = tuning.training()
    data = training.place(*units.arrays)
    state = training.init(tuning.initial(params, key), gdpjax.fresh_key())
    state, _ = training.run_steps(state, data, plan.num_steps)
    weights = tuning.weights(state.params)

An example is a *unit*: a document, or all that a user wrote, in a fixed number of sequences. Its loss is the mean over
its own tokens, its gradient is clipped once, and the batch is a Poisson sample of units. The epsilon of the plan is
then for a whole unit. Batches of sequences would give an epsilon for a sequence, of which a user may have hundreds.

With adapters only those are trained: norms, noise and the optimizer's memory are of their size. The base is among the
parameters, in bfloat16, and frozen.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gdpjax
from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig, frozen, init_adapters, joined, merge
from experiments.language.model import sequence_loss
from gdpjax.training import Training, adam_scale, private_training

ADAPTERS, BASE = "adapters", "base"


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """A fine-tuning: the model, what of it is trained, and the plan.

    Attributes:
      config: the shape of the model.
      plan: the public constants of the run; its unit is what a row of the data is.
      learning_rate: of Adam.
      lora: train adapters only; None for all weights.
      microbatch_size: units whose gradients are held at a time; None lets gdpjax choose.
      strategy: how gradients are made, as in `gdpjax.clipped_grad`. None: "microbatch" for all weights, whose gradients
        are formed anyway, as each is used at many positions and in one scan; "auto" for adapters, whose gradients may
        stay in factors.
      scale_then_privatize: clip and noise in the coordinates in which Adam takes its steps.
    """

    config: ModelConfig
    plan: gdpjax.Plan
    learning_rate: float = 1e-3
    lora: LoraConfig | None = None
    microbatch_size: int | None = None
    strategy: str | None = None
    scale_then_privatize: bool = False

    def initial(self, params: Any, key: jax.Array) -> Any:
        """Return what the training begins with, from the weights of a model; ``key`` is for new adapters."""
        if self.lora is None:
            return params
        return {ADAPTERS: init_adapters(params, self.lora, key), BASE: frozen(params)}

    def weights(self, params: Any) -> Any:
        """Return the weights of a model without adapters, from the parameters of the training.

        They are in float32: a sum in bfloat16 would lose small changes.
        """
        if self.lora is None:
            return params
        return merge(params[ADAPTERS], frozen(params[BASE], jnp.float32), self.lora)

    def loss(self, params: Any, tokens: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Return the loss of one unit: the mean cross entropy over its own targets, in nats.

        Args:
          params: of `initial`.
          tokens, segment_ids: ``int32[sequences_per_unit, length]``; segment 0 is padding.
        """
        if self.lora is not None:
            params = joined(params[ADAPTERS], params[BASE])
        return sequence_loss(self.config, params, tokens, segment_ids, lora=self.lora)

    def training(self) -> Training:
        """Return gdpjax's training loop: Poisson batches of units, clip, noise, Adam and the ledger."""
        optimizer: Any = optax.adam(self.learning_rate)
        trainable = None
        if self.lora is not None:
            trainable = {ADAPTERS: True, BASE: False}
            # Adam keeps no moments of the base.
            optimizer = optax.masked(optimizer, trainable)
        strategy = self.strategy
        if strategy is None:
            strategy = "microbatch" if self.lora is None else "auto"
        scale = None
        if self.scale_then_privatize:
            # The standard deviation of the noise of the mean is where second moments are signal rather than noise.
            noise_of_mean = self.plan.noise_multiplier * self.plan.clip.l2_norm_bound / self.plan.expected_batch_size
            scale = adam_scale(epsilon=noise_of_mean)
        return private_training(
            self.plan,
            self.loss,
            optimizer,
            trainable=trainable,
            strategy=strategy,
            microbatch_size=self.microbatch_size,
            scale=scale,
        )
