"""One private training: ``train``.

* `tasks`     data sets, networks and optimizers as tasks of `gdpjax.sweeps`, which runs, records and resumes them
* `command`   from a configuration to a finished run
"""
