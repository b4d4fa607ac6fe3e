"""A recipe of our own for each data set of the paper, found by a sweep that never saw the test data: ``recipes``.

``NAME.toml`` is the search, judged by held-out training data; ``winners/NAME.toml`` is its best configuration, trained
on all training data with several seeds and judged by the test data. From the bottom:

* `catalogue`   which recipes there are, what was published, and what was tried by hand before the search
* `outcome`     what the two sweeps say together, with the price of choosing
* `tables`      the result file and its table
* `command`     runs what is missing
"""
