"""The libraries compared: one file of code and one environment file each.

`NAME.py` runs in its own environment, made from `NAME.txt`, and imports nothing from pdbo;
`ours.py` runs in the environment of the suite.
"""
