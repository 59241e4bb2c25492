#!/usr/bin/env python3
"""Runs a program and compares what it prints with a file, exactly. Run by ctest.

    same_output.py PROGRAM FILE      print the differences; exit 1 if there are any
    same_output.py --write PROGRAM FILE    write the file anew
"""

import difflib
import subprocess
import sys
from pathlib import Path


def main():
    write = sys.argv[1] == "--write"
    program, file = sys.argv[2:4] if write else sys.argv[1:3]
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.exit(f"{Path(program).name} ended with {done.returncode}\n{done.stderr}")
    if write:
        Path(file).write_text(done.stdout, encoding="utf-8")
        return
    expected = Path(file).read_text(encoding="utf-8")
    lines = difflib.unified_diff(expected.splitlines(), done.stdout.splitlines(),
                                 Path(file).name, "what it prints", lineterm="")
    print("\n".join(lines))
    sys.exit(0 if done.stdout == expected else 1)


if __name__ == "__main__":
    main()
