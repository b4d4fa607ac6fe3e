"""The experiments: private training end to end, from the data to a privacy statement about the run that was made.

Run ``python -m experiments --help``. Where things are:

* `config`      frozen dataclasses; the command line is generated from them
* `cli`         the table of subcommands, and how errors become one line and an exit code
* `datasets`    scikit-learn's digits; MNIST and Adult from a folder or a checked download
* `models`      small flax networks
* `tasks`       data sets, models and optimizers as tasks of `gdpjax.sweeps`, which runs, records and resumes them
* `train`, `sweep`, `demo`   the commands that do so
* `engine`      networks initialised, and judged on test data
* `tables`, `plots`   what a person sees
"""
