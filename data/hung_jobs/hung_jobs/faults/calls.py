"""The calls of a rank on a group differ from those of the other members."""

from hung_jobs.faults.fault import Fault, Impossible, identifiable, pair
from hung_jobs.program import COLL, COMPUTE, DTYPE_BYTES, WAIT


def skipped(injector, used):
    """A rank skips a collective."""
    c = injector.rank(used)
    k = injector.pick(c, lambda i: i.kind == COLL and len(i.g) > 1)
    step = injector.edit(c)
    i = step[k]
    step[k] = injector.mark()
    acc = pair(i.g, c)
    f = Fault("skipped", [c], "divergence",
              f"Rank {c} skips {i.op} that the other members of the group call.", "skipped",
              acceptable=acc, group=i.g.ranks,
              also=["operation", "size", "dtype", "order", "extra"],
              identifiable=identifiable(acc))
    f.skipped_pt, f.in_group = i.pt, i.g
    return f


def extra(injector, used):
    """A rank calls a collective that the others do not call, often rank 0."""
    job = injector.job
    c = 0 if 0 not in used and injector.rng.random() < 0.4 else injector.rank(used)
    groups = [g for g in job.groups_of[c] if len(g) > 1]
    g = injector.rng.choice(groups)
    step = injector.edit(c)
    k = injector.rng.randrange(len(step))
    if injector.rng.random() < 0.5 and not job.o["gloo"] and g is job.default:
        new = job.coll(g, "all_reduce_barrier", (1,), (1,), "Float", "ckpt.rank0").copy()
    else:
        new = job.all_reduce(g, (7,), "Float",
                             injector.rng.choice(["ckpt.rank0", "data.extra"])).copy()
    step[k:k] = [injector.mark(), new]
    acc = pair(g, c)
    f = Fault("extra", [c], "divergence",
              f"Rank {c} calls {new.op} in a branch that other ranks do not take.", "extra",
              new.pt, acc, g.ranks, ["operation", "size", "dtype", "order", "skipped"], new,
              identifiable(acc))
    f.in_group = g
    return f


def replaced(injector, used, what):
    """A rank calls another "operation", or with another "size" or "dtype"."""
    c = injector.rank(used)
    ok = ("all_reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base", "all_gather",
          "all_to_all")
    bases = ("_all_gather_base", "_reduce_scatter_base")

    def pred(i):
        return (i.kind == COLL and len(i.g) > 1 and i.op in ok and
                not (what == "size" and i.op == "all_to_all"))

    def scale(sizes, f):
        return [[sizes[0][0] * f] + sizes[0][1:]]

    k = injector.pick(c, pred)
    step = injector.edit(c)
    i = step[k]
    if what == "operation":
        other = {"all_reduce": injector.rng.choice(["broadcast", "reduce"]),
                 "broadcast": "all_reduce",
                 "_all_gather_base": "_reduce_scatter_base",
                 "_reduce_scatter_base": "_all_gather_base",
                 "all_gather": "all_reduce",
                 "all_to_all": "all_reduce"}[i.op]
        ins, outs = (i.outs, i.ins) if i.op in bases else (i.ins, i.ins)
        new = i.copy(op=other, ins=ins, outs=outs, pt=injector.rng.choice([i.pt, "wrong.op"]))
        why = f"Rank {c} calls {other} where the other members call {i.op}."
    elif what == "size":
        f = injector.rng.choice([2, 3])
        new = i.copy(ins=scale(i.ins, f), outs=scale(i.outs, f))
        why = f"Rank {c} calls {i.op} with {new.ins} elements, the other members with {i.ins}."
    else:
        width = DTYPE_BYTES[i.dt]
        dtypes = ("Float", "BFloat16", "Double", "Long", "Half")
        new = i.copy(dt=injector.rng.choice([d for d in dtypes if DTYPE_BYTES[d] != width]))
        why = f"Rank {c} calls {i.op} with {new.dt}, the other members with {i.dt}."
    step[k:k + 1] = [injector.mark(), new]
    acc = pair(i.g, c)
    return Fault("wrong_" + what, [c], "divergence", why, what, new.pt, acc, i.g.ranks, [], new,
                 identifiable(acc))


def swapped_in_group(injector, used):
    """A rank calls two neighbouring collectives of a group in the opposite order."""
    c = injector.rank(used)
    step = injector.programs[c][injector.section]
    last, pairs = {}, []
    for k, i in enumerate(step):
        if i.kind == COLL and len(i.g) > 1:
            j = last.get(i.g)
            if j is not None and step[j].sig != i.sig and k - j <= 6 and \
                    all(x.kind in (COMPUTE, COLL, WAIT) for x in step[j:k]) and \
                    not step[j].op == i.op == "all_to_all":
                pairs.append((j, k))
            last[i.g] = k
    if not pairs:
        raise Impossible
    j, k = injector.rng.choice(pairs)
    step = injector.edit(c)
    g = step[j].g
    step[j], step[k] = step[k].copy(), step[j].copy()
    new = step[j]
    step.insert(j, injector.mark())
    acc = pair(g, c)
    return Fault("swapped_in_group", [c], "divergence",
                 f"Rank {c} calls {new.op} and {step[k + 1].op} of one group in the opposite "
                 "order.",
                 "order", new.pt, acc, g.ranks, ["operation", "size", "dtype", "skipped", "extra"],
                 new, identifiable(acc))


def step_behind(injector, used):
    """A rank leaves the training loop early."""
    c = injector.rank(used)
    if injector.job.world < 3:
        raise Impossible
    p = injector.programs[c]
    injector.programs[c] = p[:injector.section] + [[injector.mark()] + p[-1]]
    new = p[-1][0]
    return Fault("step_behind", [c], "divergence",
                 f"Rank {c} leaves the training loop one step before the others (its data ended "
                 "earlier).",
                 "skipped", new.pt, [], range(injector.job.world),
                 ["operation", "size", "dtype", "order", "extra"])


def microbatches(injector, used):
    """A rank runs one microbatch more or less."""
    job = injector.job
    c = injector.rank(used)
    m = job.microbatches + injector.rng.choice([-1, 1])
    inner = [job.dim(d, c) for d in ("tp", "cp", "ep", "dp_shard", "pp")
             if job.dim(d, c) is not None]
    if m < 1 or not inner:
        raise Impossible
    step = injector.programs[c][injector.section]
    new = job.step(c, injector.section - 1, m)
    if len(new) == len(step):
        raise Impossible
    injector.programs[c][injector.section] = [injector.mark()] + new
    pp = job.dim("pp", c)
    middle = pp is not None and 0 < pp.index[c] < len(pp) - 1
    unique = middle or any(len(g) > 2 for g in inner if g is not pp)
    others = set()
    if not unique:
        for g in inner:
            k = g.index[c]
            if g is pp:
                others |= {g.ranks[j] for j in (k - 1, k + 1) if 0 <= j < len(g)}
            else:
                others |= set(g.ranks)
        others -= {c}
    acc = [[r] for r in sorted(others)] + [sorted({c} | {r}) for r in sorted(others)]
    return Fault("microbatches", [c], "divergence",
                 f"Rank {c} runs {m} microbatches, the others {job.microbatches}.", "microbatches",
                 None, acc, set().union(*(g.ranks for g in inner)),
                 ["skipped", "extra", "operation", "size", "dtype", "order"], None,
                 identifiable(acc))
