"""Simulated time: events, and what each of them waits for.

The simulation is a max-plus evaluation of the event graph: an event has the latest time of the
events it depends on, plus a duration. Since programs contain no data-dependent control flow the
result does not depend on the order of evaluation. An event that depends on something that never
happens has no time; those are what hangs.
"""


class Event:
    """A moment in simulated time (seconds): the latest of its dependencies plus `add`.

    Its time `t` is None until the times of all dependencies are known. `cpu` is the rank whose CPU
    waits for it, if any.
    """

    __slots__ = ("t", "pending", "latest", "add", "waiters", "cpu")

    def __init__(self, pending, latest=0.0, add=0.0):
        self.t = None
        self.pending = pending
        self.latest = latest
        self.add = add
        self.waiters = []
        self.cpu = None


def fire(event, ready_cpus):
    """Gives `event` its time, and all that thereby have no more unknown dependencies."""
    stack = [event]
    while stack:
        e = stack.pop()
        t = e.t = e.latest + e.add
        for w in e.waiters:
            if t > w.latest:
                w.latest = t
            w.pending -= 1
            if not w.pending:
                stack.append(w)
        e.waiters = None
        if e.cpu is not None:
            ready_cpus.append(e.cpu)


def depend(event, on):
    """Makes `event` wait for `on`.

    REQUIRES: `event` still holds one pending count for the caller (released by `release`).
    """
    if on.t is None:
        event.pending += 1
        on.waiters.append(event)
    elif on.t > event.latest:
        event.latest = on.t


def release(event, ready_cpus):
    """Gives up one pending count of `event`; it fires with the last one."""
    event.pending -= 1
    if not event.pending:
        fire(event, ready_cpus)


def unresolved(event):
    """Whether the event never happens (REQUIRES: the simulation has ended)."""
    return event is None or event.t is None
