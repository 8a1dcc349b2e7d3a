"""Exit codes of the command, and the errors that lead to them."""

from .._errors import ProblemError
from .._signals import Terminated

OK, FAILED, BAD_INPUT, LOST, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143
EXIT_CODES = (
    "Exit codes: 0 success, 1 a run failed or was not certified, 2 bad input, "
    "3 another process of the run was lost, 130 interrupted, 143 terminated."
)


class InputError(ProblemError):
    """The command cannot do what the user asked for."""


class RunError(Exception):
    """A run failed."""


class Interrupted(Exception):
    """A run was interrupted or terminated; the message says how to carry on."""

    def __init__(self, cause: BaseException, again: str):
        self.code = TERMINATED if isinstance(cause, Terminated) else INTERRUPTED
        word = "terminated" if self.code == TERMINATED else "interrupted"
        super().__init__(f"{word}; carry on with: {again}")
