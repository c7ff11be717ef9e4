"""``python -m egraft`` is the command ``egraft``."""

import sys

from optimizer.command_line import main

if __name__ == "__main__":
    sys.exit(main())
