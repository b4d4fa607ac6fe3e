"""What schemes of whole epochs share: in each of them every example has its steps."""

import abc
import dataclasses

from gdpjax._core.arguments import check_count
from gdpjax.sampling._abstract import DrawnBatches


@dataclasses.dataclass(frozen=True)
class BatchesInEpochs(DrawnBatches):
    """The batches of a scheme whose runs are whole epochs of ``steps_per_epoch`` steps."""

    draws_together = True

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """Return the number of steps of an epoch."""

    @property
    def num_epochs(self) -> int:
        """Return the number of epochs."""
        return self.num_steps // self.steps_per_epoch

    def _steps_of(self, epochs: float) -> int:
        return check_count("epochs", epochs) * self.steps_per_epoch

    def _check_length(self) -> None:
        if self.num_steps % self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} takes whole epochs, of {self.steps_per_epoch} steps each with this batch size, "
                f"got {self.num_steps} steps: give a multiple of that, or epochs as a whole number"
            )

    def _planned(self) -> str:
        return (
            f"{self.num_steps} steps in {self.num_epochs} epochs, fixed before training (the statement holds for this "
            "maximum, however many were run)."
        )
