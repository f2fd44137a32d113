from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message

DESCRIPTOR: _descriptor.FileDescriptor

class RequestStatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVALID: _ClassVar[RequestStatusCode]
    SUCCESS: _ClassVar[RequestStatusCode]
    UNKNOWN: _ClassVar[RequestStatusCode]
    INTERNAL: _ClassVar[RequestStatusCode]
    NOT_FOUND: _ClassVar[RequestStatusCode]
    INVALID_ARG: _ClassVar[RequestStatusCode]
    UNAVAILABLE: _ClassVar[RequestStatusCode]
    UNSUPPORTED: _ClassVar[RequestStatusCode]
    ALREADY_EXISTS: _ClassVar[RequestStatusCode]

class ServerReadyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_INVALID: _ClassVar[ServerReadyState]
    SERVER_INITIALIZING: _ClassVar[ServerReadyState]
    SERVER_READY: _ClassVar[ServerReadyState]
    SERVER_EXITING: _ClassVar[ServerReadyState]
    SERVER_FAILED_TO_INITIALIZE: _ClassVar[ServerReadyState]

class ModelReadyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_UNKNOWN: _ClassVar[ModelReadyState]
    MODEL_READY: _ClassVar[ModelReadyState]
    MODEL_UNAVAILABLE: _ClassVar[ModelReadyState]
    MODEL_LOADING: _ClassVar[ModelReadyState]
    MODEL_UNLOADING: _ClassVar[ModelReadyState]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TYPE_INVALID: _ClassVar[DataType]
    TYPE_BOOL: _ClassVar[DataType]
    TYPE_UINT8: _ClassVar[DataType]
    TYPE_UINT16: _ClassVar[DataType]
    TYPE_UINT32: _ClassVar[DataType]
    TYPE_UINT64: _ClassVar[DataType]
    TYPE_INT8: _ClassVar[DataType]
    TYPE_INT16: _ClassVar[DataType]
    TYPE_INT32: _ClassVar[DataType]
    TYPE_INT64: _ClassVar[DataType]
    TYPE_FP16: _ClassVar[DataType]
    TYPE_FP32: _ClassVar[DataType]
    TYPE_FP64: _ClassVar[DataType]
    TYPE_STRING: _ClassVar[DataType]
INVALID: RequestStatusCode
SUCCESS: RequestStatusCode
UNKNOWN: RequestStatusCode
INTERNAL: RequestStatusCode
NOT_FOUND: RequestStatusCode
INVALID_ARG: RequestStatusCode
UNAVAILABLE: RequestStatusCode
UNSUPPORTED: RequestStatusCode
ALREADY_EXISTS: RequestStatusCode
SERVER_INVALID: ServerReadyState
SERVER_INITIALIZING: ServerReadyState
SERVER_READY: ServerReadyState
SERVER_EXITING: ServerReadyState
SERVER_FAILED_TO_INITIALIZE: ServerReadyState
MODEL_UNKNOWN: ModelReadyState
MODEL_READY: ModelReadyState
MODEL_UNAVAILABLE: ModelReadyState
MODEL_LOADING: ModelReadyState
MODEL_UNLOADING: ModelReadyState
TYPE_INVALID: DataType
TYPE_BOOL: DataType
TYPE_UINT8: DataType
TYPE_UINT16: DataType
TYPE_UINT32: DataType
TYPE_UINT64: DataType
TYPE_INT8: DataType
TYPE_INT16: DataType
TYPE_INT32: DataType
TYPE_INT64: DataType
TYPE_FP16: DataType
TYPE_FP32: DataType
TYPE_FP64: DataType
TYPE_STRING: DataType

class RequestStatus(_message.Message):
    __slots__ = ("code", "msg", "server_id", "request_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    code: RequestStatusCode
    msg: str
    server_id: str
    request_id: int
    def __init__(self, code: _Optional[_Union[RequestStatusCode, str]] = ..., msg: _Optional[str] = ..., server_id: _Optional[str] = ..., request_id: _Optional[int] = ...) -> None: ...

class InferSharedMemory(_message.Message):
    __slots__ = ("name", "offset", "byte_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    byte_size: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., byte_size: _Optional[int] = ...) -> None: ...

class InferRequestHeader(_message.Message):
    __slots__ = ("batch_size", "input", "output", "correlation_id", "id", "flags", "priority", "timeout_microseconds")
    class Flag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FLAG_NONE: _ClassVar[InferRequestHeader.Flag]
        FLAG_SEQUENCE_START: _ClassVar[InferRequestHeader.Flag]
        FLAG_SEQUENCE_END: _ClassVar[InferRequestHeader.Flag]
    FLAG_NONE: InferRequestHeader.Flag
    FLAG_SEQUENCE_START: InferRequestHeader.Flag
    FLAG_SEQUENCE_END: InferRequestHeader.Flag
    class Input(_message.Message):
        __slots__ = ("name", "dims", "batch_byte_size", "shared_memory")
        NAME_FIELD_NUMBER: _ClassVar[int]
        DIMS_FIELD_NUMBER: _ClassVar[int]
        BATCH_BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
        SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
        name: str
        dims: _containers.RepeatedScalarFieldContainer[int]
        batch_byte_size: int
        shared_memory: InferSharedMemory
        def __init__(self, name: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ..., batch_byte_size: _Optional[int] = ..., shared_memory: _Optional[_Union[InferSharedMemory, _Mapping]] = ...) -> None: ...
    class Output(_message.Message):
        __slots__ = ("name", "cls", "shared_memory")
        class Class(_message.Message):
            __slots__ = ("count",)
            COUNT_FIELD_NUMBER: _ClassVar[int]
            count: int
            def __init__(self, count: _Optional[int] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        CLS_FIELD_NUMBER: _ClassVar[int]
        SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
        name: str
        cls: InferRequestHeader.Output.Class
        shared_memory: InferSharedMemory
        def __init__(self, name: _Optional[str] = ..., cls: _Optional[_Union[InferRequestHeader.Output.Class, _Mapping]] = ..., shared_memory: _Optional[_Union[InferSharedMemory, _Mapping]] = ...) -> None: ...
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    input: _containers.RepeatedCompositeFieldContainer[InferRequestHeader.Input]
    output: _containers.RepeatedCompositeFieldContainer[InferRequestHeader.Output]
    correlation_id: int
    id: int
    flags: int
    priority: int
    timeout_microseconds: int
    def __init__(self, batch_size: _Optional[int] = ..., input: _Optional[_Iterable[_Union[InferRequestHeader.Input, _Mapping]]] = ..., output: _Optional[_Iterable[_Union[InferRequestHeader.Output, _Mapping]]] = ..., correlation_id: _Optional[int] = ..., id: _Optional[int] = ..., flags: _Optional[int] = ..., priority: _Optional[int] = ..., timeout_microseconds: _Optional[int] = ...) -> None: ...

class InferResponseHeader(_message.Message):
    __slots__ = ("model_name", "model_version", "batch_size", "output", "id")
    class Output(_message.Message):
        __slots__ = ("name", "raw", "batch_classes", "data_type")
        class Raw(_message.Message):
            __slots__ = ("dims", "batch_byte_size")
            DIMS_FIELD_NUMBER: _ClassVar[int]
            BATCH_BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
            dims: _containers.RepeatedScalarFieldContainer[int]
            batch_byte_size: int
            def __init__(self, dims: _Optional[_Iterable[int]] = ..., batch_byte_size: _Optional[int] = ...) -> None: ...
        class Class(_message.Message):
            __slots__ = ("idx", "value", "label")
            IDX_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            LABEL_FIELD_NUMBER: _ClassVar[int]
            idx: int
            value: float
            label: str
            def __init__(self, idx: _Optional[int] = ..., value: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...
        class Classes(_message.Message):
            __slots__ = ("cls",)
            CLS_FIELD_NUMBER: _ClassVar[int]
            cls: _containers.RepeatedCompositeFieldContainer[InferResponseHeader.Output.Class]
            def __init__(self, cls: _Optional[_Iterable[_Union[InferResponseHeader.Output.Class, _Mapping]]] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        RAW_FIELD_NUMBER: _ClassVar[int]
        BATCH_CLASSES_FIELD_NUMBER: _ClassVar[int]
        DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
        name: str
        raw: InferResponseHeader.Output.Raw
        batch_classes: _containers.RepeatedCompositeFieldContainer[InferResponseHeader.Output.Classes]
        data_type: DataType
        def __init__(self, name: _Optional[str] = ..., raw: _Optional[_Union[InferResponseHeader.Output.Raw, _Mapping]] = ..., batch_classes: _Optional[_Iterable[_Union[InferResponseHeader.Output.Classes, _Mapping]]] = ..., data_type: _Optional[_Union[DataType, str]] = ...) -> None: ...
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: int
    batch_size: int
    output: _containers.RepeatedCompositeFieldContainer[InferResponseHeader.Output]
    id: int
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., batch_size: _Optional[int] = ..., output: _Optional[_Iterable[_Union[InferResponseHeader.Output, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("model_name", "model_version", "meta_data", "raw_input")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    META_DATA_FIELD_NUMBER: _ClassVar[int]
    RAW_INPUT_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: int
    meta_data: InferRequestHeader
    raw_input: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., meta_data: _Optional[_Union[InferRequestHeader, _Mapping]] = ..., raw_input: _Optional[_Iterable[bytes]] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("request_status", "meta_data", "raw_output")
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    META_DATA_FIELD_NUMBER: _ClassVar[int]
    RAW_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    meta_data: InferResponseHeader
    raw_output: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ..., meta_data: _Optional[_Union[InferResponseHeader, _Mapping]] = ..., raw_output: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("model_name",)
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    def __init__(self, model_name: _Optional[str] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("request_status", "server_status")
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    SERVER_STATUS_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    server_status: ServerStatus
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ..., server_status: _Optional[_Union[ServerStatus, _Mapping]] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = ("cmd",)
    CMD_FIELD_NUMBER: _ClassVar[int]
    cmd: str
    def __init__(self, cmd: _Optional[str] = ...) -> None: ...

class ProfileResponse(_message.Message):
    __slots__ = ("request_status",)
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    def __init__(self, mode: _Optional[str] = ...) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("request_status", "health")
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    health: bool
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ..., health: _Optional[bool] = ...) -> None: ...

class ModelControlRequest(_message.Message):
    __slots__ = ("model_name", "type")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNLOAD: _ClassVar[ModelControlRequest.Type]
        LOAD: _ClassVar[ModelControlRequest.Type]
    UNLOAD: ModelControlRequest.Type
    LOAD: ModelControlRequest.Type
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    type: ModelControlRequest.Type
    def __init__(self, model_name: _Optional[str] = ..., type: _Optional[_Union[ModelControlRequest.Type, str]] = ...) -> None: ...

class ModelControlResponse(_message.Message):
    __slots__ = ("request_status",)
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ...) -> None: ...

class RepositoryRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: bool
    def __init__(self, index: _Optional[bool] = ...) -> None: ...

class RepositoryResponse(_message.Message):
    __slots__ = ("request_status", "index")
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    index: ModelRepositoryIndex
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ..., index: _Optional[_Union[ModelRepositoryIndex, _Mapping]] = ...) -> None: ...

class SharedMemoryControlRequest(_message.Message):
    __slots__ = ("register", "unregister", "unregister_all", "status")
    class Register(_message.Message):
        __slots__ = ("name", "system_shared_memory", "cuda_shared_memory", "byte_size")
        class SystemSharedMemoryIdentifier(_message.Message):
            __slots__ = ("shared_memory_key", "offset")
            SHARED_MEMORY_KEY_FIELD_NUMBER: _ClassVar[int]
            OFFSET_FIELD_NUMBER: _ClassVar[int]
            shared_memory_key: str
            offset: int
            def __init__(self, shared_memory_key: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...
        class CUDASharedMemoryIdentifier(_message.Message):
            __slots__ = ("raw_handle", "device_id")
            RAW_HANDLE_FIELD_NUMBER: _ClassVar[int]
            DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
            raw_handle: bytes
            device_id: int
            def __init__(self, raw_handle: _Optional[bytes] = ..., device_id: _Optional[int] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        SYSTEM_SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
        CUDA_SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
        BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
        name: str
        system_shared_memory: SharedMemoryControlRequest.Register.SystemSharedMemoryIdentifier
        cuda_shared_memory: SharedMemoryControlRequest.Register.CUDASharedMemoryIdentifier
        byte_size: int
        def __init__(self, name: _Optional[str] = ..., system_shared_memory: _Optional[_Union[SharedMemoryControlRequest.Register.SystemSharedMemoryIdentifier, _Mapping]] = ..., cuda_shared_memory: _Optional[_Union[SharedMemoryControlRequest.Register.CUDASharedMemoryIdentifier, _Mapping]] = ..., byte_size: _Optional[int] = ...) -> None: ...
    class Unregister(_message.Message):
        __slots__ = ("name",)
        NAME_FIELD_NUMBER: _ClassVar[int]
        name: str
        def __init__(self, name: _Optional[str] = ...) -> None: ...
    class UnregisterAll(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Status(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_ALL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    register: SharedMemoryControlRequest.Register
    unregister: SharedMemoryControlRequest.Unregister
    unregister_all: SharedMemoryControlRequest.UnregisterAll
    status: SharedMemoryControlRequest.Status
    def __init__(self, register: _Optional[_Union[SharedMemoryControlRequest.Register, _Mapping]] = ..., unregister: _Optional[_Union[SharedMemoryControlRequest.Unregister, _Mapping]] = ..., unregister_all: _Optional[_Union[SharedMemoryControlRequest.UnregisterAll, _Mapping]] = ..., status: _Optional[_Union[SharedMemoryControlRequest.Status, _Mapping]] = ...) -> None: ...

class SharedMemoryControlResponse(_message.Message):
    __slots__ = ("request_status", "shared_memory_status")
    class Status(_message.Message):
        __slots__ = ("declared_region", "shared_memory_region")
        DECLARED_REGION_FIELD_NUMBER: _ClassVar[int]
        SHARED_MEMORY_REGION_FIELD_NUMBER: _ClassVar[int]
        declared_region: _containers.RepeatedCompositeFieldContainer[SharedMemoryRegion]
        shared_memory_region: _containers.RepeatedCompositeFieldContainer[SharedMemoryRegion]
        def __init__(self, declared_region: _Optional[_Iterable[_Union[SharedMemoryRegion, _Mapping]]] = ..., shared_memory_region: _Optional[_Iterable[_Union[SharedMemoryRegion, _Mapping]]] = ...) -> None: ...
    REQUEST_STATUS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_STATUS_FIELD_NUMBER: _ClassVar[int]
    request_status: RequestStatus
    shared_memory_status: SharedMemoryControlResponse.Status
    def __init__(self, request_status: _Optional[_Union[RequestStatus, _Mapping]] = ..., shared_memory_status: _Optional[_Union[SharedMemoryControlResponse.Status, _Mapping]] = ...) -> None: ...

class StatDuration(_message.Message):
    __slots__ = ("count", "total_time_ns")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    count: int
    total_time_ns: int
    def __init__(self, count: _Optional[int] = ..., total_time_ns: _Optional[int] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: StatDuration
    def __init__(self, success: _Optional[_Union[StatDuration, _Mapping]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("id", "version", "uptime_ns", "model_status", "status_stats", "profile_stats", "ready_state", "health_stats", "model_control_stats", "shm_control_stats", "repository_stats")
    class ModelStatusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ModelStatus
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ModelStatus, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    MODEL_STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_STATS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_STATS_FIELD_NUMBER: _ClassVar[int]
    READY_STATE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_STATS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CONTROL_STATS_FIELD_NUMBER: _ClassVar[int]
    SHM_CONTROL_STATS_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_STATS_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: str
    uptime_ns: int
    model_status: _containers.MessageMap[str, ModelStatus]
    status_stats: RequestStats
    profile_stats: RequestStats
    ready_state: ServerReadyState
    health_stats: RequestStats
    model_control_stats: RequestStats
    shm_control_stats: RequestStats
    repository_stats: RequestStats
    def __init__(self, id: _Optional[str] = ..., version: _Optional[str] = ..., uptime_ns: _Optional[int] = ..., model_status: _Optional[_Mapping[str, ModelStatus]] = ..., status_stats: _Optional[_Union[RequestStats, _Mapping]] = ..., profile_stats: _Optional[_Union[RequestStats, _Mapping]] = ..., ready_state: _Optional[_Union[ServerReadyState, str]] = ..., health_stats: _Optional[_Union[RequestStats, _Mapping]] = ..., model_control_stats: _Optional[_Union[RequestStats, _Mapping]] = ..., shm_control_stats: _Optional[_Union[RequestStats, _Mapping]] = ..., repository_stats: _Optional[_Union[RequestStats, _Mapping]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("config", "version_status")
    class VersionStatusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: ModelVersionStatus
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[ModelVersionStatus, _Mapping]] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSION_STATUS_FIELD_NUMBER: _ClassVar[int]
    config: ModelConfig
    version_status: _containers.MessageMap[int, ModelVersionStatus]
    def __init__(self, config: _Optional[_Union[ModelConfig, _Mapping]] = ..., version_status: _Optional[_Mapping[int, ModelVersionStatus]] = ...) -> None: ...

class ModelReadyStateReason(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class InferRequestStats(_message.Message):
    __slots__ = ("success", "failed", "compute", "queue", "compute_input", "compute_infer", "compute_output")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INPUT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INFER_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    success: StatDuration
    failed: StatDuration
    compute: StatDuration
    queue: StatDuration
    compute_input: StatDuration
    compute_infer: StatDuration
    compute_output: StatDuration
    def __init__(self, success: _Optional[_Union[StatDuration, _Mapping]] = ..., failed: _Optional[_Union[StatDuration, _Mapping]] = ..., compute: _Optional[_Union[StatDuration, _Mapping]] = ..., queue: _Optional[_Union[StatDuration, _Mapping]] = ..., compute_input: _Optional[_Union[StatDuration, _Mapping]] = ..., compute_infer: _Optional[_Union[StatDuration, _Mapping]] = ..., compute_output: _Optional[_Union[StatDuration, _Mapping]] = ...) -> None: ...

class ModelVersionStatus(_message.Message):
    __slots__ = ("ready_state", "infer_stats", "model_execution_count", "model_inference_count", "ready_state_reason", "last_inference_timestamp_milliseconds")
    class InferStatsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: InferRequestStats
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[InferRequestStats, _Mapping]] = ...) -> None: ...
    READY_STATE_FIELD_NUMBER: _ClassVar[int]
    INFER_STATS_FIELD_NUMBER: _ClassVar[int]
    MODEL_EXECUTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODEL_INFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READY_STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_INFERENCE_TIMESTAMP_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    ready_state: ModelReadyState
    infer_stats: _containers.MessageMap[int, InferRequestStats]
    model_execution_count: int
    model_inference_count: int
    ready_state_reason: ModelReadyStateReason
    last_inference_timestamp_milliseconds: int
    def __init__(self, ready_state: _Optional[_Union[ModelReadyState, str]] = ..., infer_stats: _Optional[_Mapping[int, InferRequestStats]] = ..., model_execution_count: _Optional[int] = ..., model_inference_count: _Optional[int] = ..., ready_state_reason: _Optional[_Union[ModelReadyStateReason, _Mapping]] = ..., last_inference_timestamp_milliseconds: _Optional[int] = ...) -> None: ...

class SharedMemoryRegion(_message.Message):
    __slots__ = ("name", "system_shared_memory", "cuda_shared_memory", "byte_size")
    class SystemSharedMemory(_message.Message):
        __slots__ = ("shared_memory_key", "offset")
        SHARED_MEMORY_KEY_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        shared_memory_key: str
        offset: int
        def __init__(self, shared_memory_key: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...
    class CudaSharedMemory(_message.Message):
        __slots__ = ("device_id",)
        DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
        device_id: int
        def __init__(self, device_id: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CUDA_SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    system_shared_memory: SharedMemoryRegion.SystemSharedMemory
    cuda_shared_memory: SharedMemoryRegion.CudaSharedMemory
    byte_size: int
    def __init__(self, name: _Optional[str] = ..., system_shared_memory: _Optional[_Union[SharedMemoryRegion.SystemSharedMemory, _Mapping]] = ..., cuda_shared_memory: _Optional[_Union[SharedMemoryRegion.CudaSharedMemory, _Mapping]] = ..., byte_size: _Optional[int] = ...) -> None: ...

class SharedMemoryStatus(_message.Message):
    __slots__ = ("shared_memory_region",)
    SHARED_MEMORY_REGION_FIELD_NUMBER: _ClassVar[int]
    shared_memory_region: _containers.RepeatedCompositeFieldContainer[SharedMemoryRegion]
    def __init__(self, shared_memory_region: _Optional[_Iterable[_Union[SharedMemoryRegion, _Mapping]]] = ...) -> None: ...

class ModelRepositoryIndex(_message.Message):
    __slots__ = ("models",)
    class ModelEntry(_message.Message):
        __slots__ = ("name",)
        NAME_FIELD_NUMBER: _ClassVar[int]
        name: str
        def __init__(self, name: _Optional[str] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelRepositoryIndex.ModelEntry]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelRepositoryIndex.ModelEntry, _Mapping]]] = ...) -> None: ...

class ModelTensorReshape(_message.Message):
    __slots__ = ("shape",)
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelInput(_message.Message):
    __slots__ = ("name", "data_type", "format", "dims", "reshape", "is_shape_tensor", "allow_ragged_batch")
    class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FORMAT_NONE: _ClassVar[ModelInput.Format]
        FORMAT_NHWC: _ClassVar[ModelInput.Format]
        FORMAT_NCHW: _ClassVar[ModelInput.Format]
    FORMAT_NONE: ModelInput.Format
    FORMAT_NHWC: ModelInput.Format
    FORMAT_NCHW: ModelInput.Format
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    RESHAPE_FIELD_NUMBER: _ClassVar[int]
    IS_SHAPE_TENSOR_FIELD_NUMBER: _ClassVar[int]
    ALLOW_RAGGED_BATCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    data_type: DataType
    format: ModelInput.Format
    dims: _containers.RepeatedScalarFieldContainer[int]
    reshape: ModelTensorReshape
    is_shape_tensor: bool
    allow_ragged_batch: bool
    def __init__(self, name: _Optional[str] = ..., data_type: _Optional[_Union[DataType, str]] = ..., format: _Optional[_Union[ModelInput.Format, str]] = ..., dims: _Optional[_Iterable[int]] = ..., reshape: _Optional[_Union[ModelTensorReshape, _Mapping]] = ..., is_shape_tensor: _Optional[bool] = ..., allow_ragged_batch: _Optional[bool] = ...) -> None: ...

class ModelOutput(_message.Message):
    __slots__ = ("name", "data_type", "dims", "label_filename", "reshape", "is_shape_tensor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FILENAME_FIELD_NUMBER: _ClassVar[int]
    RESHAPE_FIELD_NUMBER: _ClassVar[int]
    IS_SHAPE_TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    data_type: DataType
    dims: _containers.RepeatedScalarFieldContainer[int]
    label_filename: str
    reshape: ModelTensorReshape
    is_shape_tensor: bool
    def __init__(self, name: _Optional[str] = ..., data_type: _Optional[_Union[DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., label_filename: _Optional[str] = ..., reshape: _Optional[_Union[ModelTensorReshape, _Mapping]] = ..., is_shape_tensor: _Optional[bool] = ...) -> None: ...

class ModelVersionPolicy(_message.Message):
    __slots__ = ("latest", "all", "specific")
    class Latest(_message.Message):
        __slots__ = ("num_versions",)
        NUM_VERSIONS_FIELD_NUMBER: _ClassVar[int]
        num_versions: int
        def __init__(self, num_versions: _Optional[int] = ...) -> None: ...
    class All(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Specific(_message.Message):
        __slots__ = ("versions",)
        VERSIONS_FIELD_NUMBER: _ClassVar[int]
        versions: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, versions: _Optional[_Iterable[int]] = ...) -> None: ...
    LATEST_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    SPECIFIC_FIELD_NUMBER: _ClassVar[int]
    latest: ModelVersionPolicy.Latest
    all: ModelVersionPolicy.All
    specific: ModelVersionPolicy.Specific
    def __init__(self, latest: _Optional[_Union[ModelVersionPolicy.Latest, _Mapping]] = ..., all: _Optional[_Union[ModelVersionPolicy.All, _Mapping]] = ..., specific: _Optional[_Union[ModelVersionPolicy.Specific, _Mapping]] = ...) -> None: ...

class ModelInstanceGroup(_message.Message):
    __slots__ = ("name", "count", "gpus", "kind", "profile")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_AUTO: _ClassVar[ModelInstanceGroup.Kind]
        KIND_GPU: _ClassVar[ModelInstanceGroup.Kind]
        KIND_CPU: _ClassVar[ModelInstanceGroup.Kind]
        KIND_MODEL: _ClassVar[ModelInstanceGroup.Kind]
    KIND_AUTO: ModelInstanceGroup.Kind
    KIND_GPU: ModelInstanceGroup.Kind
    KIND_CPU: ModelInstanceGroup.Kind
    KIND_MODEL: ModelInstanceGroup.Kind
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    kind: ModelInstanceGroup.Kind
    profile: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., kind: _Optional[_Union[ModelInstanceGroup.Kind, str]] = ..., profile: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelOptimizationPolicy(_message.Message):
    __slots__ = ("graph", "priority", "cuda", "execution_accelerators", "input_pinned_memory", "output_pinned_memory")
    class ModelPriority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PRIORITY_DEFAULT: _ClassVar[ModelOptimizationPolicy.ModelPriority]
        PRIORITY_MAX: _ClassVar[ModelOptimizationPolicy.ModelPriority]
        PRIORITY_MIN: _ClassVar[ModelOptimizationPolicy.ModelPriority]
    PRIORITY_DEFAULT: ModelOptimizationPolicy.ModelPriority
    PRIORITY_MAX: ModelOptimizationPolicy.ModelPriority
    PRIORITY_MIN: ModelOptimizationPolicy.ModelPriority
    class Graph(_message.Message):
        __slots__ = ("level",)
        LEVEL_FIELD_NUMBER: _ClassVar[int]
        level: int
        def __init__(self, level: _Optional[int] = ...) -> None: ...
    class Cuda(_message.Message):
        __slots__ = ("graphs",)
        GRAPHS_FIELD_NUMBER: _ClassVar[int]
        graphs: bool
        def __init__(self, graphs: _Optional[bool] = ...) -> None: ...
    class ExecutionAccelerators(_message.Message):
        __slots__ = ("gpu_execution_accelerator", "cpu_execution_accelerator")
        class Accelerator(_message.Message):
            __slots__ = ("name", "parameters")
            class ParametersEntry(_message.Message):
                __slots__ = ("key", "value")
                KEY_FIELD_NUMBER: _ClassVar[int]
                VALUE_FIELD_NUMBER: _ClassVar[int]
                key: str
                value: str
                def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
            NAME_FIELD_NUMBER: _ClassVar[int]
            PARAMETERS_FIELD_NUMBER: _ClassVar[int]
            name: str
            parameters: _containers.ScalarMap[str, str]
            def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Mapping[str, str]] = ...) -> None: ...
        GPU_EXECUTION_ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
        CPU_EXECUTION_ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
        gpu_execution_accelerator: _containers.RepeatedCompositeFieldContainer[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]
        cpu_execution_accelerator: _containers.RepeatedCompositeFieldContainer[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]
        def __init__(self, gpu_execution_accelerator: _Optional[_Iterable[_Union[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator, _Mapping]]] = ..., cpu_execution_accelerator: _Optional[_Iterable[_Union[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator, _Mapping]]] = ...) -> None: ...
    class PinnedMemoryBuffer(_message.Message):
        __slots__ = ("enable",)
        ENABLE_FIELD_NUMBER: _ClassVar[int]
        enable: bool
        def __init__(self, enable: _Optional[bool] = ...) -> None: ...
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    INPUT_PINNED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PINNED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    graph: ModelOptimizationPolicy.Graph
    priority: ModelOptimizationPolicy.ModelPriority
    cuda: ModelOptimizationPolicy.Cuda
    execution_accelerators: ModelOptimizationPolicy.ExecutionAccelerators
    input_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer
    output_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer
    def __init__(self, graph: _Optional[_Union[ModelOptimizationPolicy.Graph, _Mapping]] = ..., priority: _Optional[_Union[ModelOptimizationPolicy.ModelPriority, str]] = ..., cuda: _Optional[_Union[ModelOptimizationPolicy.Cuda, _Mapping]] = ..., execution_accelerators: _Optional[_Union[ModelOptimizationPolicy.ExecutionAccelerators, _Mapping]] = ..., input_pinned_memory: _Optional[_Union[ModelOptimizationPolicy.PinnedMemoryBuffer, _Mapping]] = ..., output_pinned_memory: _Optional[_Union[ModelOptimizationPolicy.PinnedMemoryBuffer, _Mapping]] = ...) -> None: ...

class ModelSequenceBatching(_message.Message):
    __slots__ = ("max_sequence_idle_microseconds", "control_input", "direct", "oldest")
    class Control(_message.Message):
        __slots__ = ("kind", "int32_false_true", "fp32_false_true", "data_type")
        class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            CONTROL_SEQUENCE_START: _ClassVar[ModelSequenceBatching.Control.Kind]
            CONTROL_SEQUENCE_READY: _ClassVar[ModelSequenceBatching.Control.Kind]
            CONTROL_SEQUENCE_END: _ClassVar[ModelSequenceBatching.Control.Kind]
            CONTROL_SEQUENCE_CORRID: _ClassVar[ModelSequenceBatching.Control.Kind]
        CONTROL_SEQUENCE_START: ModelSequenceBatching.Control.Kind
        CONTROL_SEQUENCE_READY: ModelSequenceBatching.Control.Kind
        CONTROL_SEQUENCE_END: ModelSequenceBatching.Control.Kind
        CONTROL_SEQUENCE_CORRID: ModelSequenceBatching.Control.Kind
        KIND_FIELD_NUMBER: _ClassVar[int]
        INT32_FALSE_TRUE_FIELD_NUMBER: _ClassVar[int]
        FP32_FALSE_TRUE_FIELD_NUMBER: _ClassVar[int]
        DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
        kind: ModelSequenceBatching.Control.Kind
        int32_false_true: _containers.RepeatedScalarFieldContainer[int]
        fp32_false_true: _containers.RepeatedScalarFieldContainer[float]
        data_type: DataType
        def __init__(self, kind: _Optional[_Union[ModelSequenceBatching.Control.Kind, str]] = ..., int32_false_true: _Optional[_Iterable[int]] = ..., fp32_false_true: _Optional[_Iterable[float]] = ..., data_type: _Optional[_Union[DataType, str]] = ...) -> None: ...
    class ControlInput(_message.Message):
        __slots__ = ("name", "control")
        NAME_FIELD_NUMBER: _ClassVar[int]
        CONTROL_FIELD_NUMBER: _ClassVar[int]
        name: str
        control: _containers.RepeatedCompositeFieldContainer[ModelSequenceBatching.Control]
        def __init__(self, name: _Optional[str] = ..., control: _Optional[_Iterable[_Union[ModelSequenceBatching.Control, _Mapping]]] = ...) -> None: ...
    class StrategyDirect(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class StrategyOldest(_message.Message):
        __slots__ = ("max_candidate_sequences", "preferred_batch_size", "max_queue_delay_microseconds")
        MAX_CANDIDATE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
        PREFERRED_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
        MAX_QUEUE_DELAY_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
        max_candidate_sequences: int
        preferred_batch_size: _containers.RepeatedScalarFieldContainer[int]
        max_queue_delay_microseconds: int
        def __init__(self, max_candidate_sequences: _Optional[int] = ..., preferred_batch_size: _Optional[_Iterable[int]] = ..., max_queue_delay_microseconds: _Optional[int] = ...) -> None: ...
    MAX_SEQUENCE_IDLE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_INPUT_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    max_sequence_idle_microseconds: int
    control_input: _containers.RepeatedCompositeFieldContainer[ModelSequenceBatching.ControlInput]
    direct: ModelSequenceBatching.StrategyDirect
    oldest: ModelSequenceBatching.StrategyOldest
    def __init__(self, max_sequence_idle_microseconds: _Optional[int] = ..., control_input: _Optional[_Iterable[_Union[ModelSequenceBatching.ControlInput, _Mapping]]] = ..., direct: _Optional[_Union[ModelSequenceBatching.StrategyDirect, _Mapping]] = ..., oldest: _Optional[_Union[ModelSequenceBatching.StrategyOldest, _Mapping]] = ...) -> None: ...

class ModelQueuePolicy(_message.Message):
    __slots__ = ("timeout_action", "default_timeout_microseconds", "allow_timeout_override", "max_queue_size")
    class TimeoutAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REJECT: _ClassVar[ModelQueuePolicy.TimeoutAction]
        DELAY: _ClassVar[ModelQueuePolicy.TimeoutAction]
    REJECT: ModelQueuePolicy.TimeoutAction
    DELAY: ModelQueuePolicy.TimeoutAction
    TIMEOUT_ACTION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TIMEOUT_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_TIMEOUT_OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    timeout_action: ModelQueuePolicy.TimeoutAction
    default_timeout_microseconds: int
    allow_timeout_override: bool
    max_queue_size: int
    def __init__(self, timeout_action: _Optional[_Union[ModelQueuePolicy.TimeoutAction, str]] = ..., default_timeout_microseconds: _Optional[int] = ..., allow_timeout_override: _Optional[bool] = ..., max_queue_size: _Optional[int] = ...) -> None: ...

class ModelDynamicBatching(_message.Message):
    __slots__ = ("preferred_batch_size", "max_queue_delay_microseconds", "preserve_ordering", "priority_levels", "default_priority_level", "default_queue_policy", "priority_queue_policy")
    class PriorityQueuePolicyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: ModelQueuePolicy
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[ModelQueuePolicy, _Mapping]] = ...) -> None: ...
    PREFERRED_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_DELAY_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    PRESERVE_ORDERING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_LEVELS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PRIORITY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_QUEUE_POLICY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_QUEUE_POLICY_FIELD_NUMBER: _ClassVar[int]
    preferred_batch_size: _containers.RepeatedScalarFieldContainer[int]
    max_queue_delay_microseconds: int
    preserve_ordering: bool
    priority_levels: int
    default_priority_level: int
    default_queue_policy: ModelQueuePolicy
    priority_queue_policy: _containers.MessageMap[int, ModelQueuePolicy]
    def __init__(self, preferred_batch_size: _Optional[_Iterable[int]] = ..., max_queue_delay_microseconds: _Optional[int] = ..., preserve_ordering: _Optional[bool] = ..., priority_levels: _Optional[int] = ..., default_priority_level: _Optional[int] = ..., default_queue_policy: _Optional[_Union[ModelQueuePolicy, _Mapping]] = ..., priority_queue_policy: _Optional[_Mapping[int, ModelQueuePolicy]] = ...) -> None: ...

class ModelEnsembling(_message.Message):
    __slots__ = ("step",)
    class Step(_message.Message):
        __slots__ = ("model_name", "model_version", "input_map", "output_map")
        class InputMapEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        class OutputMapEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
        MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
        INPUT_MAP_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_MAP_FIELD_NUMBER: _ClassVar[int]
        model_name: str
        model_version: int
        input_map: _containers.ScalarMap[str, str]
        output_map: _containers.ScalarMap[str, str]
        def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., input_map: _Optional[_Mapping[str, str]] = ..., output_map: _Optional[_Mapping[str, str]] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: _containers.RepeatedCompositeFieldContainer[ModelEnsembling.Step]
    def __init__(self, step: _Optional[_Iterable[_Union[ModelEnsembling.Step, _Mapping]]] = ...) -> None: ...

class ModelWarmup(_message.Message):
    __slots__ = ("name", "batch_size", "inputs")
    class Input(_message.Message):
        __slots__ = ("data_type", "dims", "zero_data", "random_data", "input_data_file")
        DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
        DIMS_FIELD_NUMBER: _ClassVar[int]
        ZERO_DATA_FIELD_NUMBER: _ClassVar[int]
        RANDOM_DATA_FIELD_NUMBER: _ClassVar[int]
        INPUT_DATA_FILE_FIELD_NUMBER: _ClassVar[int]
        data_type: DataType
        dims: _containers.RepeatedScalarFieldContainer[int]
        zero_data: bool
        random_data: bool
        input_data_file: str
        def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., zero_data: _Optional[bool] = ..., random_data: _Optional[bool] = ..., input_data_file: _Optional[str] = ...) -> None: ...
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ModelWarmup.Input
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ModelWarmup.Input, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    batch_size: int
    inputs: _containers.MessageMap[str, ModelWarmup.Input]
    def __init__(self, name: _Optional[str] = ..., batch_size: _Optional[int] = ..., inputs: _Optional[_Mapping[str, ModelWarmup.Input]] = ...) -> None: ...

class ModelParameter(_message.Message):
    __slots__ = ("string_value",)
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    def __init__(self, string_value: _Optional[str] = ...) -> None: ...

class ModelConfig(_message.Message):
    __slots__ = ("name", "platform", "version_policy", "max_batch_size", "input", "output", "instance_group", "default_model_filename", "cc_model_filenames", "metric_tags", "optimization", "dynamic_batching", "sequence_batching", "ensemble_scheduling", "parameters", "model_warmup")
    class CcModelFilenamesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetricTagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ModelParameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ModelParameter, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    VERSION_POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_GROUP_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MODEL_FILENAME_FIELD_NUMBER: _ClassVar[int]
    CC_MODEL_FILENAMES_FIELD_NUMBER: _ClassVar[int]
    METRIC_TAGS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZATION_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_BATCHING_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_BATCHING_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_WARMUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    platform: str
    version_policy: ModelVersionPolicy
    max_batch_size: int
    input: _containers.RepeatedCompositeFieldContainer[ModelInput]
    output: _containers.RepeatedCompositeFieldContainer[ModelOutput]
    instance_group: _containers.RepeatedCompositeFieldContainer[ModelInstanceGroup]
    default_model_filename: str
    cc_model_filenames: _containers.ScalarMap[str, str]
    metric_tags: _containers.ScalarMap[str, str]
    optimization: ModelOptimizationPolicy
    dynamic_batching: ModelDynamicBatching
    sequence_batching: ModelSequenceBatching
    ensemble_scheduling: ModelEnsembling
    parameters: _containers.MessageMap[str, ModelParameter]
    model_warmup: _containers.RepeatedCompositeFieldContainer[ModelWarmup]
    def __init__(self, name: _Optional[str] = ..., platform: _Optional[str] = ..., version_policy: _Optional[_Union[ModelVersionPolicy, _Mapping]] = ..., max_batch_size: _Optional[int] = ..., input: _Optional[_Iterable[_Union[ModelInput, _Mapping]]] = ..., output: _Optional[_Iterable[_Union[ModelOutput, _Mapping]]] = ..., instance_group: _Optional[_Iterable[_Union[ModelInstanceGroup, _Mapping]]] = ..., default_model_filename: _Optional[str] = ..., cc_model_filenames: _Optional[_Mapping[str, str]] = ..., metric_tags: _Optional[_Mapping[str, str]] = ..., optimization: _Optional[_Union[ModelOptimizationPolicy, _Mapping]] = ..., dynamic_batching: _Optional[_Union[ModelDynamicBatching, _Mapping]] = ..., sequence_batching: _Optional[_Union[ModelSequenceBatching, _Mapping]] = ..., ensemble_scheduling: _Optional[_Union[ModelEnsembling, _Mapping]] = ..., parameters: _Optional[_Mapping[str, ModelParameter]] = ..., model_warmup: _Optional[_Iterable[_Union[ModelWarmup, _Mapping]]] = ...) -> None: ...
