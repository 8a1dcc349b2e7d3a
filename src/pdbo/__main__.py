"""`python -m pdbo` is `pdbo`."""

import signal
import sys
from typing import NoReturn

from ._signals import leave_at_once


def main() -> NoReturn:
    """The command; an interrupt or a missing package while it is imported is one sentence too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_at_once)
    try:
        from .app.cli import main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        print(
            f"pdbo: {package} must be installed first: pip install 'pdbo[experiments]'.",
            file=sys.stderr,
        )
        sys.exit(2)
    main()


if __name__ == "__main__":
    main()
