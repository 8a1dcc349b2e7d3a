"""Benchmarks of pdbo and its peers; `python -m benchmarks.core` measures the core alone."""
