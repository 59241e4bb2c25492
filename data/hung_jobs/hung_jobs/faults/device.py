"""All ranks make the call, and the device of some never completes it."""

from hung_jobs.faults.fault import Fault, Impossible, identifiable
from hung_jobs.program import COLL


def device(injector, used, who):
    """The device is stuck in a collective: of "all" members, or of "one"."""
    c = injector.rank(used)
    k = injector.pick(c, lambda i: i.kind == COLL and len(i.g) > 1 and i.sync)
    step = injector.edit(c)
    i = step[k]
    new = i.copy(device=("all",) if who == "all" else ("one", (c,)))
    step[k:k + 1] = [injector.mark(), new]
    if who == "all":
        return Fault("device_stuck_all", i.g.ranks, "device_stuck",
                     f"All members of group {i.g.name} started {i.op} and none completes: the rank "
                     f"whose device or link is stuck (rank {c}) is not identifiable.", None, new.pt,
                     [[], [c]], i.g.ranks, [], new, "group")
    return Fault("device_stuck_one", [c], "device_stuck",
                 f"All members of group {i.g.name} started {i.op} and all but rank {c} complete "
                 "it.", None, new.pt, [], i.g.ranks, [], new)


def splits(injector, used):
    """Two ranks disagree on how many rows one sends to the other in an all_to_all."""
    job = injector.job
    if "ep" not in job.dims or job.o["version"] == "2.3":
        raise Impossible
    c = injector.rank(used)
    k = injector.pick(c, lambda i: i.kind == COLL and i.op == "all_to_all" and len(i.g) > 1)
    step = injector.edit(c)
    i = step[k]
    j = injector.rng.choice([r for r in i.g.ranks if r != c])
    delta = injector.rng.choice([1, 8, 64])
    new = i.copy(outs=[[i.outs[0][0] + delta, i.outs[0][1]]], device=("pair", (c, j)))
    step[k:k + 1] = [injector.mark(), new]
    acc = [[j], sorted([c, j])] if job.uneven_a2a else []
    return Fault("all_to_all_splits", [c], "divergence",
                 f"Rank {c} expects {delta} rows more from rank {j} than rank {j} sends; only "
                 "these two do not complete the all_to_all.", "splits", new.pt, acc, i.g.ranks,
                 ["size"], new, identifiable(acc))
