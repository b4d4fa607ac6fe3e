"""Private training that can only do what its plan says."""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax._core.documents import DocumentError
from gdpjax._core.documents import convert_document as convert_document
from gdpjax._core.documents import parse_document as parse_document
from gdpjax._core.documents import read_document as read_document
from gdpjax._core.documents import read_document_lines as read_document_lines
from gdpjax.training._batches import batch_source
from gdpjax.training._budget import Budget
from gdpjax.training._choose_bands import choose_bands
from gdpjax.training._choose_microbatch import choose_microbatch
from gdpjax.training._data import Data, group_by_user
from gdpjax.training._files import CheckpointError
from gdpjax.training._fingerprint import environment as environment
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
from gdpjax.training._run import Run, has_run, num_steps_kept, resume_run, start_run
from gdpjax.training._scale import adam_scale

__all__ = [
    "FINISHED",
    "OVERFLOWED",
    "RUNNING",
    "Budget",
    "CheckpointError",
    "Data",
    "DocumentError",
    "Info",
    "Plan",
    "Run",
    "State",
    "Training",
    "adam_scale",
    "batch_source",
    "check_status",
    "choose_bands",
    "choose_microbatch",
    "group_by_user",
    "has_run",
    "make_plan",
    "num_steps_done",
    "num_steps_kept",
    "private_training",
    "resume_run",
    "start_run",
]
