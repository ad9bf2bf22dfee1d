"""`python -m jaxcal` is the console script `jaxcal`."""

import sys

from jaxcal.cli import main

if __name__ == "__main__":
    sys.exit(main())
