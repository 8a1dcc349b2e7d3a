"""Checkpoints: a run as one file of plain arrays, every byte verified when it is read.

- `format`: the file, sealed by `pdbo._sealed`;
- `arrays`: one array as it is kept;
- `packing`: a solution as arrays, and back;
- `description`: solvers, problems and points in words, to compare a file with what is given;
- `folder`: the files of one run, and the lock of their folder;
- `writer`: checkpoints of a run while it goes on;
- `saving`: one solution at a user's request; `pdbo._load` reads it again.
"""

from .arrays import digest as digest
from .folder import Folder as Folder
from .saving import save as save
from .writer import CheckpointWriter as CheckpointWriter
