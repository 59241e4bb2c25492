"""What a rank executes: instructions on process groups."""

# Kinds of instructions: calls (COLL, P2P, BATCH), what the host does, and marks of faults.
COLL, P2P, BATCH, COMPUTE, SYNC, WAIT, STUCK, CPU, MARK = range(9)
DTYPE_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Int": 4, "Byte": 1, "Double": 8,
               "Float8_e4m3fn": 1}


class Group:
    """A process group as one rank sees it.

    Ranks that disagree on the members have distinct Group objects. `slots`, `sends` and `recvs`
    hold the calls that the simulation has seen.
    """

    def __init__(self, name, desc, ranks):
        self.name, self.desc, self.ranks = name, desc, tuple(ranks)
        self.index = {r: i for i, r in enumerate(ranks)}
        self.slots = []
        self.sends, self.recvs = {}, {}

    def __len__(self):
        return len(self.ranks)


class Instr:
    """One instruction of a program: a call on group `g`, or what the host or compute stream does.

    `ins` and `outs` are the sizes of the tensors, `dt` is their dtype, `pt` the program point that
    makes the call (see frames.py). `sync`: the compute stream waits for the call. `peer` is a group
    rank, `parts` the messages of a batch, `dur` a duration in seconds, `sig` what must be equal on
    all members. Instructions are shared and constant; `copy` gives a changed one.
    """

    __slots__ = ("kind", "g", "op", "ins", "outs", "dt", "pt", "sig", "sync", "peer", "parts",
                 "dur", "device", "fault")

    def __init__(self, kind, g=None, op=None, ins=None, outs=None, dt=None, pt=None, sync=True,
                 peer=None, parts=None, dur=0.0):
        self.kind, self.g, self.op, self.ins, self.outs = kind, g, op, ins, outs
        self.dt, self.pt = dt, pt
        self.sync, self.peer, self.parts, self.dur = sync, peer, parts, dur
        self.device = None  # ("all" | "one" | "pair", rank, ...): device fault in this call
        self.fault = None
        self.sig = (op, str(ins), str(outs), dt)

    def copy(self, **changes):
        """The same instruction with some attributes changed."""
        c = Instr(self.kind, self.g, self.op, self.ins, self.outs, self.dt, self.pt, self.sync,
                  self.peer, self.parts, self.dur)
        for k, v in changes.items():
            setattr(c, k, v)
        c.sig = (c.op, str(c.ins), str(c.outs), c.dt)
        return c
