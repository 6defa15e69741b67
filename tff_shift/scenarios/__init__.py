"""The scenarios: one folder each, all of the same shape.

- `configuration`: the flags and the checked plan of a comparison.
- `simulation`: the driver, which runs an algorithm on the clients of a seed.
- `runs`: the runs of a plan, a subclass of `scenario.Scenario`.
- `results`: the columns of tables, and the files of a run folder.
- `figures`: its own figures, if it has any.
"""
