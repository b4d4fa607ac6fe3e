"""The plan of a run from its configuration. The number of training examples is taken as public."""

import gdpjax
from experiments.config import TrainConfig
from experiments.errors import UserError
from gdpjax import accounting


def make_plan(config: TrainConfig, num_examples: int, epsilon: float | None = None) -> gdpjax.Plan:
    """The plan for ``num_examples`` training examples, or a UserError.

    With a target ``epsilon`` the noise is calibrated to it, certified, in place of the configured noise multiplier.
    """
    optimizer, privacy = config.optimizer, config.privacy
    if optimizer.batch_size > num_examples:
        raise UserError(
            f"batch_size must be at most the number of examples, {num_examples}, got {optimizer.batch_size}"
        )
    try:
        plan = gdpjax.make_plan(
            clip=privacy.l2_clip_norm,
            max_examples=num_examples,
            expected_batch_size=optimizer.batch_size,
            num_steps=epoch_end(config, num_examples, optimizer.epochs),
            delta=privacy.delta,
            noise_multiplier=privacy.noise_multiplier if epsilon is None else None,
            epsilon=epsilon,
            neighboring_relation=gdpjax.NeighboringRelation.REPLACE_SPECIAL,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    if (reason := plan.without_privacy()) is not None:
        raise UserError(f"{reason}; take more noise")
    return plan


def epoch_end(config: TrainConfig, num_examples: int, epoch: int) -> int:
    """Number of steps done after ``epoch`` epochs."""
    return accounting.steps_of_epochs(epoch, num_examples, config.optimizer.batch_size)
