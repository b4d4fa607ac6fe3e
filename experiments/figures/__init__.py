"""The figures of the documentation, and of the demo.

* `pages`        how the figures of pages are written
* `fdp`          ``fdp-figures``, the figures of docs/fdp.md
* `gradients`    ``gradients-figure``, that of docs/theory/gradients.md
* `correlated`   ``correlated-figure``, that of docs/correlated.md
* `training`     accuracy and epsilon of one run, which ``demo`` draws
"""
