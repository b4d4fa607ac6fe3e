"""Programs compiled for a TPU v5e and an H100 that are not there, and what their compilers say.

* `target`    compile a function for a described device, and count
* `programs`  what is compiled, by name
* `counts`    compare the counts with those that are expected
* `report`    the page
* `device_report`  the page of programs that were executed
"""
