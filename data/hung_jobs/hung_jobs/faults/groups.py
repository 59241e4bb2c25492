"""A rank takes a wrong group, a group of other members, or groups in another order."""

from hung_jobs.faults.fault import Fault, Impossible, identifiable, pair
from hung_jobs.program import COLL, COMPUTE, SYNC, WAIT, Group


def wrong_group(injector, used):
    """A rank makes a call on another of its groups."""
    c = injector.rank(used)
    k = injector.pick(c, lambda i: i.kind == COLL and len(i.g) > 1
                      and i.op in ("all_reduce", "broadcast"))
    step = injector.edit(c)
    i = step[k]
    others = [g for g in injector.job.groups_of[c] if g is not i.g and len(g) > 1]
    if not others:
        raise Impossible
    g = injector.rng.choice(others)
    new = i.copy(g=g, pt=injector.rng.choice([i.pt, "wrong.group"]))
    step[k:k + 1] = [injector.mark(), new]
    acc = [] if max(len(g), len(i.g)) > 2 else pair(i.g, c) + pair(g, c)
    return Fault("wrong_group", [c], "divergence",
                 f"Rank {c} calls {i.op} on group {g.name} instead of group {i.g.name}.", "group",
                 new.pt, acc, set(g.ranks) | set(i.g.ranks),
                 ["skipped", "extra", "operation", "size", "dtype", "order"], new,
                 identifiable(acc))


def swapped_across_groups(injector, used):
    """A rank enters two groups in the opposite order."""
    c = injector.rank(used)
    step = injector.programs[c][injector.section]
    pairs = []
    before = None
    for k, i in enumerate(step):
        if i.kind == COLL:
            if before is not None:
                b = step[before]
                if b.g is not i.g and b.sync and i.sync and \
                        len(set(b.g.ranks) & set(i.g.ranks)) >= 2:
                    pairs.append((before, k))
            before = k
        elif i.kind not in (COMPUTE, WAIT):
            before = None
    if not pairs:
        raise Impossible
    j, k = injector.rng.choice(pairs)
    step = injector.edit(c)
    step[j], step[k] = step[k].copy(), step[j].copy()
    new, old = step[j], step[k]
    step.insert(j, injector.mark())
    shared = set(new.g.ranks) & set(old.g.ranks)
    acc = []
    if len(shared) == 2:
        other = [r for r in shared if r != c]
        acc = [other, sorted(shared)]
    return Fault("swapped_across_groups", [c], "order_across_groups",
                 f"Rank {c} enters group {new.g.name} before group {old.g.name}; the other shared "
                 "members do the opposite: a wait cycle.", "order", new.pt, acc,
                 set(new.g.ranks) | set(old.g.ranks), [], new, identifiable(acc))


def host_sync_cycle(injector, used):
    """Two reductions with host synchronisations in every step; a rank swaps them once."""
    job = injector.job
    c = injector.rank(used)
    groups = [(a, b) for a in job.groups_of[c] for b in job.groups_of[c]
              if a is not b and len(set(a.ranks) & set(b.ranks)) >= 2]
    if not groups:
        raise Impossible
    a, b = injector.rng.choice(groups)
    dims = list(job.by_dim) + ["world"]
    da = next(d for d in dims if d == "world" or job.by_dim[d].get(c) is a)
    db = next(d for d in dims if d == "world" or job.by_dim[d].get(c) is b)
    new = None
    for r in range(job.world):
        ga = job.default if da == "world" else job.by_dim[da].get(r)
        gb = job.default if db == "world" else job.by_dim[db].get(r)
        if ga is None or gb is None:
            raise Impossible
        first = [job.all_reduce(ga, (1,), "Float", "metrics.loss"), job.simple(SYNC)]
        second = [job.all_reduce(gb, (1,), "Long", "metrics.tokens"), job.simple(SYNC)]
        for section in range(1, len(injector.programs[r]) - 1):
            out = injector.programs[r][section] = list(injector.programs[r][section])
            if r == c and section == injector.section:
                new = second[0].copy()
                out[1:1] = [injector.mark(), new, second[1]] + first
            else:
                out[1:1] = first + second
    shared = set(a.ranks) & set(b.ranks)
    acc = []
    if len(shared) == 2:
        acc = [[r for r in shared if r != c], sorted(shared)]
    return Fault("host_sync_cycle", [c], "order_across_groups",
                 f"Rank {c} waits on the host for group {b.name} before it calls group {a.name}; "
                 "the others do the opposite: a wait cycle through host synchronisations.",
                 "order", new.pt, acc,
                 set(a.ranks) | set(b.ranks), [], new, identifiable(acc))


def membership(injector, used):
    """A rank has another list of the members of a new group."""
    job, rng = injector.job, injector.rng
    n = job.world
    if n < 4:
        raise Impossible
    ranks = rng.choice([list(range(n)), list(range(0, n, 2)), list(range(n // 2))])
    if len(ranks) < 3:
        ranks = list(range(n))
    c = injector.rank(used, ranks)
    wrong = [r for r in ranks if r == c or r != rng.choice([x for x in ranks if x != c])]
    outside = [r for r in range(n) if r not in ranks]
    if len(wrong) == len(ranks) or len(wrong) < 2:
        raise Impossible
    if outside and rng.random() < 0.5:
        wrong = sorted(wrong + [rng.choice(outside)])
    desc = "undefined" if job.style == "undefined" else "eval"
    g = job.new_group(desc, ranks)
    gc = Group(g.name, desc, wrong)
    job.all_groups.append(gc)
    job.groups_of[c] = [x for x in job.groups_of[c] if x is not g] + [gc]
    for r in ranks:
        step = injector.edit(r)
        new = job.all_reduce(gc if r == c else g, (5,), "Double", "eval.group")
        step[1:1] = ([injector.mark()] if r == c else []) + [new, job.simple(SYNC)]
    return Fault("membership", [c], "divergence",
                 f"Rank {c} believes that group {g.name} is {wrong}, the others say {ranks}.",
                 "membership", "eval.group", [], ranks)
