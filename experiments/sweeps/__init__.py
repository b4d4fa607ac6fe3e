"""Many private trainings, those of one shape in one compiled program: ``sweep`` and ``sweep-report``.

* `named_task`   how a sweep file names its data set, model and optimizer
* `command`      from a sweep file to its report
"""
