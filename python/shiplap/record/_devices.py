"""A CUDA device that does not exist.

Tensors "on the GPU" are tensors on the CPU whose storage has a mark. Only the user's Python sees
the mark, as `tensor.device`; torch's own code, in C++ and below its dispatcher, sees the CPU
everywhere, so that no device is missing and none ever mismatches. Streams and events are recorded;
nothing is executed.
"""

# Assignments to modules and classes of torch are the purpose of this file.
# mypy: disable-error-code="attr-defined,assignment,method-assign,arg-type,misc,no-untyped-call"

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map_only

from shiplap.record._events import EventRecord, EventWait, HostWait, StreamWait

if TYPE_CHECKING:
    from shiplap.record._recorder import Recorder

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
_MEMORY = 80 << 30
_NAME = "NVIDIA H100 80GB HBM3"

_recorder: Recorder | None = None
_current_device = 0
_device_count = 0
_marks: dict[int, tuple[StorageWeakRef, int]] = (
    {}
)  # by storage: the device that it pretends to be on
_sweep_at = 1 << 12  # marks: those of storages that are gone are then removed


def _emit(event: Any) -> None:
    if _recorder is not None:
        _recorder.emit(event)


class Stream:
    """torch.cuda.Stream."""

    _next_id = 1

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        stream_id = given.get("stream_id")
        if stream_id is None:
            stream_id = Stream._next_id
            Stream._next_id += 1
        self.stream_id: int = stream_id
        self.cuda_stream = stream_id
        self.device = torch.device("cuda", _current_device)
        self.device_index = _current_device
        self.device_type = 1
        self.priority = priority
        self._outer: list[Stream] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._outer.pop())

    def wait_stream(self, other: Stream) -> None:
        _emit(StreamWait(self.stream_id, other.stream_id))

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _emit(HostWait(self.stream_id))

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False


class Event:
    """torch.cuda.Event."""

    _next_id = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        self.event_id = Event._next_id
        Event._next_id += 1
        self._recorded = False

    def record(self, stream: Stream | None = None) -> None:
        self._recorded = True
        _emit(EventRecord(self.event_id, (stream or current_stream()).stream_id))

    def wait(self, stream: Stream | None = None) -> None:
        if self._recorded:
            _emit(EventWait(self.event_id, (stream or current_stream()).stream_id))

    def synchronize(self) -> None:
        if self._recorded:
            _emit(EventWait(self.event_id, -1))

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Event) -> float:
        return 1.0


class CUDAGraph:
    """torch.cuda.CUDAGraph. What is captured does not happen then, but with each replay."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._captured: list[Any] = []
        self._begin = 0

    def capture_begin(self, *_: Any, **__: Any) -> None:
        if _recorder is not None:
            self._begin = _recorder.begin_capture()

    def capture_end(self) -> None:
        if _recorder is not None:
            self._captured = _recorder.end_capture(self._begin)

    def replay(self) -> None:
        if _recorder is not None:
            _recorder.replay(self._captured)

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def reset(self) -> None:
        self._captured = []

    instantiate = enable_debug_mode = debug_dump = lambda *_, **__: None


_default_stream = Stream(stream_id=0)
_current_stream = _default_stream


def current_stream(_device: Any = None) -> Stream:
    return _current_stream


def set_stream(stream: Stream | None) -> None:
    global _current_stream
    if stream is not None:
        _current_stream = stream


def current_stream_id() -> int:
    return _current_stream.stream_id


class _Setting:
    """Sets the current stream or device for a block."""

    def __init__(self, get: Callable[[], Any], set_to: Callable[[Any], None], value: Any) -> None:
        self._get, self._set_to, self._value = get, set_to, value

    def __enter__(self) -> None:
        self._outer = self._get()
        self._set_to(self._value)

    def __exit__(self, *_: object) -> None:
        self._set_to(self._outer)


def _stream_context(stream: Stream | None) -> _Setting:
    return _Setting(current_stream, set_stream, stream)


def _device_context(device: Any) -> _Setting:
    return _Setting(current_device, _set_device, device)


def _set_device(device: Any) -> None:
    global _current_device
    index = index_of(device)
    if index is None or index < 0:
        return
    if index >= _device_count:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal {index}; the node has {_device_count} devices"
        )
    _current_device = index


def current_device() -> int:
    return _current_device


def index_of(device: Any) -> int | None:
    """The index of a CUDA device; none for other devices."""
    if device is None or isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        return None
    return _current_device if device.index is None else device.index


def mark_of(tensor: Any) -> int | None:
    """The index of the device of a tensor; None for the host, and for what is not a tensor."""
    storage = _storage_of(tensor) if _marks else None
    mark = _marks.get(storage._cdata) if storage is not None else None
    return mark[1] if mark is not None and not mark[0].expired() else None


def set_mark(tensors: Any, mark: int | None) -> None:
    """Puts all tensors of a result on a device; None leaves them where they are."""
    global _sweep_at
    if mark is None:
        return
    for tensor in tree_leaves(tensors):
        storage = _storage_of(tensor)
        if storage is not None:
            _marks[storage._cdata] = (StorageWeakRef(storage), mark)
    if len(_marks) > _sweep_at:
        for key in [key for key, (storage, _) in _marks.items() if storage.expired()]:
            del _marks[key]
        _sweep_at = max(1 << 12, 2 * len(_marks))


def remove_mark(tensor: torch.Tensor) -> None:
    """Puts a tensor on the host."""
    _marks.pop(tensor.untyped_storage()._cdata, None)


def _storage_of(tensor: Any) -> Any:
    """None for tensors that consist of others, such as DTensor, and for what is not a tensor."""
    if type(tensor) not in _PLAIN:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse
        return None


def install(recorder: Recorder, devices: int) -> None:
    """Replaces torch.cuda in this process."""
    global _recorder, _device_count
    _recorder, _device_count = recorder, devices
    properties = types.SimpleNamespace(
        name=_NAME,
        major=9,
        minor=0,
        total_memory=_MEMORY,
        multi_processor_count=132,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        L2_cache_size=50 << 20,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        uuid="0",
    )

    def zero(*_: Any, **__: Any) -> int:
        return 0

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def statistics(*_: Any, **__: Any) -> dict[str, int]:
        return collections.defaultdict(int)

    def synchronize(_device: Any = None) -> None:
        _emit(HostWait(-1, recorder.site()))

    shared: dict[str, Any] = dict(
        is_available=lambda: True,
        device_count=lambda: devices,
        current_stream=current_stream,
        set_stream=set_stream,
        synchronize=synchronize,
        empty_cache=nothing,
        memory_stats=statistics,
        memory_allocated=zero,
        max_memory_allocated=zero,
        memory_reserved=zero,
        max_memory_reserved=zero,
        reset_peak_memory_stats=nothing,
        reset_accumulated_memory_stats=nothing,
    )
    cuda: dict[str, Any] = dict(
        shared,
        is_initialized=lambda: True,
        init=nothing,
        _lazy_init=nothing,
        _is_compiled=lambda: True,
        current_device=current_device,
        set_device=_set_device,
        device=_device_context,
        Stream=Stream,
        Event=Event,
        ExternalStream=Stream,
        CUDAGraph=CUDAGraph,
        graph_pool_handle=lambda: (0, 0),
        stream=_stream_context,
        StreamContext=_stream_context,
        default_stream=lambda _device=None: _default_stream,
        get_device_properties=lambda _device=None: properties,
        get_device_name=lambda _device=None: _NAME,
        get_device_capability=lambda _device=None: (9, 0),
        is_bf16_supported=lambda *_, **__: True,
        reset_max_memory_allocated=nothing,
        ipc_collect=nothing,
        mem_get_info=lambda _device=None: (_MEMORY, _MEMORY),
        set_per_process_memory_fraction=nothing,
        manual_seed=nothing,
        manual_seed_all=nothing,
        seed=nothing,
        seed_all=nothing,
        initial_seed=zero,
        can_device_access_peer=lambda *_: True,
        is_current_stream_capturing=lambda: False,
        set_rng_state=nothing,
        set_rng_state_all=nothing,
        get_rng_state=lambda *_: torch.zeros(16, dtype=torch.uint8),
        get_rng_state_all=list,
        _sleep=nothing,
        memory_snapshot=lambda *_, **__: [],
        utilization=zero,
        memory_stats_as_nested_dict=statistics,
        device_memory_used=zero,
    )
    for name, value in cuda.items():
        setattr(torch.cuda, name, value)
    torch.cuda.streams.Stream, torch.cuda.streams.Event = Stream, Event
    torch.cuda.graphs.CUDAGraph = CUDAGraph
    torch.cuda.random.get_rng_state = cuda["get_rng_state"]
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = torch.cuda.nvtx.mark = nothing
    torch.Stream, torch.Event = Stream, Event
    if hasattr(torch, "accelerator"):
        device = torch.device("cuda")
        shared.update(
            current_device_index=current_device,
            current_device_idx=current_device,
            set_device_index=_set_device,
            set_device_idx=_set_device,
            current_accelerator=lambda *_, **__: device,
            device_index=_device_context,
            get_memory_info=cuda["mem_get_info"],
        )
        for name, value in shared.items():
            if hasattr(torch.accelerator, name):
                setattr(torch.accelerator, name, value)
    torch.backends.cuda.is_built = lambda: True
    if hasattr(torch._C, "_get_accelerator"):
        torch._C._get_accelerator = lambda *_: torch.device("cuda")
    _install_device_of_tensors(recorder)
    _install_moves(recorder)
    _install_autocast()


def _install_device_of_tensors(recorder: Recorder) -> None:
    """What Python sees of a tensor's device."""

    kind: Any = recorder.tensor_type
    original = kind.device

    def device_of(tensor: torch.Tensor) -> torch.device:
        device: torch.device = original.__get__(tensor, kind)
        mark = mark_of(tensor) if device.type == "cpu" and not recorder.inside else None
        return device if mark is None else torch.device("cuda", mark)

    kind.device = property(device_of)
    kind.is_cuda = property(lambda tensor: device_of(tensor).type == "cuda")
    kind.is_cpu = property(lambda tensor: device_of(tensor).type == "cpu")
    kind.get_device = lambda tensor: index if (index := mark_of(tensor)) is not None else -1
    DTensor.device = property(lambda tensor: tensor._local_tensor.device)
    DTensor.is_cuda = property(lambda tensor: tensor._local_tensor.device.type == "cuda")
    DTensor.is_cpu = property(lambda tensor: tensor._local_tensor.device.type == "cpu")
    make_wrapper = torch.Tensor._make_wrapper_subclass

    def make_wrapper_subclass(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        """For C++, what consists of tensors on the CPU is there, too."""
        if index_of(device) is not None:
            device = torch.device("cpu")
        made: torch.Tensor = make_wrapper(*args, device=device, **kwargs)
        return made

    torch.Tensor._make_wrapper_subclass = staticmethod(make_wrapper_subclass)
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.Tensor.is_pinned = lambda *_, **__: False
    torch.Tensor.record_stream = lambda *_, **__: None


def _install_moves(recorder: Recorder) -> None:
    """Moves between host and device.

    A device without an index would ask the driver for one. A move to the host would not reach the
    dispatcher, since C++ takes the tensor to be there.
    """
    original = torch.Tensor.to

    def to_device(
        tensor: torch.Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        device = torch.device("cuda", index)
        dtype = kwargs.pop("dtype", None) or next(
            (a for a in args if isinstance(a, torch.dtype)), None
        )
        if tensor.device == device and not kwargs.get("copy"):
            return tensor if dtype in (None, tensor.dtype) else original(tensor, dtype)
        return original(tensor, device, dtype) if dtype is not None else original(tensor, device)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        target = kwargs.get("device")
        if args and isinstance(args[0], (str, torch.device, int)) and not isinstance(args[0], bool):
            target = args[0]
        elif args and isinstance(args[0], torch.Tensor):
            target, args = args[0].device, (args[0].device, args[0].dtype, *args[1:])
        index = index_of(target)
        if index is not None:
            return to_device(self, index, args, {**kwargs})
        result = original(self, *args, **kwargs)
        if target is not None and torch.device(target).type == "cpu" and mark_of(self) is not None:
            return recorder.copy_to_host(result, blocking=not kwargs.get("non_blocking", False))
        return result

    def created(original_factory: Any) -> Any:
        """`torch.tensor(.., device="cuda")` asks the driver before any operator runs."""

        def create(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
            index = index_of(device)
            if index is None:
                result: torch.Tensor = original_factory(*args, device=device, **kwargs)
                return result
            kwargs.pop("pin_memory", None)
            return to(original_factory(*args, **kwargs), torch.device("cuda", index))

        return create

    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, created(getattr(torch, name)))
    torch.Tensor.to = to
    torch.Tensor.cuda = lambda self, device=None, *_, **__: to(
        self, torch.device("cuda", _current_device if device is None else index_of(device))
    )
    torch.Tensor.cpu = lambda self, *_, **__: to(self, torch.device("cpu"))


# What autocast does on CUDA and not on the CPU: these operators compute in f32,
_FP32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow
softplus layer_norm native_layer_norm group_norm rms_norm frobenius_norm nuclear_norm kl_div
cosine_similarity l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits dist renorm
logsumexp prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"""
# and these in the widest type of their operands.
_WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
_NARROW = (torch.float16, torch.bfloat16)
_kernels: list[torch.library.Library] = []  # they are removed with the library


def _install_autocast() -> None:
    """`torch.autocast("cuda")` acts on tensors that torch takes to be on the CPU."""
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype

    def set_autocast_enabled(device: Any, enabled: bool | None = None) -> None:
        if enabled is None:  # the older form, for CUDA
            device, enabled = "cuda", device
        set_enabled(device, enabled)
        if device == "cuda":
            set_enabled("cpu", enabled)

    def set_autocast_dtype(device: str, dtype: torch.dtype) -> None:
        set_dtype(device, dtype)
        if device == "cuda":
            set_dtype("cpu", dtype)

    torch.set_autocast_enabled, torch.set_autocast_dtype = set_autocast_enabled, set_autocast_dtype
    library, key = torch.library.Library("aten", "IMPL"), "AutocastCPU"
    _kernels.append(library)
    for names, widest in ((_FP32, False), (_WIDEST, True)):
        for packet in (getattr(torch.ops.aten, name, None) for name in names.split()):
            for overload in packet.overloads() if packet is not None else ():
                operator = getattr(packet, overload)
                if "out" not in overload and _lacks_kernel(operator, key):
                    library.impl(operator, _widening(operator, widest), key)


def _lacks_kernel(operator: Any, key: str) -> bool:
    try:
        return not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)
    except RuntimeError:  # an overload of TorchScript only
        return False


def _widening(operator: Any, widest: bool) -> Any:
    """A kernel that computes in f32; `widest`: only if an operand is in f32."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not widest or any(t.dtype == torch.float32 for t in tensors):
            args, kwargs = tree_map_only(
                torch.Tensor, lambda t: t.float() if t.dtype in _NARROW else t, (args, kwargs)
            )
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*args, **kwargs)

    return kernel
