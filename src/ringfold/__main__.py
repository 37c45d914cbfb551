"""``python -m ringfold`` is the ``ringfold`` command."""

import signal
import sys


def main() -> None:
    """Run the command line. Importing it takes a second, in which a Ctrl-C is no error either."""
    try:
        from ringfold.fuzz.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
