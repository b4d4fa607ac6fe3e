"""The figures of the documentation: ``figures``.

* `correlated`   that of docs/correlated.md
* `fdp`          those of docs/fdp.md, and the command
"""
