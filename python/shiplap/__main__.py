"""The command line tool: a separate executable in this package."""

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the command line tool."""
    program = str(pathlib.Path(__file__).parent / "bin" / "shiplap")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
