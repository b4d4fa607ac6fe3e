"""Private trainings of your own data and model, and sweeps of them: a TOML file in, a folder with a report out.

    task = sweeps.Task(load, build, optimizer)
    result = sweeps.run_sweep(task, {"delta": 1e-5, "hyperparameters": {...}}, out="runs/first")

* `records`   the files of a run, and the errors that are the user's to mend
* `_task`, `_examples`   what the user brings: functions, of which numbers may be searched, and data
* `_spec`   a TOML file or a dictionary, checked, with lines in the messages
* `_plans`, `_trials`   each trial with its plan, its certified cost and its own randomness
* `_program`, `_worker`, `_ray`   one compiled program for each shape, and a chunk of trials through it
* `_results`, `_folder`   what is kept and what follows from it, and how a sweep resumes
* `_progress`, `_report`   what people see of it
* `_sweep`, `_training`   a whole sweep, and one training with checkpoints

Packages of the extra ``sweeps`` are imported when a sweep begins, not with this package.
"""

# What is imported under an alias is for the other parts of the repository, and not public.
from gdpjax.sweeps._examples import Examples
from gdpjax.sweeps._examples import load_examples as load_examples
from gdpjax.sweeps._plans import SEED_NOTICE as SEED_NOTICE
from gdpjax.sweeps._plans import make_keys as make_keys
from gdpjax.sweeps._plans import plan_of as plan_of
from gdpjax.sweeps._program import Blueprint as Blueprint
from gdpjax.sweeps._program import arguments_of as arguments_of
from gdpjax.sweeps._program import make_program as make_program
from gdpjax.sweeps._progress import as_console as as_console
from gdpjax.sweeps._spec import Source as Source
from gdpjax.sweeps._spec import Spec as Spec
from gdpjax.sweeps._spec import as_spec as as_spec
from gdpjax.sweeps._spec import read_spec as read_spec
from gdpjax.sweeps._sweep import num_slots as num_slots
from gdpjax.sweeps._sweep import report_sweep, run_sweep
from gdpjax.sweeps._task import Model, Task
from gdpjax.sweeps._training import TrainingResult as TrainingResult
from gdpjax.sweeps._training import print_training as print_training
from gdpjax.sweeps._training import train
from gdpjax.sweeps._trials import list_trials as list_trials
from gdpjax.sweeps._trials import plan_trials as plan_trials
from gdpjax.sweeps.records import RunInterrupted as RunInterrupted
from gdpjax.sweeps.records import UserError as UserError

__all__ = [
    "Examples",
    "Model",
    "Task",
    "report_sweep",
    "run_sweep",
    "train",
]
