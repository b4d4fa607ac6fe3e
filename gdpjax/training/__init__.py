"""Private training that can only do what its plan says."""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.training._budget import Budget
from gdpjax.training._choices import choose_bands, choose_microbatch
from gdpjax.training._data import Data as Data
from gdpjax.training._data import batch_source, group_by_user
from gdpjax.training._fingerprint import environment as environment
from gdpjax.training._loop import Info as Info
from gdpjax.training._loop import State as State
from gdpjax.training._loop import Training as Training
from gdpjax.training._loop import private_training
from gdpjax.training._make_plan import make_plan
from gdpjax.training._plan import Plan
from gdpjax.training._processes import CheckpointError
from gdpjax.training._run import Run as Run
from gdpjax.training._run import has_run as has_run
from gdpjax.training._run import num_steps_on_record as num_steps_on_record
from gdpjax.training._run import resume_run, start_run
from gdpjax.training._scale import adam_scale

__all__ = [
    "Budget",
    "CheckpointError",
    "Plan",
    "adam_scale",
    "batch_source",
    "choose_bands",
    "choose_microbatch",
    "group_by_user",
    "make_plan",
    "private_training",
    "resume_run",
    "start_run",
]
