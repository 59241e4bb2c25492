"""What a fault is, and the tools to put it into the program of a rank."""

from hung_jobs.program import MARK, Instr


class Fault:
    """One edit of the programs, and what an expert can conclude from its effects.

    `cls`, `divergence`, `acceptable`, `identifiable` and `also` (divergence_also) are fields of
    answer.json (see the README); `line` is the program point of the culprit's call, `instr` the
    call itself, `group` the ranks whose dumps hold the evidence.
    """

    def __init__(self, kind, culprits, cls, why, divergence=None, line=None, acceptable=(),
                 group=(), also=(), instr=None, identifiable="unique"):
        self.kind, self.culprits, self.cls, self.why = kind, sorted(culprits), cls, why
        self.divergence, self.line, self.instr = divergence, line, instr
        self.acceptable = [sorted(a) for a in acceptable]
        self.group = tuple(group)
        self.also = list(also)
        self.identifiable = identifiable
        self.skipped_pt = None  # the program point of a skipped call
        # The group whose first incomplete call must show the culprit as the odd one.
        self.in_group = None
        self.id = None


class Impossible(Exception):
    """The fault does not apply to this mesh, rank or step."""


class Injector:
    """Edits `programs[rank][section]`.

    Section 0 is the setup, then come the steps, then the epilogue. `no_dump` are the ranks that
    die. A kind of fault is a function of an injector and `used`, the ranks it must not make
    culprits; it edits the programs and returns the `Fault`, or raises `Impossible`.
    """

    def __init__(self, job, programs, rng, section, number):
        self.job, self.programs, self.rng = job, programs, rng
        self.section, self.number = section, number
        self.no_dump = set()

    def rank(self, used, among=None):
        """A random rank that is not in `used`."""
        ranks = [r for r in (among if among is not None else range(self.job.world))
                 if r not in used]
        if not ranks:
            raise Impossible
        return self.rng.choice(ranks)

    def edit(self, r):
        """The section of rank r, as a copy of its own to edit."""
        self.programs[r][self.section] = out = list(self.programs[r][self.section])
        return out

    def mark(self, kind=MARK):
        """An instruction that notes that a rank came to the fault."""
        i = Instr(kind)
        i.fault = self.number
        return i

    def pick(self, r, pred):
        """The index of a random instruction of the section of rank r for which `pred` is true."""
        step = self.programs[r][self.section]
        found = [k for k, i in enumerate(step) if pred(i)]
        if not found:
            raise Impossible
        return self.rng.choice(found)


def pair(g, c):
    """In a group of two either side may be wrong: further acceptable answers."""
    if len(g) > 2:
        return []
    other = [r for r in g.ranks if r != c]
    return [other, list(g.ranks)]


def identifiable(acceptable):
    """The field of this name, for a mismatch with these further acceptable answers."""
    return "pair" if acceptable else "unique"
