"""The figures of the documentation.

* `fdp`          ``fdp-figures``, the figures of docs/fdp.md
* `correlated`   ``correlated-figure``, that of docs/correlated.md
"""
