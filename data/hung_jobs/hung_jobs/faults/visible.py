"""Whether the dumps of a job show its fault."""

from hung_jobs.events import unresolved
from hung_jobs.program import COLL


def visible(sim, fault):
    """Whether the culprits reached the fault, and the dumps of others wait because of it."""
    mark = sim.marks.get(fault.id)
    if mark is None:
        return False
    if fault.cls in ("cpu_stuck", "absent"):
        return all(visibly_stuck(sim, c, fault.culprits) for c in fault.culprits)
    culprit = mark[0]
    if fault.in_group is not None and len(fault.in_group) > 2 and not odd(fault.in_group, culprit):
        return False
    if fault.instr is not None and fault.instr.kind == COLL:
        return blocks(fault, culprit)
    return True


def visibly_stuck(sim, c, culprits):
    """Whether rank c waits for nobody and a rank that is no culprit waits for it."""
    if sim.stopped[c] != "stuck" or any(r.work and unresolved(r.end) for r in sim.records[c]):
        return False
    return any(waits_for(sim, r, c) for r in range(sim.world) if r not in culprits)


def waits_for(sim, r, c):
    """Whether rank r has started a call that rank c has not come to."""
    return any(rec.work and unresolved(rec.end) and not unresolved(rec.ready) and
               c in rec.gid.index and (rec.i.kind != COLL or missing_in(rec, c))
               for rec in reversed(sim.records[r]))


def missing_in(rec, c):
    """Whether rank c is not among those that made the call of this record."""
    slots = rec.gid.slots
    k = rec.cseq - 1
    return k < len(slots) and c not in slots[k].members


def odd(group, c):
    """Whether rank c is alone in what it calls as the first incomplete call of the group."""
    for slot in group.slots:
        if slot.done is None:
            mine = slot.members.get(c)
            others = [m for r, m in slot.members.items()
                      if r != c and (mine is None or m.i.sig != mine.i.sig)]
            return len(others) >= 2
    return False


def blocks(fault, c):
    """Whether the faulty call of rank c is on the device, and others are blocked by it."""
    group = fault.instr.g
    for slot in group.slots:
        mine = slot.members.get(c)
        if mine is not None and mine.i is fault.instr:
            if unresolved(mine.ready) and fault.cls != "order_across_groups":
                return False
            if fault.cls == "device_stuck":
                return len(slot.members) == len(group)
            if fault.kind.startswith("wrong_") and fault.kind != "wrong_group":
                return len(slot.members) >= min(3, len(group)) and \
                    not any(m.end.t is not None for m in slot.members.values())
            return True
    return False
