"""Speeds, measured side by side in one run; `python -m benchmarks.core` is the core's."""
