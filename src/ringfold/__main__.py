"""``python -m ringfold`` is the ``ringfold`` command."""

import sys

from ringfold.fuzz.cli import main

if __name__ == "__main__":
    sys.exit(main())
