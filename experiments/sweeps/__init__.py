"""Sweeps of trainings: a TOML file in, results in Parquet and a report out.

* `_spec`, `_lines`   the file, checked, with lines in the messages
* `_trials`           its trials, each with its plan and certified cost
* `_program`          one compiled program for each shape
* `_worker`           a chunk of trials through its program
* `_run`, `_ray`      chunk by chunk, on this machine or on a cluster
* `_folder`, `_results`  what is kept, and how a sweep resumes
* `_summary`, `_pictures`, `_report`  what it says
* `_progress`, `_command`  what a person sees
"""

from experiments.sweeps._command import num_slots, report, run
from experiments.sweeps._folder import is_finished, keys_of
from experiments.sweeps._results import Row, read_rows
from experiments.sweeps._spec import Spec, parse_spec, read_spec
from experiments.sweeps._trials import list_trials, plan_trials
from experiments.sweeps._worker import arguments_of, compile_shape

__all__ = [
    "Row", "Spec", "arguments_of", "compile_shape", "is_finished", "keys_of", "list_trials", "num_slots", "parse_spec",
    "plan_trials", "read_rows", "read_spec", "report", "run",
]  # fmt: skip
