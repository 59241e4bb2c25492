"""The kinds of faults. Each edits the program of one rank, or of a few.

  fault     `Fault`, and `Injector`, the tools to edit programs
  cpu       the CPU of a rank does not come to a call, or its process died
  calls     the calls of a rank on a group differ from those of the other members
  groups    a rank takes a wrong group, or groups in another order
  messages  sends and receives that do not match
  device    a device does not complete a call
  visible   whether the dumps of a job show its fault
"""

from hung_jobs.faults.calls import (extra, microbatches, replaced, skipped, step_behind,
                                    swapped_in_group)
from hung_jobs.faults.cpu import stuck, two
from hung_jobs.faults.device import device, splits
from hung_jobs.faults.groups import (host_sync_cycle, membership, swapped_across_groups,
                                     wrong_group)
from hung_jobs.faults.messages import message, message_cycle

# Functions of an injector and the ranks that must not become culprits.
KINDS = {
    "stuck_before_world": lambda x, u: stuck(x, u, "world"),
    "stuck_before_sub": lambda x, u: stuck(x, u, "sub"),
    "stuck_before_data": lambda x, u: stuck(x, u, "data"),
    "crashed_no_dump": lambda x, u: stuck(x, u, x.rng.choice(["world", "sub", "data"]), False),
    "two_ranks_stuck": lambda x, u: two(x, u, True),
    "two_ranks_crashed": lambda x, u: two(x, u, False),
    "skipped": skipped,
    "extra": extra,
    "wrong_operation": lambda x, u: replaced(x, u, "operation"),
    "wrong_size": lambda x, u: replaced(x, u, "size"),
    "wrong_dtype": lambda x, u: replaced(x, u, "dtype"),
    "wrong_group": wrong_group,
    "swapped_in_group": swapped_in_group,
    "swapped_across_groups": swapped_across_groups,
    "host_sync_cycle": host_sync_cycle,
    "step_behind": step_behind,
    "microbatches": microbatches,
    "membership": membership,
    "missing_send": lambda x, u: message(x, u, "missing_send"),
    "missing_recv": lambda x, u: message(x, u, "missing_recv"),
    "wrong_peer": lambda x, u: message(x, u, "wrong_peer"),
    "coalesced_short": lambda x, u: message(x, u, "coalesced_short"),
    "message_cycle_2": lambda x, u: message_cycle(x, u, 2),
    "message_cycle_3": lambda x, u: message_cycle(x, u, 3),
    "message_cycle_n": lambda x, u: message_cycle(x, u, "n"),
    "device_stuck_all": lambda x, u: device(x, u, "all"),
    "device_stuck_one": lambda x, u: device(x, u, "one"),
    "all_to_all_splits": splits,
}
# Jobs that do not hang, as often as they are drawn.
MOVING = ["healthy", "healthy", "slow_rank"]
# The dimension of the mesh that a kind needs.
NEEDS = {"missing_send": "pp", "missing_recv": "pp", "wrong_peer": "pp", "coalesced_short": "pp",
         "microbatches": "pp", "all_to_all_splits": "ep"}
# Kinds that also occur in jobs on gloo.
GLOO_KINDS = ["stuck_before_world", "stuck_before_sub", "stuck_before_data", "skipped", "extra",
              "wrong_group", "swapped_across_groups", "step_behind", "wrong_operation"]
# Kinds of which two are drawn for one job.
TWO_KINDS = ["stuck_before_sub", "stuck_before_sub", "stuck_before_world", "wrong_operation",
             "wrong_size", "wrong_dtype", "crashed_no_dump", "device_stuck_one"]
