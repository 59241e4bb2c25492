"""What ranks do with a Dispatcher in the tests: right things, then wrong ones."""

import os
import time
from typing import Any

import torch
import torch.distributed as dist

import shiplap
import shiplap.torch
from shiplap import dispatch
from shiplap._torch_group import MonitoredGroup

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8,
          torch.bool, torch.complex64, torch.int32]


def numbers(table: dispatch.Metadata, shape: tuple[int, ...], dtype: torch.dtype,
            seed: int) -> list[torch.Tensor]:
    """Something for each token of every rank; the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for rank in range(table.world_size):
        x = 8 * torch.randn((table.num_send_tokens(rank), *shape), generator=generator)
        made.append(x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype))
    return made


def expected(pair: dispatch.MetadataPair, xs: list[torch.Tensor], back: bool) -> list[torch.Tensor]:
    """What the referee says that comes out."""
    there, other = (pair.reverse, pair.forward) if back else (pair.forward, pair.reverse)
    outs = [torch.zeros((other.num_send_tokens(rank), *x.shape[1:]), dtype=x.dtype)
            for rank, x in enumerate(xs)]
    if there.arrival == "summed":
        dispatch.sum_simulate(xs, outs, there)
    else:
        dispatch.orchestrate_simulate(xs, outs, there)
    return outs


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def agree_with_referee(rank: int, size: int) -> list[str]:
    """Every type and shape, there and back; what differs is listed."""
    wrong = []
    for seed in range(4):
        made = dispatch.create_qkv_dispatch(size, 24 + 7 * seed, 3, 4, seed=seed)
        dispatcher = shiplap.torch.Dispatcher(made, deadline=20)
        for name, pair, exchange in [("q", made.q, dispatcher.q), ("kv", made.kv, dispatcher.kv)]:
            for dtype in DTYPES if seed == 0 else DTYPES[:3]:
                for shape in [(), (3,), (2, 4), (0,)]:
                    xs = numbers(pair.forward, shape, dtype, seed)
                    there = expected(pair, xs, back=False)
                    if not same(exchange(xs[rank]), there[rank]):
                        wrong.append(f"{name} there {dtype} {shape}")
                    if name == "kv" and dtype in (torch.uint8, torch.bool, torch.complex64):
                        continue  # the referee does not sum these
                    if not same(exchange.back(there[rank]), expected(pair, there, True)[rank]):
                        wrong.append(f"{name} back {dtype} {shape}")
    return wrong


def all_types() -> list[torch.dtype]:
    """Of torch, but for quantized ones."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted((one for one in found if not str(one).startswith(("torch.q"))), key=str)


def all_types_move(rank: int, size: int) -> dict[str, str]:
    """What becomes of each type: bits arrive as bytes do, and the sum of unsigned ones is right."""
    made = dispatch.create_qkv_dispatch(size, 24, 3, 4, seed=2)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=5)
    found = {}
    for dtype in all_types():
        bits = [torch.randint(0, 256, (len(x), 3 * dtype.itemsize), dtype=torch.uint8,
                              generator=torch.Generator().manual_seed(seed))
                for seed, x in enumerate(numbers(made.kv.forward, (), torch.uint8, 1))]
        there = expected(made.kv, bits, False)[rank]
        moved = dispatcher.kv(bits[rank].view(dtype))
        right = moved.dtype == dtype and same(moved.view(torch.uint8), there)
        right &= same(dispatcher.q.back(dispatcher.q(bits[rank].view(dtype))).view(torch.uint8),
                      bits[rank])
        back, text, _ = raised(lambda: dispatcher.kv.back(torch.empty(
            (dispatcher.kv.tokens_there, 2), dtype=dtype).view(torch.uint8).fill_(1).view(dtype)))
        if back:
            right &= back == "InputError" and "D400" in text
            dispatcher = again(made)
        found[str(dtype)[6:]] = f"{'moved' if right else 'wrong'}{'' if back else ', summed'}"
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        ones = numbers(made.kv.reverse, (2,), torch.int64, 3)
        sums = dispatcher.kv.back(ones[rank].to(dtype))
        home = expected(made.kv, ones, back=True)[rank]
        if not same(sums, home.to(dtype)):
            found[str(dtype)] = "wrong sum"
    return found


def again(made: dispatch.QkvDispatch) -> shiplap.torch.Dispatcher:
    """After all have failed in the same way."""
    return shiplap.torch.Dispatcher(made, dist.new_group(), deadline=5)


def changed_in_place(rank: int, size: int) -> list[str]:
    """What comes out may be changed in place, and its gradient is right."""
    wrong = []
    made = dispatch.create_qkv_dispatch(size, 24, 3, 4, seed=2)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=5)
    for shape in [(), (2,), (2, 3)]:
        x = torch.ones((dispatcher.q.tokens, *shape), requires_grad=True)
        q, k, v = dispatcher.dispatch(x, x, x)
        home = dispatcher.combine(q.mul_(2)).mul_(3)
        k.mul_(0)
        v.zero_()
        moved = dispatcher.q(x).add_(1)
        (home.sum() + k.sum() + moved.sum()).backward()  # type: ignore[no-untyped-call]
        if not torch.equal(x.grad, torch.full_like(x, 7)):
            wrong.append(str(shape))
    return wrong


def dispatch_is_its_exchanges(rank: int, size: int) -> list[str]:
    """One message of q, k and v, or several if they cannot be one, gives what each alone gives."""
    wrong = []
    shapes: list[tuple[tuple[int, ...], ...]] = [
        ((4,), (4,), (4,)), ((8, 2), (4,), (4,)), ((3,), (5,), (1,)), ((1,), (16,), (2, 8)),
        ((0,), (2,), (0,)), ((), (), ()), ((0,), (0,), (0,))]
    for seed in (2, 3):
        made = dispatch.create_qkv_dispatch(size, 24, 3, 4, seed=seed)
        dispatcher = shiplap.torch.Dispatcher(made, deadline=20)
        for types in ((torch.float32,) * 3, (torch.bfloat16,) * 3,
                      (torch.float64, torch.float32, torch.float32)):
            for of in (*shapes, *shapes[:2]):  # the last again, with what was kept
                q, k, v = (torch.randn(dispatcher.q.tokens, *shape).to(dtype).requires_grad_()
                           for shape, dtype in zip(of, types))
                found = dispatcher.dispatch(q, k, v)
                expected = (dispatcher.q(q), *dispatcher.kv(k, v))
                if not all(torch.equal(a, b) and a._base is None
                           for a, b in zip(found, expected)):
                    wrong.append(f"{of} of {types}, seed {seed}")
    return wrong


def inference_before_training(rank: int, size: int) -> list[str]:
    """Buffers that were first used in inference mode can be used outside of it."""
    dispatcher = shiplap.torch.Dispatcher(dispatch.create_qkv_dispatch(size, 24, 3, 4, seed=2),
                                          deadline=20)
    x = torch.ones(dispatcher.q.tokens, 2)
    with torch.inference_mode():
        first = dispatcher.combine(dispatcher.dispatch(x, x, x)[0])
    again = dispatcher.combine(dispatcher.dispatch(x, x, x)[0])
    return [] if torch.equal(first, again) else ["other values"]


def goes_wrong_after(rank: int, size: int) -> Any:
    """On rank 1, when all rows have arrived; the others are in the next exchange by then."""
    made = dispatch.create_qkv_dispatch(size, 24, 3, 4, seed=2)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=20)
    x = torch.ones(dispatcher.q.tokens, 2)
    if rank == 1:
        def planted(*_: Any) -> None:
            raise shiplap.InternalError("planted")

        shiplap.torch._Message.unpack = planted  # type: ignore[assignment]
    return raised(lambda: dispatcher.combine(dispatcher.dispatch(x, x, x)[0]))


def gradients_are_summed(rank: int, size: int) -> list[str]:
    """The gradient of a dispatch is the reference's combine, bit for bit, also a second time."""
    wrong = []
    made = dispatch.create_qkv_dispatch(size, 40, 3, 4, seed=9)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=20)
    for dtype in (torch.float32, torch.bfloat16):
        xs = numbers(made.kv.forward, (3,), dtype, 1)
        gradients = numbers(made.kv.reverse, (3,), dtype, 2)
        k, v = xs[rank].clone().requires_grad_(), xs[rank].clone().requires_grad_()
        moved_k, moved_v = dispatcher.kv(k, v)
        torch.autograd.backward([moved_k, moved_v], [gradients[rank], 2 * gradients[rank]])
        home = expected(made.kv, gradients, back=True)[rank]
        if not same(k.grad, home) or not same(v.grad, 2 * home):
            wrong.append(f"gradient of {dtype}")
    x = torch.ones(dispatcher.kv.tokens, 2, dtype=torch.float64, requires_grad=True)
    y = dispatcher.kv(x * x)
    (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    copies = dispatcher.kv.back(torch.ones(dispatcher.kv.tokens_there, 2, dtype=torch.float64))
    if not torch.equal(first, 4 * copies) or not torch.equal(second, 12 * copies):
        wrong.append("second derivative")
    return wrong


def holes(rank: int, size: int) -> list[Any]:
    """A table may leave rows of the output alone: they are zero, and so is their gradient."""
    there = dispatch.Metadata.from_rows([[(2, [((r + 1) % size, 3)])] for r in range(size)])
    back = dispatch.Metadata.from_rows([[(3, [(-1, 0)]), (2, [((r - 1) % size, 0)])]
                                        for r in range(size)], max_cp=1)
    exchange = shiplap.torch.Exchange(dispatch.MetadataPair(there, back), deadline=5,
                                      validates=False)
    x = torch.full((2, 1), rank + 1.0, requires_grad=True)
    y = exchange(x)
    (y * torch.arange(5.0).reshape(5, 1)).sum().backward()  # type: ignore[no-untyped-call]
    return [y.flatten().tolist(), x.grad.flatten().tolist()]


def nothing_to_attend(rank: int, size: int) -> list[float]:
    """All attention is on rank 0; the others give outputs that depend on nothing."""
    home = dispatch.pack_documents([6, 5], size)
    attention = dispatch.Layout([[(0, 0, 6), (1, 0, 5)]] + [[] for _ in range(size - 1)])
    made = dispatch.compute_qkv_dispatch(dispatch.Routing(home, attention))
    dispatcher = shiplap.torch.Dispatcher(made, deadline=5)
    q, k, v = (torch.ones(dispatcher.q.tokens, 1, requires_grad=True) for _ in range(3))
    for _ in range(2):
        moved_q, moved_k, moved_v = dispatcher.dispatch(q, k, v)
        out = 2 * moved_q + 3 * moved_k if rank == 0 else torch.zeros(0, 1)
        dispatcher.combine(out).sum().backward()  # type: ignore[no-untyped-call]
    return [float(x.grad.sum()) / dispatcher.q.tokens for x in (q, k, v)]


def two_at_once(rank: int, size: int, order: str) -> list[float]:
    """Two dispatches under way, where only rank 0 has something to attend to. What is combined, in
    which order, and what the loss has of it: all ranks take the same ways back."""
    home = dispatch.pack_documents([6, 5, 7], size)
    attention = dispatch.Layout([[(0, 0, 6), (1, 0, 5), (2, 0, 7)]] + [[]] * (size - 1))
    made = dispatch.compute_qkv_dispatch(dispatch.Routing(home, attention))
    dispatcher = shiplap.torch.Dispatcher(made, deadline=5)
    x = [torch.ones(dispatcher.q.tokens, 1, requires_grad=True) for _ in range(2)]
    moved = [dispatcher.dispatch(one, one, one) for one in x]
    outs = [2 * q + 3 * k if rank == 0 else torch.zeros(0, 1) for q, k, _ in moved]
    if order == "first to last":
        loss = dispatcher.combine(outs[0]) + 2 * dispatcher.combine(outs[1])
    elif order == "last to first":
        last = dispatcher.combine(outs[1], of=moved[1][0])
        loss = 2 * last + dispatcher.combine(outs[0], of=moved[0][2])
    elif order == "only the last":
        loss = 2 * dispatcher.combine(outs[1], of=moved[1][1])
    else:  # one of them twice
        loss = dispatcher.combine(outs[0], of=moved[0][0])
        loss = loss + dispatcher.combine(outs[0], of=moved[0][0])
        dispatcher.combine(outs[1])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    return [0.0 if one.grad is None else float(one.grad.mean()) for one in x]


def on_a_part(rank: int, size: int) -> list[str]:
    """Two groups at once, each with its own dispatch."""
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    made = dispatch.create_qkv_dispatch(2, 16, 2, 2, seed=rank % 2)
    dispatcher = shiplap.torch.Dispatcher(made, halves[rank % 2], deadline=20)
    xs = numbers(made.kv.forward, (2,), torch.float32, 3)
    right = same(dispatcher.kv(xs[rank // 2]), expected(made.kv, xs, False)[rank // 2])
    return [] if right and dispatcher.rank == rank // 2 else ["half"]


# ---- wrong things. Each gives the name, the text and the time of what was raised.


def raised(act: Any) -> tuple[str, str, float]:
    begin = time.monotonic()
    try:
        act()
    except shiplap.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin


def other_tables(rank: int, size: int, deadline: float) -> list[Any]:
    """Rank 2 has another seed. Then all have the same, and it works."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=5 if rank == 2 else 4)
    first = raised(lambda: shiplap.torch.Dispatcher(made, deadline=deadline))
    alone = raised(lambda: shiplap.torch.Exchange(made.q, deadline=deadline))
    return [first, alone, agree_with_referee(rank, size)]


def unsound(pair: dispatch.MetadataPair) -> dispatch.MetadataPair:
    """A row of rank 1 goes where another one is."""
    rows = pair.forward.to_rows()
    rows[1][0] = (rows[1][0][0], [(0, 0)])
    forward = dispatch.Metadata.from_rows(rows, max_cp=pair.forward.max_cp)
    return dispatch.MetadataPair(forward, pair.reverse)


def unsound_tables(rank: int, size: int) -> Any:
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    bad = dispatch.QkvDispatch(unsound(made.q), made.kv, made.attention)
    return raised(lambda: shiplap.torch.Dispatcher(bad, deadline=5))


def unsound_pairs(rank: int, size: int) -> list[Any]:
    """All ranks raise, and the group remains usable."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    outcomes = [raised(lambda: shiplap.torch.Exchange(pair, deadline=5))
                for pair in (unsound(made.q), unsound(made.kv))]
    return [outcomes, agree_with_referee(rank, size)]


def other_world(rank: int, size: int) -> Any:
    made = dispatch.create_qkv_dispatch(size + 1, 32, 2, 3, seed=4)
    return raised(lambda: shiplap.torch.Dispatcher(made, deadline=5))


def other_rows(rank: int, size: int) -> list[Any]:
    """Rank 1 has rows of another width."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=5)
    x = torch.zeros(dispatcher.q.tokens, 5 if rank == 1 else 4)
    return [raised(lambda: dispatcher.q(x)), agree_with_referee(rank, size)]


def other_rows_later(rank: int, size: int) -> list[Any]:
    """Each kind of rows is known to all before rank 1 sends another one than the others."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=5)

    def rows(width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(dispatcher.q.tokens, width, dtype=dtype)

    known = [rows(8, torch.float32), rows(8, torch.int32), rows(16, torch.float32)]
    for x in known:
        dispatcher.q(x)
    outcomes = [raised(lambda: dispatcher.q(known[other] if rank == 1 else known[0]))
                for other in (1, 2)]
    outcomes.append(raised(lambda: dispatcher.q(rows(4, torch.float32) if rank == 1 else known[0])))
    outcomes.append(raised(lambda: dispatcher.kv(known[0]) if rank == 1 else
                           dispatcher.q(known[0])))
    make: Any = lambda: shiplap.torch.Dispatcher(made, deadline=5)  # noqa: E731
    outcomes.append(raised(make if rank == 1 else lambda: dispatcher.q(known[0])))
    return [outcomes, agree_with_referee(rank, size)]


def other_shape(rank: int, size: int) -> list[Any]:
    """Rank 1 omits a token. After that the group has failed on all ranks."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=20)
    x = torch.zeros(dispatcher.q.tokens, 4)
    dispatcher.q(x)
    first = raised(lambda: dispatcher.q(x[1:] if rank == 1 else x))
    return [first, raised(lambda: dispatcher.q(x))]


def other_shape_with_a_file(rank: int, size: int, path: str) -> list[Any]:
    """The same where the store of the process group is a file."""
    dist.barrier()
    time.sleep(0.5)  # nobody is in it any more
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    return other_shape(rank, size)


def by_asking(rank: int, size: int) -> list[Any]:
    """The way in which ranks wait with NCCL, on gloo: there is no GPU here."""
    MonitoredGroup._wait = MonitoredGroup._wait_for_gpu  # type: ignore[method-assign]
    return [agree_with_referee(rank, size), *other_shape(rank, size)]


def one_makes_an_exchange(rank: int, size: int) -> list[Any]:
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    make: Any = ((lambda: shiplap.torch.Exchange(made.q, deadline=5)) if rank == 1 else
                 (lambda: shiplap.torch.Dispatcher(made, deadline=5)))
    return [raised(make), agree_with_referee(rank, size)]


def no_tables(rank: int, size: int) -> Any:
    """Rank 3 could not even make them."""
    made: Any = None if rank == 3 else dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    return raised(lambda: shiplap.torch.Dispatcher(made, deadline=20))


def one_dies(rank: int, size: int) -> Any:
    """Rank 1 is gone in the middle of a step."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=20)
    x = torch.ones(dispatcher.q.tokens, 4, requires_grad=True)
    y = dispatcher.q(x)
    if rank == 1:
        os._exit(1)
    return raised(lambda: y.sum().backward())


def one_raises(rank: int, size: int) -> Any:
    """Rank 1 has an exception of its own in the block, and lives on."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)

    def step() -> None:
        with shiplap.torch.Dispatcher(made, deadline=20) as dispatcher:
            x = torch.ones(dispatcher.q.tokens, 4, requires_grad=True)
            y = dispatcher.q(x)
            if rank == 1:
                raise KeyError("planted")
            y.sum().backward()  # type: ignore[no-untyped-call]

    if rank != 1:
        return raised(step)
    try:
        step()
    except KeyError:
        time.sleep(3)
    return "KeyError", "", 0.0


def one_sleeps(rank: int, size: int) -> Any:
    """Rank 1 does not take part, and reports nothing."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    dispatcher = shiplap.torch.Dispatcher(made, deadline=1)
    x = torch.ones(dispatcher.q.tokens, 4)
    if rank == 1:
        time.sleep(3)
    return raised(lambda: dispatcher.q(x))


def one_has_no_patience(rank: int, size: int) -> list[Any]:
    """Less than a millisecond, while rank 1 does not take part; then an invalid deadline there."""
    made = dispatch.create_qkv_dispatch(size, 32, 2, 3, seed=4)
    part = dist.new_group(list(range(size)))
    dispatcher = shiplap.torch.Dispatcher(made, part, deadline=20)
    dispatcher._group.deadline = 1e-7
    x = torch.ones(dispatcher.q.tokens, 4)
    if rank == 1:
        time.sleep(1)
    first = raised(lambda: dispatcher.q(x))
    return [first, raised(lambda: shiplap.torch.Dispatcher(made, deadline=0 if rank == 1 else 20))]


# ---- compiled functions and meshes


def compiled_as_eager(rank: int, size: int) -> list[float]:
    """Attention in a compiled function, with checkpoints and autocast: the same as without."""
    from torch.utils.checkpoint import checkpoint

    made = dispatch.create_qkv_dispatch(size, 16, 2, 2, seed=5)
    dispatcher = shiplap.torch.Dispatcher(made)
    torch.manual_seed(rank)
    weight = torch.randn(4, 4, dtype=torch.float64)

    def layer(x: torch.Tensor) -> torch.Tensor:
        q, k, v = dispatcher.dispatch(x @ weight.to(x.dtype), x, x)
        length = dispatcher.cu_seqlens_q[-1] + dispatcher.max_seqlen_q
        return dispatcher.combine(q * 2 + v.sum() + k.mean() + length).sin()

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, x, use_reentrant=False)

    def automatic(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x.float()).double()

    differences = []
    for function in (layer, checkpointed, automatic):
        found = []
        for run in (function, torch.compile(function, backend="aot_eager")):
            x = torch.ones(dispatcher.q.tokens, 4, dtype=torch.float64, requires_grad=True)
            output = run(x)
            output.sum().backward()
            found.append(torch.cat([output.detach(), x.grad]))
        differences.append(float((found[0] - found[1]).abs().max()))
    return differences


def groups_are_meshes(rank: int, size: int) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "cp"))
    made = dispatch.create_qkv_dispatch(size // 2, 16, 2, 2, seed=5)
    x = torch.arange(16.0).reshape(16, 1)
    dispatcher = shiplap.torch.Dispatcher(made, mesh["cp"])
    q, _, _ = dispatcher.dispatch(x, x, x)
    assert torch.equal(dispatcher.combine(q), x) and dispatcher.rank == rank % (size // 2)
    try:
        shiplap.torch.Dispatcher(made, mesh)
    except shiplap.InputError as error:
        return [error.diagnostics[0].help]
    return []
