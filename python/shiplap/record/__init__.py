"""Records a training script as a plan, without a GPU and without a network.

Each rank runs in a process of its own, on fake tensors (shapes without data) and with process
groups that only write down what they are asked to do. The result is the program of all ranks, which
``check`` can prove, ``simulate`` can time and ``show`` can print::

    import shiplap.record

    recorded = shiplap.record.record_script("train.py", world=8)
    assert recorded.check().sound

On the command line: ``shiplap record --world 8 -- python train.py``.
"""

from shiplap.record._answer import (
    Recorded,
    RecordingError,
    Traffic,
    assert_same_program,
    record_function,
    record_script,
)

__all__ = [
    "Recorded",
    "RecordingError",
    "Traffic",
    "assert_same_program",
    "record_function",
    "record_script",
]
