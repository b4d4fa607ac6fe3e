"""The parts of a sweep that the benchmarks and the experiments of this repository use one by one.

Users call `gdpjax.sweeps.run_sweep`, which puts them together; the names here may change with any version.
"""

from gdpjax.sweeps._blueprint import Blueprint
from gdpjax.sweeps._folder import begin, described, finish, is_finished, read_rows, record_program, write_part
from gdpjax.sweeps._keys import SEED_NOTICE, make_keys
from gdpjax.sweeps._layout import layout_of
from gdpjax.sweeps._plans import plan_of
from gdpjax.sweeps._program import arguments_of
from gdpjax.sweeps._report import write_report
from gdpjax.sweeps._run import num_slots
from gdpjax.sweeps._task import load_examples
from gdpjax.sweeps._trials import keys_of, list_trials, plan_trials
from gdpjax.sweeps._worker import compile_shape

__all__ = [
    "SEED_NOTICE",
    "Blueprint",
    "arguments_of",
    "begin",
    "compile_shape",
    "described",
    "finish",
    "is_finished",
    "keys_of",
    "layout_of",
    "list_trials",
    "load_examples",
    "make_keys",
    "num_slots",
    "plan_of",
    "plan_trials",
    "read_rows",
    "record_program",
    "write_part",
    "write_report",
]
