"""What ranks do with an OverlappedLinear in the tests: right things, then wrong ones.

The reference is torch.nn.Linear on the gathered tensors: every rank has all weights and inputs.
"""

import copy
import gc
import os
import time
import warnings
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.utils.checkpoint

import shiplap
from shiplap import _torch_linear
from shiplap.torch import Dispatcher, OverlappedLinear

ROWS, IN, OUT = 6, 24, 40  # rows per rank; both sizes are divisible by 2 and 4


def share(whole: torch.Tensor, rank: int, size: int, dim: int) -> torch.Tensor:
    return whole.tensor_split(size, dim)[rank]


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max() / expected.abs().max())


def reference(x: torch.Tensor, grad: torch.Tensor, linear: torch.nn.Linear) -> dict[str, Any]:
    """The result and the gradients of one process, in float64."""
    linear, x = copy.deepcopy(linear).double(), x.detach().double().requires_grad_()
    y = linear(x)
    y.backward(grad.double())
    return {"y": y, "x": x.grad, "weight": linear.weight.grad,
            "bias": None if linear.bias is None else linear.bias.grad}


def one_case(rank: int, size: int, mode: str, sequence_parallel: bool, dtype: torch.dtype,
             shape: tuple[int, ...] = (), contiguous: bool = True, bias: bool = True,
             for_x: bool = True, for_weight: bool = True, rows: int = ROWS, **options: Any
             ) -> dict[str, float]:
    """Errors of a layer against the reference, by tensor."""
    torch.manual_seed(5)
    whole = torch.nn.Linear(IN, OUT, bias=bias, dtype=dtype)
    x = torch.randn(rows * size, *shape, IN).to(dtype)
    grad = torch.randn(rows * size, *shape, OUT).to(dtype)
    expected = reference(x, grad, whole)
    if not any(name.startswith("ub_") for name in options):
        options.setdefault("overlap", "ring_exchange")
    layer = OverlappedLinear.from_linear(whole, parallel_mode=mode, deadline=20,
                                         sequence_parallel=sequence_parallel, **options)
    layer.weight.requires_grad_(for_weight)

    def inside(one: torch.Tensor) -> torch.Tensor:  # of a column-row pair
        return share(one, rank, size, -1)

    def outside(one: torch.Tensor) -> torch.Tensor:
        return share(one, rank, size, 0) if sequence_parallel else one

    of_x, of_y = (outside, inside) if mode == "column" else (inside, outside)
    mine = of_x(x).clone()
    if not contiguous:
        mine = torch.stack([mine, mine], dim=-1)[..., 0]
        assert not mine.is_contiguous()
    mine.requires_grad_(for_x)
    y = layer(mine)
    y.backward(of_y(grad))
    errors = {"y": error_of(y, of_y(expected["y"]))}
    if for_x:
        errors["x"] = error_of(mine.grad, of_x(expected["x"]))
    if for_weight:
        errors["weight"] = error_of(layer.weight.grad, layer._shard(expected["weight"]))
    if bias:
        errors["bias"] = error_of(layer.bias.grad,
                                  layer._split(expected["bias"], "column", 0))
    return errors


def cases(rank: int, size: int, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Errors of all modes, overlaps and kinds of input."""
    found = {}
    for mode in ("column", "row"):
        for overlap in ("ring_exchange", "pipeline", "none", "auto"):
            for parallel in (True, False):
                name = f"{mode} {overlap} sequence_parallel={parallel}"
                found[name] = one_case(rank, size, mode, parallel, dtype, overlap=overlap)
        extra: dict[str, dict[str, Any]] = {
            "auto, many rows": {"rows": 70, "overlap": "auto"},
            "three dimensions": {"shape": (3,)}, "not contiguous": {"contiguous": False},
            "no bias": {"bias": False}, "input without gradient": {"for_x": False},
            "frozen weights": {"for_weight": False}, "three chunks": {"chunks": 3},
            "all flags": {"ub_overlap_ag": True, "ub_overlap_rs": True, "ub_name": "qkv",
                          "ub_overlap_rs_dgrad": True, "tp_size": size},
            "bulk": {"ub_bulk_wgrad": True, "ub_bulk_dgrad": True, "ub_name": "fc1"},
            "bulk, frozen weights": {"ub_bulk_wgrad": True, "for_weight": False},
            "no flag": {"ub_overlap_ag": False}}
        for name, options in extra.items():
            found[f"{mode} {name}"] = one_case(rank, size, mode, True, dtype, **options)
    return found


def by_torch(rank: int, size: int) -> dict[str, Any]:
    """As on a device without engine."""
    _torch_linear._has_engine = lambda device: False
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        errors = {f"{mode} {parallel}": one_case(rank, size, mode, parallel, torch.float32)
                  for mode in ("column", "row") for parallel in (True, False)}
        errors["bulk"] = one_case(rank, size, "column", True, torch.float32, ub_bulk_wgrad=True)
    return {"errors": errors, "warnings": [str(one.message) for one in said
                                           if "overlap" in str(one.message)]}


def mlp(rank: int, size: int, steps: int) -> list[float]:
    """Errors of losses and weights of a column-row MLP against one process, both with SGD."""
    torch.manual_seed(7)
    whole = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.GELU(),
                                torch.nn.Linear(OUT, IN)).double()
    x = torch.randn(ROWS * size, 2, IN)
    alone = copy.deepcopy(whole)
    single = whole.float()
    layers = torch.nn.Sequential(
        OverlappedLinear.from_linear(single[0], parallel_mode="column", overlap="ring_exchange"),
        single[1],
        OverlappedLinear.from_linear(single[2], parallel_mode="row", overlap="ring_exchange"))
    copied = copy.deepcopy(layers)
    errors = []
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
    reference_optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    mine = share(x, rank, size, 0)
    for _ in range(steps):
        loss = (layers(mine) - mine).square().sum() / x.numel()  # of this rank's rows
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        expected = (alone(x.double()) - x.double()).square().mean()
        reference_optimizer.zero_grad()
        expected.backward()
        reference_optimizer.step()
        errors.append(error_of(loss, expected))
    for layer, of_one in zip((layers[0], layers[2]), (alone[0], alone[2])):
        errors.append(error_of(layer.weight, layer._shard(of_one.weight)))
        errors.append(error_of(layer.bias, layer._split(of_one.bias, "column", 0)))
    assert copied[0].weight.data_ptr() != layers[0].weight.data_ptr()
    errors.append(error_of(copied(mine), share(single(x), rank, size, 0)))
    return errors


def contexts(rank: int, size: int) -> dict[str, Any]:
    """no_grad, autocast, checkpoints, and a state_dict of shards of torch.nn.Linear."""
    torch.manual_seed(3)
    whole = torch.nn.Linear(IN, OUT)
    x = torch.randn(ROWS * size, IN)
    mine = share(x, rank, size, 0).requires_grad_()
    layer = OverlappedLinear(IN, OUT, parallel_mode="column", deadline=20)
    layer.load_state_dict({"weight": share(whole.weight, rank, size, 0),
                           "bias": share(whole.bias, rank, size, 0)})
    found: dict[str, Any] = {"names": sorted(layer.state_dict())}
    expected = share(whole(x), rank, size, 1)
    with torch.no_grad():
        y = layer(mine)
        found["no_grad"] = (error_of(y, expected), y.requires_grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(mine)
        same = torch.nn.functional.linear(x, layer.weight, layer.bias)
    y.sum().backward()
    found["autocast"] = (error_of(y, same), str(y.dtype), str(layer.weight.grad.dtype),
                         str(mine.grad.dtype))
    plain, again = (torch.autograd.grad(call().square().sum(), layer.weight)[0] for call in (
        lambda: layer(mine),
        lambda: torch.utils.checkpoint.checkpoint(layer, mine, use_reentrant=False)))
    found["checkpoint"] = torch.equal(plain, again)
    return found


def subgroups(rank: int, size: int) -> list[float]:
    """Two groups of half of the ranks; both have layers with two deadlines."""
    halves = [dist.new_group(list(range(size // 2))), dist.new_group(list(range(size // 2, size)))]
    group = halves[rank >= size // 2]
    return [max(one_case(dist.get_rank(group), size // 2, "row", True, torch.float32,
                         group=group).values()),
            max(one_case(dist.get_rank(group), size // 2, "column", True, torch.float32,
                         tp_group=group).values())]


def initial(rank: int, size: int) -> list[float]:
    """Whether new layers are shards of torch.nn.Linear with the same seed."""
    errors = []
    for mode, dim in (("column", 0), ("row", 1)):
        torch.manual_seed(11)
        layer = OverlappedLinear(IN, OUT, parallel_mode=mode)
        torch.manual_seed(11)
        whole = torch.nn.Linear(IN, OUT)
        errors.append(error_of(layer.weight, share(whole.weight, rank, size, dim)))
        errors.append(float(layer.bias.abs().max()))
    return errors


def bias_not_contiguous(rank: int, size: int) -> tuple[float, bool]:
    """The bias is every second element of a tensor."""
    torch.manual_seed(1)
    whole = torch.nn.Linear(IN, OUT)
    layer = OverlappedLinear.from_linear(whole, parallel_mode="column", deadline=20)
    bias = share(whole.bias.detach(), rank, size, 0)
    layer.bias = torch.nn.Parameter(torch.stack([bias, -bias], dim=1)[:, 0])
    x = torch.randn(ROWS * size, IN)
    y = layer(share(x, rank, size, 0))
    return error_of(y, share(whole(x), rank, size, 1)), layer.bias.is_contiguous()


def groups_come_and_go(rank: int, size: int) -> list[int]:
    """Open sockets after each group, which are those of the first group if they are closed."""
    found = []
    for _ in range(4):
        group = dist.new_group(list(range(size)))
        layer = OverlappedLinear(IN, OUT, parallel_mode="column", group=group, deadline=20)
        layer(torch.randn(ROWS, IN))
        del layer
        dist.destroy_process_group(group)
        del group
        gc.collect()
        dist.barrier()
        found.append(len(os.listdir("/proc/self/fd")))
    return found


# ---- wrong things


def outcome(act: Callable[[], Any]) -> tuple[str, str, float]:
    begin = time.monotonic()
    try:
        act()
        return "", "", time.monotonic() - begin
    except shiplap.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin


def one_has_a_wrong_input(rank: int, size: int, connected: bool) -> list[Any]:
    """Rank 1 gives too few features, before the ranks are connected or after."""
    layer = OverlappedLinear(IN, OUT, overlap="ring_exchange", parallel_mode="column", deadline=20)
    x = torch.randn(ROWS, IN)
    if connected:
        layer(x)
    return [outcome(lambda: layer(x[:, 1:] if rank == 1 else x)), outcome(lambda: layer(x))]


def _two_layers(deadlines: tuple[float, float]) -> list[OverlappedLinear]:
    layers = [OverlappedLinear(IN, OUT, overlap="ring_exchange", parallel_mode="column",
                               deadline=deadline) for deadline in deadlines]
    for layer in layers:
        layer(torch.randn(ROWS, IN))
    return layers


def one_fails_in_another_layer(rank: int, size: int) -> tuple[str, str, float]:
    """Layers with different deadlines have different engines."""
    first, second = _two_layers((20, 19))
    x = torch.randn(ROWS, IN)
    return outcome(lambda: second(x[:, 1:]) if rank == 1 else first(x))


def one_fails_in_a_dispatcher(rank: int, size: int) -> tuple[str, str, float]:
    """By an exception in its block."""
    made = shiplap.dispatch.create_qkv_dispatch(size, 64, 2, 2)
    layer = _two_layers((20, 19))[0]
    dispatcher = Dispatcher(made, deadline=18)

    def act() -> None:
        with dispatcher:
            if rank == 1:
                raise shiplap.InputError("a bug of the user")
            layer(torch.randn(ROWS, IN))
    return outcome(act)


def one_times_out_in_a_dispatcher(rank: int, size: int) -> tuple[str, str, float]:
    """Rank 0 waits in the engine for rank 1, which waits for it in a collective of torch."""
    layer = _two_layers((20, 19))[0]
    made = shiplap.dispatch.create_qkv_dispatch(size, 64, 2, 2)
    dispatcher = Dispatcher(made, deadline=1)
    x = torch.zeros(64, 1)
    return outcome(lambda: dispatcher.dispatch(x, x, x) if rank == 1 else
                   layer(torch.randn(ROWS, IN)))


def one_times_out_in_another_layer(rank: int, size: int) -> tuple[str, str, float]:
    first, second = _two_layers((20, 1))
    x = torch.randn(ROWS, IN)
    return outcome(lambda: (second if rank == 1 else first)(x))


def one_gives_the_engine_a_view(rank: int, size: int) -> tuple[str, str, float]:
    layer = _two_layers((20, 19))[0]
    x = torch.randn(ROWS, 2 * IN)[:, ::2] if rank == 1 else torch.randn(ROWS, IN)
    y = torch.empty(ROWS * size, OUT // size)
    return outcome(lambda: layer._group.multiply("all_gather", "ring_exchange", 1, "w", x=x,
                                                 w=layer.weight.detach(), y=y))


def one_has_other_rows(rank: int, size: int) -> tuple[str, str, float]:
    layer = OverlappedLinear(IN, OUT, overlap="ring_exchange", parallel_mode="column", deadline=20)
    return outcome(lambda: layer(torch.randn(ROWS + (rank == 1), IN)))


def one_has_another_layer(rank: int, size: int) -> tuple[str, str, float]:
    layer = OverlappedLinear(IN, OUT + (size if rank == 1 else 0), overlap="ring_exchange",
                             parallel_mode="column", deadline=20)
    return outcome(lambda: layer(torch.randn(ROWS, IN)))


def one_cannot_create(rank: int, size: int) -> tuple[str, str, float]:
    def act() -> None:
        layer = OverlappedLinear(IN, OUT + (rank == 1), parallel_mode="column", deadline=1.5)
        layer(torch.randn(ROWS, IN))
    return outcome(act)


def one_dies(rank: int, size: int) -> tuple[str, str, float]:
    layer = OverlappedLinear(IN, OUT, overlap="ring_exchange", parallel_mode="row", deadline=20)
    x = torch.randn(ROWS * size, IN // size, requires_grad=True)
    y = layer(x)
    if rank == 1:
        os._exit(1)
    found = outcome(lambda: y.sum().backward())
    time.sleep(1)  # or the others take this rank for the one that died
    return found


def one_sleeps(rank: int, size: int) -> tuple[str, str, float]:
    layer = OverlappedLinear(IN, OUT, overlap="ring_exchange", parallel_mode="column", deadline=1.5)
    x = torch.randn(ROWS, IN)
    layer(x)
    if rank == 1:
        time.sleep(4)
    return outcome(lambda: layer(x))


def indivisible(rank: int, size: int) -> list[tuple[str, str, float]]:
    layer = OverlappedLinear(IN, OUT, parallel_mode="row", deadline=5)
    return [outcome(lambda: OverlappedLinear(IN, OUT + 1, parallel_mode="column", deadline=6)),
            outcome(lambda: OverlappedLinear(IN + 1, OUT, parallel_mode="row", deadline=7)),
            outcome(lambda: layer(torch.randn(ROWS + 1, IN // size)))]
