"""The experiments: private training end to end, from the data to a privacy statement about the run that was made.

Run ``python -m experiments --help``. Where things are:

* `config`      frozen dataclasses; the command line is generated from them
* `cli`         the table of subcommands, and how errors become one line and an exit code
* `datasets`    scikit-learn's digits; MNIST and Adult from a folder or a checked download
* `models`      small flax networks
* `plan`        the public constants of a run: sampling probability, capacity, number of steps
* `keys`        one independent stream of randomness per use
* `engine`      the jitted pieces: draw a batch, take a step, measure accuracy
* `training`    the loop, with records and checkpoints
* `privacy`     from the ledger of what was run to its epsilons
* `records`     the files of a run; `checkpoint` the part that resumes it bit for bit
* `progress`, `report`, `plots`   what a person sees
* `sweeps`      many trainings, those of one shape in one compiled program
"""
