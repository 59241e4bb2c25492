"""Pipeline schedules of torch: they are sound, a change in them is detected, and their messages are
where torch puts them."""

import random

import pytest
from broken_orders import BROKEN

import shiplap
from shiplap.testing import assert_sound

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
_utils = pytest.importorskip("torch.distributed.pipelining._utils")
Action = schedules._Action

IN_A_V = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")  # stage k and its mirror on one rank
NAMES = (
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    *IN_A_V,
)
SIZES = [(2, 4), (2, 6), (3, 6), (4, 8), (4, 12), (8, 16)]  # ranks, microbatches


class Stage:
    """What a schedule asks of a stage of rank 0."""

    def __init__(self, index: int, ranks: int, rank_of: dict[int, int]) -> None:
        self.stage_index = index
        self.num_stages = len(rank_of)
        self.stage_index_to_group_rank = rank_of
        self.group_rank = 0
        self.group_size = ranks
        self.is_first = index == 0
        self.is_last = index == len(rank_of) - 1
        self.has_backward = True
        self.device = "cpu"
        self.submod = None


def schedule(name: str, ranks: int, microbatches: int, per_rank: int = 2):
    rank_of = _utils.generate_stage_to_rank_mapping(
        ranks, per_rank * ranks, "v" if name in IN_A_V else "loop"
    )
    mine = [Stage(stage, ranks, rank_of) for stage in rank_of if rank_of[stage] == 0]
    return getattr(schedules, name)(mine, microbatches, loss_fn=lambda *_: 0)


def one_stage_per_rank(name: str, ranks: int, microbatches: int):
    first = Stage(0, ranks, {rank: rank for rank in range(ranks)})
    return getattr(schedules, name)(first, microbatches, loss_fn=lambda *_: 0)


# ---- the rows of a schedule, and what they become


def text_of(order) -> str:
    """As ``_dump_csv`` writes it."""
    rows = (order[rank] for rank in sorted(order))
    return "".join(",".join("" if a is None else str(a) for a in row) + "\n" for row in rows)


def leaves(order):
    """For each rank its actions, those that overlap one by one."""
    return {
        rank: [leaf for a in row if a is not None for leaf in a.sub_actions or (a,)]
        for rank, row in order.items()
    }


def names_in_torch(order):
    """For each rank its computations and messages, under the names of a plan."""
    return {
        rank: [
            f"{a.computation_type.value}[{a.stage_index},{a.microbatch_index}]"
            for a in row
            if a.microbatch_index is not None and not a.computation_type.value.startswith("WAIT")
        ]
        for rank, row in leaves(order).items()
    }


def names_in_plan(plan):
    return {
        rank: [op["name"].replace(" ", "") for op in program["body"] if "name" in op]
        for rank, program in enumerate(plan.to_dict()["programs"])
    }


def mapping(order):
    return {
        a.stage_index: rank
        for rank, row in leaves(order).items()
        for a in row
        if a.is_compute_op
    }


def microbatches_of(order) -> int:
    return 1 + max(a.microbatch_index for row in leaves(order).values() for a in row)


def with_stage_actions(order):
    """The first two passes of torch's lowering: UNSHARD, RESHARD, REDUCE_GRAD."""
    count = microbatches_of(order)
    return {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(row), count)
        for rank, row in order.items()
    }


def with_messages(order):
    """The third."""
    rank_of = mapping(order)
    rows = {rank: list(row) for rank, row in order.items()}  # it empties them
    return schedules._add_send_recv(rows, lambda stage: rank_of[stage], len(rank_of))


def assert_plan(order, expected) -> None:
    """The plan of a schedule is sound and has these names."""
    text = text_of(order)
    plan = shiplap.Plan.from_schedule(text)
    assert names_in_plan(plan) == expected, text
    report = shiplap.check(plan)
    assert report and not report.findings, f"{report}\n{text}"


def assert_messages_as_in_torch(order) -> None:
    """Of computations alone; with the actions of stages; and with messages of its own."""
    staged = with_stage_actions(order)
    lowered = with_messages(staged)
    for each in (order, staged, lowered, schedules._add_wait_send(lowered)):
        assert_plan(each, names_in_torch(lowered))


# ---- schedules of torch


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sound(name, ranks):
    report = assert_sound(schedule(name, ranks, 2 * ranks))
    assert report.ranks == ranks and report.plan.name == f"{name}.pipeline_order_with_comms"
    assert shiplap.simulate(report.plan)


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 4), (4, 4), (4, 8), (8, 16)])
def test_schedules_that_are_code_are_judged_by_what_it_does(name, ranks, microbatches):
    report = assert_sound(one_stage_per_rank(name, ranks, microbatches))
    assert report.ranks == ranks and report.plan.name == f"{name}._step_microbatches"
    assert shiplap.simulate(report.plan)


def test_the_order_of_1f1b_is_not_what_torch_executes():
    """Of torch 2.15, whose `pipeline_order` of the last rank begins with microbatch 1."""
    order = one_stage_per_rank("Schedule1F1B", 4, 8).pipeline_order
    assert str(order[3][0]) == "3F1", "torch has fixed it"
    with pytest.raises(shiplap.InputError, match="D628"):
        shiplap.check(order)


def test_no_schedule_of_torch_is_left_out():
    found = {name for name in schedules.__all__ if name.startswith("Schedule")}
    assert found == {*NAMES, "ScheduleGPipe", "Schedule1F1B"}


def test_inference():
    forward_only = one_stage_per_rank("_ScheduleForwardOnly", 4, 6)
    forward_only._loss_fn = None
    report = assert_sound(forward_only)
    assert report.plan.name == "_ScheduleForwardOnly._step_microbatches"


# ---- what torch executes is what is checked


def test_an_order_of_actions_is_accepted_alone():
    made = schedule("ScheduleDualPipeV", 2, 4)
    assert assert_sound(made.pipeline_order)
    assert assert_sound(made.pipeline_order_with_comms)


@pytest.mark.parametrize("case", BROKEN)
def test_broken_orders(case):
    """`pipeline_order` is as it was; what torch executes is not."""
    broken = BROKEN[case]
    made = schedule(broken.schedule, 2, 4)
    broken.edit(made.pipeline_order_with_comms)
    assert_sound(made.pipeline_order)
    with pytest.raises((AssertionError, shiplap.InputError)) as caught:
        assert_sound(made)
    where = f"{broken.schedule}.pipeline_order_with_comms"
    assert where in str(caught.value) and f"error[{broken.code}]" in str(caught.value)


def actions(row: str):
    return [Action.from_str(action) for action in row.split(",")]


class InSteps(schedules.PipelineScheduleMulti):
    """Executed step by step: after each, the messages of all ranks in it."""

    def __init__(self, *rows: str) -> None:
        rank_of = {rank: rank for rank in range(len(rows))}
        super().__init__([Stage(0, len(rows), rank_of)], 2, loss_fn=lambda *_: 0)
        self.pipeline_order = {rank: actions(row) for rank, row in enumerate(rows)}


def test_steps():
    report = assert_sound(InSteps("0F0,0F1,,,0B0,0B1", ",1F0,1F1,1B0,1B1,"))
    assert report.plan.name == "InSteps._step_microbatches"


def test_a_step_cannot_use_what_is_computed_in_it():
    rows = ("0F0,0F1,,0B0,0B1,", "1F0,1F1,1B0,1B1,,")
    assert_sound({rank: actions(row) for rank, row in enumerate(rows)})
    with pytest.raises(AssertionError, match="D732"):
        assert_sound(InSteps(*rows))


class AllForwardsFirst(schedules.ScheduleGPipe):
    """Messages in an order of its own."""

    fused = True

    def _step_microbatches(self, *_, **__):
        stage, dist = self._stage, schedules.dist
        for i in range(self._n_microbatches):
            schedules._wait_batch_p2p(schedules._batch_p2p(stage.get_fwd_recv_ops(i)))
            stage.forward_one_chunk(i)
            if i + 1 < self._n_microbatches:
                schedules._batch_p2p(stage.get_fwd_send_ops(i))
        for i in range(self._n_microbatches):
            before = stage.get_bwd_send_ops(i - 1) if i else stage.get_fwd_send_ops(1)
            after = stage.get_bwd_recv_ops(i)
            for messages in [before + after] if self.fused else [before, after]:
                if messages:
                    schedules._wait_batch_p2p(dist.batch_isend_irecv(messages))
            stage.backward_one_chunk(i)
        schedules._batch_p2p(stage.get_bwd_send_ops(i))


def test_code_of_ones_own():
    made = AllForwardsFirst(Stage(0, 2, {0: 0, 1: 1}), 2, loss_fn=lambda *_: 0)
    report = assert_sound(made, rules="gloo")
    assert report.plan.name == "AllForwardsFirst._step_microbatches"


def test_code_that_fails_says_where():
    class Fails(schedules.ScheduleGPipe):
        def _step_microbatches(self, *_, **__):
            self._stage.forward_one_chunk(0)
            if self._stage.stage_index == 1:
                raise KeyError("mine")

    with pytest.raises(shiplap.InputError, match="on rank 1: KeyError: 'mine'") as caught:
        assert_sound(Fails(Stage(0, 2, {0: 0, 1: 1}), 2, loss_fn=lambda *_: 0))
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.diagnostics[0].why == "before it: 1F0"


@pytest.mark.parametrize("name", NAMES)
def test_two_actions_in_the_wrong_order(name):
    """The last backward, or half of it, comes first."""
    order = schedule(name, 4, 8).pipeline_order
    order[0][0], order[0][-1] = order[0][-1], order[0][0]
    with pytest.raises((AssertionError, shiplap.InputError), match="D6|D7"):
        assert_sound(order)


# ---- messages


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_messages_are_where_torch_puts_them(name, size):
    """Also in the order that torch keeps in the object and carries out, with its waits."""
    made = schedule(name, *size)
    assert_messages_as_in_torch(made.pipeline_order)
    carried_out = made.pipeline_order_with_comms
    for order in (made.pipeline_order, carried_out):
        assert_plan(order, names_in_torch(carried_out))


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_gpipe_and_1f1b(size):
    gpipe = one_stage_per_rank("ScheduleGPipe", *size).pipeline_order  # has REDUCE_GRAD
    assert_plan(gpipe, names_in_torch(with_messages(gpipe)))
    computed = (schedules.F, schedules.B)
    assert_messages_as_in_torch(
        {r: [a for a in row if a and a.computation_type in computed] for r, row in gpipe.items()}
    )
    ranks, microbatches = size
    order = {}
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, microbatches)
        kinds = "F" * warm_up + "FB" * (microbatches - warm_up) + "B" * warm_up
        order[rank] = [
            Action.from_str(f"{rank}{kind}{kinds[:i].count(kind)}") for i, kind in enumerate(kinds)
        ]
    assert_messages_as_in_torch(order)


OPTIONS = (
    {"_defer_reduce_grad_wait": True},
    {"_max_active_stages": 1},
    {"_unshard_lookahead": "auto"},
    {"_max_outstanding_sends": 4},
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_torch_lowers_with_other_options_is_sound(name, options):
    made = schedule(name, 4, 8)
    if "_max_active_stages" in options and name == "ScheduleDualPipeV":
        options = {"_max_active_stages": 2}  # two stages overlap
    for option, value in options.items():
        assert hasattr(made, option)
        setattr(made, option, value)
    made._prepare_schedule_with_comms(made.pipeline_order)
    assert_sound(shiplap.Plan.from_schedule(text_of(made.pipeline_order_with_comms)))


@pytest.mark.parametrize("name", NAMES)
def test_receives_that_torch_defers_can_hang(name):
    """Just before their use, as in pytorch#172668: neighbours send to each other first."""
    made = schedule(name, 4, 8)
    made._defer_pp_recv = True
    made._prepare_schedule_with_comms(made.pipeline_order)
    plan = shiplap.Plan.from_schedule(text_of(made.pipeline_order_with_comms))
    assert "D721" in shiplap.check(plan).codes


# ---- actions of stages


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("0UNSHARD,0F0,0I0,0W0,0RESHARD", None),
        ("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD", None),
        ("0RESHARD,0F0,0B0", "D733"),
        ("0F0,0UNSHARD,0B0,0RESHARD", "D733"),
        ("0UNSHARD,0F0,0RESHARD,0B0", "D733"),
        ("0UNSHARD,0F0,0I0,0RESHARD,0W0", "D733"),
        ("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD", "D733"),
        ("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD", "D733"),
        ("0F0,0F1,0B0,0REDUCE_GRAD,0B1", "D741"),
    ],
)
def test_weights_are_there_and_gradients_complete(row, code):
    report = shiplap.check(shiplap.Plan.from_schedule(row))
    assert bool(report) == (code is None)
    assert code is None or report.codes[0] == code


# ---- random schedules


def random_order(rng: random.Random):
    """Computations in some order that their data allow, dealt out to ranks."""
    ranks, per_rank, microbatches = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4)
    stages = ranks * per_rank
    rank_of = _utils.generate_stage_to_rank_mapping(ranks, stages, rng.choice(["loop", "v"]))
    backward = {
        (stage, microbatch): (stage, rng.choice("BBI"), microbatch)
        for stage in range(stages)
        for microbatch in range(microbatches)
    }
    needs = {}
    for (stage, microbatch), back in backward.items():
        forward = (stage, "F", microbatch)
        needs[forward] = [(stage - 1, "F", microbatch)] if stage > 0 else []
        needs[back] = [forward] + ([backward[stage + 1, microbatch]] if stage + 1 < stages else [])
        if back[1] == "I":
            needs[stage, "W", microbatch] = [back]
    order, done, eager = {rank: [] for rank in range(ranks)}, set(), rng.random()
    while len(done) < len(needs):
        ready = [a for a in needs if a not in done and all(n in done for n in needs[a])]
        first = [a for a in ready if a[1] != "F"] if rng.random() < eager else []
        stage, kind, microbatch = rng.choice(first or ready)
        done.add((stage, kind, microbatch))
        row = order[rank_of[stage]]
        if rng.random() < 0.2:
            row.append(None)
        row.append(Action.from_str(f"{stage}{kind}{microbatch}"))
    return order


def with_overlaps(order, rng: random.Random):
    """Some pairs of a forward and a backward that follow each other, as one action."""
    result = {}
    for rank, row in order.items():
        new = []
        for action in row:
            before = new[-1] if new else None
            pair = (
                None not in (before, action)
                and before.sub_actions is None
                and {before.computation_type.value, action.computation_type.value}
                in ({"F", "B"}, {"F", "I"})
            )
            if pair and rng.random() < 0.5:
                new[-1] = Action(-1, schedules.OVERLAP_F_B, None, (before, action))
            else:
                new.append(action)
        result[rank] = new
    return result


def accepted_by_torch(order) -> bool:
    """Its check of computations, and its simulation."""
    rank_of = mapping(order)
    try:
        schedules._validate_schedule(order, len(order), len(rank_of), microbatches_of(order))
        with_messages(with_stage_actions(order))
    except (AssertionError, IndexError):  # IndexError: of its message, if rows differ in length
        return False
    return True


@pytest.mark.parametrize("seed", range(200))
def test_messages_of_random_schedules(seed):
    rng = random.Random(seed)
    order = random_order(rng)
    assert accepted_by_torch(order)
    assert_messages_as_in_torch(order)
    overlapped = with_overlaps(order, rng)
    if accepted_by_torch(overlapped):
        assert_messages_as_in_torch(overlapped)


@pytest.mark.parametrize("seed", range(200))
def test_what_torch_refuses_is_not_sound(seed):
    """Two actions of a rank swapped: `check` and torch agree."""
    rng = random.Random(seed)
    order = random_order(rng)
    row = order[rng.randrange(len(order))]
    i, k = rng.randrange(len(row)), rng.randrange(len(row))
    row[i], row[k] = row[k], row[i]
    try:
        report = shiplap.check(shiplap.Plan.from_schedule(text_of(order)))
    except shiplap.InputError as error:
        report = error
    sound = bool(report) and not isinstance(report, shiplap.InputError)
    assert sound == accepted_by_torch(order), f"{report}\n{text_of(order)}"
