"""The figures of the documentation, and of the demo.

* `fdp`          ``fdp-figures``, the figures of docs/fdp.md
* `correlated`   ``correlated-figure``, that of docs/correlated.md
* `training`     accuracy and epsilon of one run, which ``demo`` draws
"""
