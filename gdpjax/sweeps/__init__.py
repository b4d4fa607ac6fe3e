"""Private trainings of your own data and model, and sweeps of them: a TOML file in, a folder with a report out.

    task = sweeps.Task(load, build, optimizer)
    result = sweeps.run_sweep(task, {"delta": 1e-5, "hyperparameters": {...}}, out="runs/first")

* `_task`, `_hyperparameters`   what the user brings, and which of its numbers may be searched
* `_spec`, `_imports`   a TOML file or a dictionary, checked, with lines in the messages
* `_plans`, `_trials`, `_keys`   each trial with its plan, its certified cost and its own randomness
* `_blueprint`, `_program`, `_worker`   one compiled program for each shape, and a chunk of trials through it
* `_layout`, `_folder`, `records`   what is kept, and how a sweep resumes
* `_summary`, `_pictures`, `_report`, `_progress`   what it says
* `_run`, `_ray`   chunk by chunk, on this machine or on a cluster
* `_sweep`, `_training`   a whole sweep, and one training with checkpoints
* `_template`   files to begin with

Packages of the extra ``sweeps`` are imported when a sweep begins, not with this package.
"""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.sweeps._errors import RunInterrupted as RunInterrupted
from gdpjax.sweeps._errors import UserError as UserError
from gdpjax.sweeps._imports import ImportedTask as ImportedTask
from gdpjax.sweeps._spec import Reader as Reader
from gdpjax.sweeps._spec import Spec as Spec
from gdpjax.sweeps._spec import TaskFields as TaskFields
from gdpjax.sweeps._spec import parse_spec as parse_spec
from gdpjax.sweeps._spec import read_spec as read_spec
from gdpjax.sweeps._sweep import report_sweep, run_sweep
from gdpjax.sweeps._task import Examples, Model, Task
from gdpjax.sweeps._template import new_project as new_project
from gdpjax.sweeps._training import TrainingResult as TrainingResult
from gdpjax.sweeps._training import print_training as print_training
from gdpjax.sweeps._training import train

__all__ = [
    "Examples",
    "Model",
    "Task",
    "report_sweep",
    "run_sweep",
    "train",
]
