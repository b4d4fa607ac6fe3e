"""Many private trainings, those of one shape in one compiled program: ``sweep``.

* `named_task`   how a sweep file names its data set, model and optimizer
* `command`      from a sweep file to its report
"""
