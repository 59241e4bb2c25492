"""The CPU of a rank does not come to a call: it is stuck, or its process died."""

from hung_jobs.faults.fault import Fault, Impossible
from hung_jobs.program import BATCH, COLL, STUCK


def stuck(injector, used, where, dump=True):
    """A rank does not come to a call, and dumps or not. `where`: "world", "sub" or "data"."""
    default = injector.job.default
    c = injector.rank(used)
    step = injector.programs[c][injector.section]
    if where == "data":
        k = 0
    else:
        k = injector.pick(c, lambda i: i.kind == COLL and len(i.g) > 1
                          and ((i.g is default) == (where == "world")))
    injector.edit(c).insert(k, injector.mark(STUCK))
    nxt = next((i for i in step[k:] if i.kind <= BATCH), None)
    place = {"world": "a collective of the world group", "sub": "a collective of a subgroup",
             "data": "its first call of the step (data loader)"}[where]
    if dump:
        return Fault(f"stuck_before_{where}", [c], "cpu_stuck",
                     f"The CPU of rank {c} does not come to {place}; all its earlier calls are "
                     "complete.",
                     group=nxt.g.ranks if nxt else ())
    injector.no_dump.add(c)
    return Fault("crashed_no_dump", [c], "absent",
                 f"Rank {c} died before {place} and left no dump.",
                 group=nxt.g.ranks if nxt else ())


def two(injector, used, dump):
    """Two ranks do not come to their calls."""
    if injector.job.world < 4:
        raise Impossible
    a = stuck(injector, used, injector.rng.choice(["world", "data"]), dump)
    b = stuck(injector, used | set(a.culprits), injector.rng.choice(["world", "data"]), dump)
    both = a.culprits + b.culprits
    return Fault("two_ranks_stuck" if dump else "two_ranks_crashed", both, a.cls,
                 f"Ranks {both[0]} and {both[1]} " +
                 ("are stuck on the CPU." if dump else "left no dump."))
