"""``python -m adadp``: the same program as ``adadp``."""

from adadp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
