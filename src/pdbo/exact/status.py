"""Whether a run on the exact path goes on, and how it ended."""

RUNNING, CONVERGED, STALLED, FAILED, NONCONVEX = 0, 1, 2, 3, 4
