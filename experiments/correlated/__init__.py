"""``correlated``: what correlated noise does for accuracy, beside Poisson DP-SGD at the same certified epsilon.

* `_methods`   the tasks, and the plans of each method at an epsilon
* `_trials`    trains what is missing, many trainings in one program, and keeps them on record
* `_tables`    means, intervals, the table and the figure
* `_command`   what the command line calls
"""

from experiments.correlated._command import run

__all__ = ["run"]
