"""Accuracy with correlated noise, beside Poisson DP-SGD at the same certified epsilon: ``correlated``.

From the bottom:

* `methods`   the tasks, and the plans of each method at an epsilon
* `trials`    trains what is missing, many trainings in one program, and keeps them on record
* `tables`    means, intervals, the table and the figure
* `command`   what the command line calls
"""
