from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message

DESCRIPTOR: _descriptor.FileDescriptor

class RpcRequestMeta(_message.Message):
    __slots__ = ("service_name", "method_name", "log_id", "trace_id", "span_id", "parent_span_id", "request_id", "timeout_ms")
    SERVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    service_name: str
    method_name: str
    log_id: int
    trace_id: int
    span_id: int
    parent_span_id: int
    request_id: str
    timeout_ms: int
    def __init__(self, service_name: _Optional[str] = ..., method_name: _Optional[str] = ..., log_id: _Optional[int] = ..., trace_id: _Optional[int] = ..., span_id: _Optional[int] = ..., parent_span_id: _Optional[int] = ..., request_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class RpcResponseMeta(_message.Message):
    __slots__ = ("error_code", "error_text")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_text: str
    def __init__(self, error_code: _Optional[int] = ..., error_text: _Optional[str] = ...) -> None: ...

class ChunkInfo(_message.Message):
    __slots__ = ("stream_id", "chunk_id")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    chunk_id: int
    def __init__(self, stream_id: _Optional[int] = ..., chunk_id: _Optional[int] = ...) -> None: ...

class StreamSettings(_message.Message):
    __slots__ = ("stream_id", "need_feedback", "writable")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    NEED_FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    need_feedback: bool
    writable: bool
    def __init__(self, stream_id: _Optional[int] = ..., need_feedback: _Optional[bool] = ..., writable: _Optional[bool] = ...) -> None: ...

class RpcMeta(_message.Message):
    __slots__ = ("request", "response", "compress_type", "correlation_id", "attachment_size", "chunk_info", "authentication_data", "stream_settings", "content_type")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    COMPRESS_TYPE_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INFO_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATION_DATA_FIELD_NUMBER: _ClassVar[int]
    STREAM_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    request: RpcRequestMeta
    response: RpcResponseMeta
    compress_type: int
    correlation_id: int
    attachment_size: int
    chunk_info: ChunkInfo
    authentication_data: bytes
    stream_settings: StreamSettings
    content_type: int
    def __init__(self, request: _Optional[_Union[RpcRequestMeta, _Mapping]] = ..., response: _Optional[_Union[RpcResponseMeta, _Mapping]] = ..., compress_type: _Optional[int] = ..., correlation_id: _Optional[int] = ..., attachment_size: _Optional[int] = ..., chunk_info: _Optional[_Union[ChunkInfo, _Mapping]] = ..., authentication_data: _Optional[bytes] = ..., stream_settings: _Optional[_Union[StreamSettings, _Mapping]] = ..., content_type: _Optional[int] = ...) -> None: ...
