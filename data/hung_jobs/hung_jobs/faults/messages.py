"""Sends and receives that do not match, or that wait for each other."""

from hung_jobs.faults.fault import Fault, Impossible, identifiable
from hung_jobs.program import BATCH, P2P


def message(injector, used, what):
    """A rank omits a message, or exchanges it with the wrong rank.

    `what`: "missing_send", "missing_recv", "coalesced_short" (one of a batch), or "wrong_peer".
    """
    job, rng = injector.job, injector.rng
    c = injector.rank(used)

    def parts(i):
        if i.kind == P2P:
            return [(i.op, i.peer)]
        return [(p[0], p[1]) for p in i.parts] if i.kind == BATCH else []

    want = {"missing_send": "send", "missing_recv": "recv"}.get(what)

    def pred(i):
        ps = parts(i)
        if what == "wrong_peer":
            return bool(ps) and len(i.g) > 2
        if what == "coalesced_short":
            return i.kind == BATCH and len(ps) > 1
        return any(p[0] == want for p in ps) and not (i.kind == BATCH and len(ps) > 1)

    k = injector.pick(c, pred)
    step = injector.edit(c)
    i = step[k]
    n = len(i.g)
    if what == "wrong_peer":
        j = rng.randrange(len(parts(i)))
        op, peer = parts(i)[j]
        wrong = rng.choice([p for p in range(n) if p not in (peer, i.g.index[c])])
        if i.kind == P2P:
            new = i.copy(peer=wrong)
        else:
            ps = list(i.parts)
            ps[j] = (op, wrong) + ps[j][2:]
            new = i.copy(parts=tuple(ps))
        why = f"Rank {c} calls {op} with group rank {wrong} instead of {peer}."
        acc = []
    else:
        if what == "coalesced_short":
            j = rng.randrange(len(i.parts))
            op, peer = parts(i)[j]
            new = i.copy(parts=i.parts[:j] + i.parts[j + 1:])
            why = f"The batch of rank {c} lacks its {op} with group rank {peer}."
        else:
            op, peer = parts(i)[0]
            new = None
            why = f"Rank {c} omits a {op} with group rank {peer}."
        acc = [[i.g.ranks[peer]], sorted([c, i.g.ranks[peer]])]
    step[k:k + 1] = [injector.mark()] + ([new] if new else [])
    return Fault(what, [c], "divergence", why, "peer" if what == "wrong_peer" else "skipped",
                 new.pt if new else None, acc, i.g.ranks,
                 ["peer", "skipped", "extra", "size", "order"], new, identifiable(acc))


def message_cycle(injector, used, length):
    """Ranks in a ring that all send before they receive. `length`: a number, or "n" for all."""
    job, rng = injector.job, injector.rng
    n = job.world if length == "n" else length
    if n > job.world or n < 2:
        raise Impossible
    ring = rng.sample(range(job.world), n)
    big = (max(4096, job.o["eager"]),)
    small = (4,)
    for k, r in enumerate(ring):
        to, frm = ring[(k + 1) % n], ring[k - 1]
        for section in range(1, len(injector.programs[r]) - 1):
            wrong = section == injector.section
            if section > injector.section or not (wrong or job.o["eager"]):
                continue
            size = big if wrong else small
            out = injector.programs[r][section] = list(injector.programs[r][section])
            out[1:1] = ([injector.mark()] if wrong else []) + [
                job.p2p(job.default, "send", to, size, "Float", "exch.send"),
                job.p2p(job.default, "recv", frm, size, "Float", "exch.recv")]
    return Fault(f"message_cycle_{length}", ring, "message_cycle",
                 f"Ranks {ring} all send before they receive and the message is above the eager "
                 "limit.",
                 None, "exch.send", [], ring)
