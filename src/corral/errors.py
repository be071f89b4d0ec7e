"""Every error corral raises on purpose, as one tree.

    CorralError
    ├── UsageError                 the caller asked for something that cannot be
    │   ├── InvalidArgument        a value out of range or of the wrong kind
    │   ├── ContextExceeded        more tokens than the context holds
    │   ├── ConstraintError        a grammar or schema that no answer can keep to
    │   └── ModelNotFound          no such file, cached name or repository
    ├── ModelError                 the file is at fault
    │   ├── InvalidModelFile       not GGUF, truncated, or it contradicts itself
    │   ├── InvalidAdapter         no LoRA adapter, or one of another model
    │   ├── NotFinite              it computed what is no number
    │   ├── UnsupportedModel       a legal file with something corral does not run
    │   ├── TokenizerError         the vocabulary cannot be used
    │   └── TemplateError          the chat template is broken or exceeds its limits
    ├── ResourceError              the machine is at fault
    │   ├── OutOfMemory            a plan does not fit; nothing was allocated
    │   │   └── MemoryTaken        it would fit, but others hold the memory now
    │   ├── DownloadError          a model could not be fetched
    │   ├── DeviceUnavailable      no such device here, or its driver is missing
    │   ├── QueueFull              as many requests wait as may
    │   ├── WorkerLost             the process that held the model is gone
    │   ├── ModelUnloaded          the model that a request waited for was unloaded
    │   ├── InvalidSession         a saved conversation cannot be used
    │   └── TimeLimitExceeded      nobody answered in time
    ├── LifecycleError             an object was used outside its life
    │   ├── Closed                 used after close()
    │   └── StaleContext           belongs to a device context that is gone
    └── InternalError              a broken promise between two parts of corral
        ├── InvalidGraph           a graph breaks the rules of tensor/verify.py
        ├── LedgerMismatch         bytes planned and bytes allocated differ
        ├── CapacityExceeded       a pool planned for N items was asked for more
        ├── CompileError           a kernel did not compile
        ├── ProtocolError          two processes do not understand each other
        └── DeviceFault            the device reported a fault it cannot recover from

A message says what failed, what was found, what was expected and what to do. `code` is stable and
safe to match on; `exit_code` is the command line's, `http_status` the server's.
"""

from typing import ClassVar


class CorralError(Exception):
    """Base of every error corral raises on purpose."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500


class UsageError(CorralError):
    """The caller asked for something that cannot be done."""

    code = "usage"
    exit_code = 2
    http_status = 400


class InvalidArgument(UsageError, ValueError):
    """A value is out of range or of the wrong kind."""

    code = "invalid_argument"

    def __init__(self, message: str = "", *, field: str = "") -> None:
        """Keep which field holds the value, where that is known."""
        super().__init__(message)
        self.field = field


class ContextExceeded(UsageError):
    """A sequence needs more tokens than the context holds."""

    code = "context_exceeded"

    def __init__(
        self, message: str = "", *, prompt_tokens: int | None = None, context: int | None = None
    ) -> None:
        """Keep how many tokens the prompt has and the context holds, where both are known."""
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.context = context


class ConstraintError(UsageError):
    """A grammar or schema cannot be used, or costs more than it may."""

    code = "constraint"


class ModelNotFound(UsageError, FileNotFoundError):
    """No file, cached name or repository answers to the model's name."""

    code = "model_not_found"
    http_status = 404


class ModelError(CorralError):
    """The model file is at fault."""

    code = "model"
    http_status = 422


class InvalidModelFile(ModelError):
    """The file is not GGUF, is truncated, or contradicts itself."""

    code = "invalid_model_file"


class InvalidAdapter(ModelError):
    """The file is no LoRA adapter, contradicts itself, or does not belong to the model."""

    code = "invalid_adapter"


class NotFinite(ModelError):
    """The model, or an adapter of it, made a value that is NaN or infinite."""

    code = "not_finite"


class UnsupportedModel(ModelError):
    """The file is legal but needs something corral does not run."""

    code = "unsupported_model"


class TokenizerError(ModelError):
    """The vocabulary of the file cannot be used."""

    code = "tokenizer"


class TemplateError(ModelError):
    """The chat template is broken or exceeds its limits."""

    code = "template"


class ResourceError(CorralError):
    """The machine cannot give what is needed."""

    code = "resource"
    http_status = 503


class OutOfMemory(ResourceError):
    """A plan needs more bytes than the device has; nothing was allocated."""

    code = "out_of_memory"
    http_status = 507

    def __init__(
        self,
        message: str = "",
        *,
        needed_bytes: int | None = None,
        available_bytes: int | None = None,
        holders: tuple[str, ...] = (),
    ) -> None:
        """Keep what was needed, what there was and which models hold the rest, where known."""
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.holders = holders


class MemoryTaken(OutOfMemory):
    """A plan would fit, but others hold the memory now, or nobody knows what is free."""

    code = "memory_taken"
    http_status = 503


class DownloadError(ResourceError):
    """A model could not be fetched."""

    code = "download"


class DeviceUnavailable(ResourceError):
    """The device does not exist here, or its driver is missing."""

    code = "device_unavailable"


class QueueFull(ResourceError):
    """As many requests wait as may; another is welcome later."""

    code = "queue_full"


class WorkerLost(ResourceError):
    """The process that held the model is gone, and what it was computing with it."""

    code = "worker_lost"


class ModelUnloaded(ResourceError):
    """The model was unloaded by command while a request waited for it; another loads it again."""

    code = "model_unloaded"


class InvalidSession(ResourceError):
    """A saved conversation is damaged, or of another version, model or setting."""

    code = "invalid_session"


class TimeLimitExceeded(ResourceError):
    """Something took longer than it may."""

    code = "time_limit_exceeded"
    http_status = 504


class LifecycleError(CorralError):
    """An object was used outside its life."""

    code = "lifecycle"


class Closed(LifecycleError):
    """An object was used after it was closed."""

    code = "closed"


class StaleContext(LifecycleError):
    """An object belongs to a device context that no longer exists."""

    code = "stale_context"


class InternalError(CorralError):
    """A promise between two parts of corral is broken; please report it."""

    code = "internal"


class InvalidGraph(InternalError):
    """A graph breaks a rule of `tensor/verify.py`."""

    code = "invalid_graph"


class LedgerMismatch(InternalError):
    """Bytes planned and bytes allocated differ."""

    code = "ledger_mismatch"


class CapacityExceeded(InternalError):
    """A pool planned for a fixed number of items was asked for one more."""

    code = "capacity_exceeded"


class CompileError(InternalError):
    """A kernel did not compile."""

    code = "compile"

    def __init__(self, message: str, *, ir: str = "") -> None:
        """Keep the kernel's text in `ir`."""
        super().__init__(message)
        self.ir = ir


class ProtocolError(InternalError):
    """What arrives from another process is not what this one understands."""

    code = "protocol"


class DeviceFault(InternalError):
    """The device reported a fault that only a new process recovers from."""

    code = "device_fault"
