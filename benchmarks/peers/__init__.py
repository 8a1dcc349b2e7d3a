"""The libraries compared: one file of code and one environment file each.

`NAME.py` runs in an environment of its own, made from `NAME.txt`, and imports nothing of pdbo;
`ours.py` runs in the environment of the suite.
"""
