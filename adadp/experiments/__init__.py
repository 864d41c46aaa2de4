"""The paper's experiments: configs, grids, the resumable runner, stored results, verdicts.

``configs`` says what a run is, ``private`` and ``grids`` which runs an experiment has, ``runner`` does what is lacking,
``execution`` carries one run out, ``results`` reads what is stored, ``claims`` judges the paper by it.
"""
