"""``python -m ringfold`` is the ``ringfold`` command."""

from ringfold.fuzz.cli import main

if __name__ == "__main__":
    main()
