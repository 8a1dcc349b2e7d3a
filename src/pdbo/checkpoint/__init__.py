"""Checkpoints: a run as one file of plain arrays; reading verifies every byte.

- `format`: the file, sealed by `pdbo._sealed`;
- `arrays`: one array, as the file stores it;
- `packing`: a solution to arrays, and back;
- `description`: solvers, problems and points in words, to compare a file with the arguments;
- `folder`: the files of one run, and the lock of their folder;
- `writer`: checkpoints during a run;
- `saving`: `save`, one solution on request; `pdbo._load` reads it.
"""

from .arrays import digest as digest
from .folder import Folder as Folder
from .saving import save as save
from .writer import CheckpointWriter as CheckpointWriter
