"""The command line tool: a program of its own, inside of this package."""

import os
import pathlib
import sys


def main() -> None:
    """Becomes it."""
    program = str(pathlib.Path(__file__).parent / "bin" / "shiplap")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
