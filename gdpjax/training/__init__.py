"""Private training that can only do what its plan says."""

from gdpjax.training._batches import batch_source
from gdpjax.training._data import Data, group_by_user
from gdpjax.training._files import CheckpointError
from gdpjax.training._loop import (
    FINISHED,
    OVERFLOWED,
    RUNNING,
    Info,
    State,
    Training,
    check_status,
    num_steps_done,
    private_training,
)
from gdpjax.training._make_plan import make_plan
from gdpjax.training._plan import Plan
from gdpjax.training._run import Run, resume_run, start_run

__all__ = [
    "FINISHED",
    "OVERFLOWED",
    "RUNNING",
    "CheckpointError",
    "Data",
    "Info",
    "Plan",
    "Run",
    "State",
    "Training",
    "batch_source",
    "check_status",
    "group_by_user",
    "make_plan",
    "num_steps_done",
    "private_training",
    "resume_run",
    "start_run",
]
