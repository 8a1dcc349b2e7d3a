"""`python -m pdbo` is `pdbo`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The command; an interrupt or a missing package while it is imported is one sentence too."""
    try:
        from ._cli import main
    except KeyboardInterrupt:
        print("pdbo: interrupted.", file=sys.stderr)
        sys.exit(130)
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
