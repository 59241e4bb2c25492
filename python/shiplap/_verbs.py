"""The commands of the command line, with the same names and defaults."""

from __future__ import annotations

import numbers
import operator
import os
import pathlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, Union, get_args

from shiplap import _shiplap
from shiplap._errors import InputError
from shiplap._results import Finding, Postmortem, Report, Run, Simulation, Training
from shiplap._shiplap import Model, Plan
from shiplap._torch_schedule import executed_order, to_csv

Path = Union[str, "os.PathLike[str]"]
Strategy = Callable[[Model], Coroutine[Any, Any, object]]
Datatype = Literal["float8", "float16", "bfloat16", "float32"]
Rules = Literal["any", "nccl", "mpi", "gloo"]
Sends = Literal["both", "eager", "rendezvous"]
Links = Literal["separate", "shared"]
Queues = Literal["streams", "one"]


class HasPlan(Protocol):
    """An object that has a plan, such as the result of ``train``."""

    @property
    def plan(self) -> Plan:
        """The plan."""
        ...


class TorchSchedule(Protocol):
    """A schedule of torch.distributed.pipelining."""

    pipeline_order: Any  # the actions of each rank; None: idle


Order = Mapping[int, Sequence[Any]]  # the actions of each rank, such as a ``pipeline_order``
Subject = Union[Plan, HasPlan, TorchSchedule, Order, str, "os.PathLike[str]"]


def plan_of(subject: Subject) -> Plan:
    """Returns the plan of a Plan, a training, a schedule of torch, or a file.

    A file is a ``.plan``, its JSON, or a pipeline schedule of torch as ``.csv``. Of a schedule
    object, the order is used that torch executes, and the name of the plan says which that is:
    ``ScheduleDualPipeV.pipeline_order_with_comms``, or ``ScheduleGPipe._step_microbatches`` if the
    order is defined by code.
    """
    if isinstance(subject, Plan):
        return subject
    if isinstance(subject, (str, os.PathLike)):
        path = os.fsdecode(subject)
        if path.endswith(".csv"):
            return Plan.from_schedule(_shiplap._read_file(path), path)
        return Plan.read(path)
    of_any: Any = subject
    plan = of_any.plan if hasattr(type(subject), "plan") else getattr(subject, "plan", None)
    if isinstance(plan, Plan):
        return plan
    if isinstance(subject, Mapping) and all(isinstance(rank, int) for rank in subject):
        return Plan.from_schedule(to_csv(subject), "schedule")
    if hasattr(subject, "pipeline_order"):
        attribute, order = executed_order(subject)
        name = f"{type(subject).__name__}.{attribute}"
        return Plan.from_schedule(to_csv(order), name)
    raise TypeError(
        "expected a Plan, an object with a plan, a pipeline schedule of torch, the actions of each "
        f"rank, or a file name; got {subject!r}"
    )


def _checked(name: str, value: Any) -> int | None:
    """An integer, of numpy too; the error names the argument."""
    try:
        return None if value is None else operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, found {value!r}") from None


def _word(name: str, value: Any) -> Any:
    """A str; the error names the argument."""
    if isinstance(value, str):
        return value
    raise TypeError(f"{name}: expected a str, found {value!r}")


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of the words; the error names the argument."""
    word: str = _word(name, value)
    if word not in choices:
        raise InputError(f"{name}: expected {' or '.join(choices)}, found {word!r}")
    return word


def _factors(name: str, value: Any) -> list[tuple[int, float]]:
    """A number for each of some ranks; the error names the argument."""
    if not isinstance(value, (Mapping, type(None))):
        raise TypeError(f"{name}: expected a dict such as {{3: 0.5}}, found {value!r}")
    made = []
    for rank, factor in (value or {}).items():
        if not isinstance(factor, numbers.Real):
            raise TypeError(f"{name}: expected a float for rank {rank}, found {factor!r}")
        made.append((_checked(name, rank) or 0, float(factor)))
    return made


def _path(name: str, value: Any) -> str:
    """The text of a path; the error names the argument."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name}: expected a str or a path, found {value!r}") from None


def _axes(mesh: Any) -> str | None:
    """``dp=2,pp=4``, of a dict too."""
    if isinstance(mesh, Mapping):
        for size in mesh.values():
            if isinstance(size, str) and not size.isalnum():  # "2,pp=2" would be two axes
                raise TypeError(f"mesh: expected an int, found {size!r}")
        return ",".join(f"{axis}={size}" for axis, size in mesh.items())
    if mesh is None or isinstance(mesh, str):
        return mesh
    raise TypeError('mesh: expected a dict such as {"dp": 2, "pp": 4}, or "dp=2,pp=4"')


def train(
    strategy: str | Strategy,
    *,
    ranks: int | None = None,
    mesh: Mapping[str, int] | str | None = None,
    layers: int | None = None,
    batch: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    zero_stage: int | None = None,
    hidden: int | None = None,
    block: int | None = None,
    datatype: Datatype | None = None,
    moments: int | None = None,
    hardware: Path = "h100_80g_nvl8",
    eager: int = 0,
    for_run: bool = False,
) -> Training:
    """Trains a strategy in virtual time: a built-in one or your own.

    >>> async def ddp(model):
    ...     weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    ...     for l in range(model.layers):
    ...         weights[l], opt_states[l] = model.load_weights(l)
    ...     activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    ...     for l in range(model.layers):
    ...         activations[l + 1] = model.forward(l, activations[l], weights[l])
    ...     grad_activations[model.layers] = model.loss(activations[model.layers])
    ...     for l in reversed(range(model.layers)):
    ...         grad_weights[l], grad_activations[l] = model.backward(
    ...             l, activations[l], grad_activations[l + 1], weights[l])
    ...         del grad_activations[l + 1], activations[l]
    ...         grad_weights[l] = await model.all_reduce(grad_weights[l], l)
    ...         weights[l], opt_states[l] = model.update(
    ...             l, grad_weights[l], weights[l], opt_states[l])
    ...         model.set_final_weight(l, weights[l])
    >>> shiplap.train(ddp, ranks=8, layers=4, batch=8)
    <Training ddp on 8 ranks of h100_80g_nvl8: step 1.66 ms, peak memory 544 MiB>
    >>> shiplap.train("fsdp", ranks=8, layers=4, batch=8)
    <Training fsdp on 8 ranks of h100_80g_nvl8: step 1.15 ms, peak memory 216 MiB>

    ``strategy`` is one of ``strategies()``, or an ``async def`` that every rank runs with its own
    ``Model``.

    ``ranks`` is the number of ranks, 4. ``mesh`` gives its axes and their sizes, of which the last
    varies fastest: ``{"dp": 2, "pp": 4}``. The default of your own strategy is one axis ``dp``.

    ``layers`` is the number of layers, 4, or as many as the stages of a pipeline need. ``batch`` is
    the number of samples of all ranks, 4 for each; ``microbatches`` is into how many parts each
    rank splits its samples. ``chunks`` is the number of groups of layers on each rank of an
    interleaved pipeline, ``zero_stage`` the stage of ZeRO (0 to 3) of ``hybrid``. Your own strategy
    reads them from its model.

    A weight is a matrix of ``hidden`` x ``hidden``, 4096; a sample has ``block`` tokens, 1024; both
    are of ``datatype``, ``float16``. The state of the optimizer is as large as ``moments`` weights,
    2 for Adam.

    ``hardware`` is one of ``known_systems()``, or a file. Messages of up to ``eager`` bytes are
    sent at once, others when their receive has started. With ``for_run``, layers are small and in
    float32, so that ``run`` can execute the plan.
    """
    sizes = {"ranks": ranks, "layers": layers, "batch": batch, "microbatches": microbatches,
             "chunks": chunks, "zero_stage": zero_stage, "hidden": hidden, "block": block,
             "moments": moments, "eager": eager}
    given = {name: _checked(name, value) for name, value in sizes.items()}
    return Training(_shiplap._train(strategy, {
        **given, "mesh": _axes(mesh),
        "datatype": None if datatype is None else _word("datatype", datatype),
        "hardware": _path("hardware", hardware),
        "for_run": bool(for_run)}))


def check(
    plan: Subject,
    *,
    rules: Rules = "any",
    sends: Sends = "both",
    eager: int | None = None,
    symmetry: bool = True,
) -> Report:
    """Checks whether a plan is sound. The result is proved for every rank.

    ``rules`` is the communication library: ``nccl``, ``mpi``, ``gloo``, or ``any`` of them.
    ``sends`` is when a send completes: ``eager`` (at once), ``rendezvous`` (when its receive has
    started), or ``both`` are checked. If ``eager`` is given, sends of up to ``eager`` bytes are
    eager and others rendezvous. Without ``symmetry``, equivalent ranks are all checked, instead of
    one representative.

    >>> report = shiplap.check(shiplap.train("1f1b", ranks=4, layers=4, batch=8))
    >>> report
    <Report 1f1b on 4 ranks: sound, 0 findings>
    """
    subject = plan_of(plan)
    options: dict[str, Any] = {
        "rules": _word("rules", rules), "sends": _word("sends", sends),
        "eager": _checked("eager", eager), "symmetry": bool(symmetry)}
    sound, findings, ranks, operations, texts, json, sarif = _shiplap._check(subject, **options)
    found = [Finding(*fields) for fields in findings]
    return Report(subject, sound, found, ranks, operations, texts, json, sarif, options)


def simulate(
    plan: Subject,
    *,
    hardware: Path = "h100_80g_nvl8",
    eager: int = 0,
    links: Links = "separate",
    queues: Queues = "streams",
    slow_ranks: Mapping[int, float] | None = None,
    slow_links: Mapping[int, float] | None = None,
    fold: bool = True,
) -> Simulation:
    """Simulates a plan: its step time and memory.

    ``hardware`` is one of ``known_systems()``, or a file. Messages of up to ``eager`` bytes are
    sent eagerly.

    ``links``: ``shared``, if transfers that cross a link at the same time share it; ``separate``,
    if each is as fast as alone. ``queues``: ``one``, if operations of all streams of a rank start
    in program order, as with ``CUDA_DEVICE_MAX_CONNECTIONS=1``; ``streams``, if each stream has its
    own. ``slow_ranks`` are stragglers,
    ``{3: 1.2}``: computations of rank 3 take 1.2 times as long. ``slow_links`` are degraded
    adapters, ``{3: 0.5}``: half of the bandwidth is left, which needs ``shared`` links.

    Above 8 ranks, those that provably take the same times are simulated once, with the same
    numbers: a step of 16,384 ranks takes seconds. Of such ranks, the events have the samples of the
    first, and a trace that is saved is simulated in full. Without ``fold``, each rank is simulated.

    >>> simulation = shiplap.simulate(shiplap.train("ddp", ranks=8, layers=4, batch=8))
    >>> simulation
    <Simulation ddp on 8 ranks on h100_80g_nvl8: step 1.66 ms, peak memory 536 MiB>
    """
    subject = plan_of(plan)
    return Simulation(subject, *_shiplap._simulate(
        subject, _path("hardware", hardware), _checked("eager", eager) or 0, bool(fold),
        _choice("links", links, get_args(Links)), _choice("queues", queues, get_args(Queues)),
        _factors("slow_ranks", slow_ranks), _factors("slow_links", slow_links)))


def run(plan: Subject, *, steps: int = 5, seed: int = 1) -> Run:
    """Executes a training plan in f32, on one thread per rank.

    To run it in the processes of an MPI job: ``shiplap run step.plan --backend mpi``.

    >>> result = shiplap.run(shiplap.train("fsdp", ranks=2, batch=2, for_run=True), steps=3)
    >>> result.good, len(result.loss)
    (True, 3)
    """
    from shiplap import _gemm_library

    _gemm_library.is_fast()  # the tool has loaded what there is, too
    subject = plan_of(plan)
    return Run(subject, *_shiplap._run(subject, _checked("steps", steps) or 0,
                                       _checked("seed", seed) or 0))


Contents = Union[bytes, str]
Dumps = Union[
    str,
    "os.PathLike[str]",
    Sequence[Union[str, "os.PathLike[str]"]],
    Mapping[int, Union[Contents, Sequence[Contents]]],
]


def postmortem(
    dumps: Dumps, *, plan: Subject | None = None, hung: bool | str = False, world: int = 0
) -> Postmortem:
    """Says why a job hung: which rank, which call, which line.

    ``dumps`` are flight recorder dumps and stacks: their files or folders, or, by rank, their
    contents (pickle, JSON, or the text of a stack; several of a rank as a list). ``plan`` is what
    the job should do, as recorded by ``shiplap record``. With ``hung``, which may say how it is
    known, the job hangs for sure and needs no proof. ``world`` is the number of ranks, if the dumps
    of the last ones are missing.

    >>> answer = shiplap.postmortem("data/hung_jobs/real/skips_operation/dumps")
    >>> answer.suspects[0].ranks, answer.suspects[0].fault
    ([2], 'divergence')
    """
    intended = None if plan is None else plan_of(plan)
    reason = hung if isinstance(hung, str) else "assumed" if hung else ""
    world = _checked("world", world) or 0
    if isinstance(dumps, (str, os.PathLike)):
        dumps = [dumps]
    if not isinstance(dumps, Mapping):
        paths = [_path("dumps", path) for path in dumps]
        return Postmortem._of(*_shiplap._postmortem_files(paths, reason, world, intended))
    contents = []
    for rank, each in dumps.items():
        several = [each] if isinstance(each, (bytes, str)) else each
        contents += [(rank, one.encode() if isinstance(one, str) else one) for one in several]
    return Postmortem._of(*_shiplap._postmortem_contents(contents, reason, world, intended))


class Answer(dict[str, Any]):
    """The ``--json`` output of a command as a dict; ``text`` is the readable output."""

    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A plain dict."""
        return dict(self)

    def __repr__(self) -> str:
        return self.text.rstrip()


def _arguments(flags: dict[str, Any]) -> list[str]:
    arguments = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            text = os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
            arguments += [flag, text]
    return arguments


def overlap(
    *,
    op: Literal["ag", "rs", "ar", "none"] | None = None,
    method: Literal["none", "bulk", "pipeline", "ring_exchange", "auto"] | None = None,
    atomic: bool = False,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    tp: int | None = None,
    chunks: int | None = None,
    tapered: bool = False,
    type: Literal["bf16", "f16", "f32"] | None = None,
    scaling: Literal["none", "tensor", "mxfp8"] | None = None,
    fp8: Literal["e4m3", "e5m2"] | None = None,
    high_precision_sums: bool = False,
    groups: int | None = None,
    hardware: Path | None = None,
    calibration: Path | None = None,
    run: bool = False,
    polled: bool = False,
    rounds: int | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    list: bool = False,
    output: Path | None = None,
) -> Answer:
    """Overlaps a GEMM with its communication: how to split it into chunks, and the time saved.

    >>> shiplap.overlap(op="ag", m=8192, n=8192, k=8192, tp=8, method="auto",
    ...                 hardware="h100_80g_nvl8")["schema"]
    'shiplap.overlap.auto/1'

    ``op`` is the collective: ``ag`` (all-gather of X before the GEMM), ``rs`` (reduce-scatter of
    Y), ``ar`` (all-reduce of Y), ``none``. X is ``m`` x ``k``, W is ``k`` x ``n``, over all ``tp``
    ranks (4), of ``type`` (``bf16``). ``groups`` is the number of experts of a grouped GEMM.

    ``method`` is ``ring_exchange`` by default; with ``hardware`` alone, all are compared; ``auto``
    is the fastest according to ``hardware`` or ``calibration``. ``chunks`` is into how many parts
    each rank's rows are split (1), ``tapered`` into smaller ones where nothing overlaps them. With
    ``atomic``, one GEMM call computes all chunks, and a message waits for the counter of its chunk.

    ``scaling`` quantizes X, W and partial sums to FP8, ``fp8`` (``e4m3``): ``tensor`` has one scale
    for W and one per row of the others, ``mxfp8`` one per 32 values. With ``high_precision_sums``,
    partial sums are sent as ``type``.

    ``hardware`` predicts times: one of ``known_systems()``, or a file. ``run`` executes and
    measures it on threads, in ``rounds`` rounds (9); ``polled`` without a progress thread.
    ``report`` writes an HTML report, ``trace`` a trace, ``output`` the plan. ``list`` lists the
    supported combinations.
    """
    if not (hardware or run or list or method == "auto"):
        raise InputError.of("D003", "nothing to predict or to measure",
                            help="give hardware='h100_80g_nvl8', run=True or list=True")
    found, text = _shiplap._overlap(_arguments(locals()))
    answer = Answer()
    answer.text = text
    answer.update(found)
    return answer


def explain(code: str) -> str:
    """Returns the documentation of a diagnostic, or a page that a docstring names.

    >>> print(shiplap.explain("D720").splitlines()[0])
    # D720: a deadlock
    >>> print(shiplap.explain("docs/strategy.md").splitlines()[0])
    # Strategies
    """
    page = pathlib.Path(__file__).parent / code
    if code.startswith("docs/") and page.suffix == ".md" and page.is_file():
        return page.read_text(encoding="utf-8")
    return _shiplap._explain(code)
