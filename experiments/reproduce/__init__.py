"""``reproduce``: the experiments of arXiv:1911.11607, what was published beside what was found.

Layout, from the bottom: `_experiments` (the settings and the published figures), `_runs` (one folder a run, resumed),
`_tables` (result files and tables), `_figures` and `_grid` (pictures), `_command` (what the command line calls).
"""

from experiments.reproduce._command import run

__all__ = ["run"]
