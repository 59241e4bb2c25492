#!/usr/bin/env python3
"""Executes a notebook with the current Python, and stores its outputs.

    PYTHONPATH=build/release/python tools/notebook.py examples/puzzles.ipynb
"""

import sys

import nbclient
import nbformat

SECONDS = 300  # for one cell


def executed(path):
    """Returns the notebook with its new outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                                     record_timing=False)
    client.execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"],
                         "language_info": {"name": "python"}}
    return notebook


def main():
    for path in sys.argv[1:]:
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
