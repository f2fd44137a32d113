# Calls of a gRPC server that arrive in one piece: transports/grpc/server_connection.py and server_call.py.


cdef class _ServerCallFields:
    """Where calls of a server, their connections and their heads have their fields."""

    cdef object _call, _module, _receiving, _connection_class, _head_class, _shares
    cdef Py_ssize_t _connection, _stream, _head, _method, _incoming, _started_at, _sent, _final_response
    cdef Py_ssize_t _state, _step, _deadline, _task, _named, _ask_client
    cdef Py_ssize_t _methods, _client, _caller
    cdef Py_ssize_t _path, _metadata, _timeout_s, _http_status, _oversized, _length
    cdef Py_ssize_t _owner
    cdef object _request
    cdef Py_ssize_t _of_method, _message, _of_metadata, _of_deadline, _of_client

    def __cinit__(self):
        from gateway.transports.client_shares import ClientShares
        from gateway.transports.grpc import server_call
        from gateway.transports.grpc.headers import GrpcRequestHead
        from gateway.transports.grpc.server_call import ServerCall
        from gateway.transports.grpc.server_connection import GrpcServerConnection
        from gateway.transports.grpc.states import RECEIVING
        from gateway.transports.http2.streams import Http2Stream
        from gateway.wire.grpc import GrpcRequest

        self._call, self._module, self._receiving = ServerCall, server_call, RECEIVING
        self._connection, self._stream = _offset(ServerCall, "_connection"), _offset(ServerCall, "_stream")
        self._head, self._method = _offset(ServerCall, "_head"), _offset(ServerCall, "_method")
        self._incoming, self._started_at = _offset(ServerCall, "_incoming"), _offset(ServerCall, "_started_at")
        self._sent, self._final_response = _offset(ServerCall, "_sent"), _offset(ServerCall, "_final_response")
        self._state, self._step = _offset(ServerCall, "_state"), _offset(ServerCall, "_step")
        self._deadline, self._task = _offset(ServerCall, "_deadline"), _offset(ServerCall, "task")
        self._named, self._ask_client = _offset(ServerCall, "_client"), _offset(ServerCall, "_ask_client")
        self._connection_class, self._shares = GrpcServerConnection, ClientShares
        self._methods = _offset(GrpcServerConnection, "_methods")
        self._client = _offset(GrpcServerConnection, "client")
        self._caller, self._owner = _offset(ClientShares, "caller"), _offset(Http2Stream, "owner")
        self._head_class = GrpcRequestHead
        self._path, self._metadata = _offset(GrpcRequestHead, "path"), _offset(GrpcRequestHead, "metadata")
        self._timeout_s, self._length = _offset(GrpcRequestHead, "timeout_s"), _offset(GrpcRequestHead, "length")
        self._http_status = _offset(GrpcRequestHead, "http_status")
        self._oversized = _offset(GrpcRequestHead, "oversized")
        self._request = GrpcRequest("")
        self._of_method, self._message = _offset(GrpcRequest, "method"), _offset(GrpcRequest, "message")
        self._of_metadata, self._of_client = _offset(GrpcRequest, "metadata"), _offset(GrpcRequest, "client")
        self._of_deadline = _offset(GrpcRequest, "deadline")

    cdef object _new(self, connection, stream, head, method):
        """Return a call; as `ServerCall`."""
        started_at, timeout_s = self._module.monotonic(), head.timeout_s
        call = PyType_GenericAlloc(<PyTypeObject*><void*>self._call, 0)
        _set_field(call, self._connection, connection)
        _set_field(call, self._stream, stream)
        _set_field(call, self._head, head)
        _set_field(call, self._method, method)
        _set_field(call, self._incoming, None)
        _set_field(call, self._started_at, started_at)
        _set_field(call, self._sent, None)
        _set_field(call, self._final_response, None)
        _set_field(call, self._state, self._receiving)
        _set_field(call, self._step, None)
        _set_field(call, self._deadline, None if timeout_s is None else started_at + timeout_s)
        _set_field(call, self._task, None)
        _set_field(call, self._named, None)
        _set_field(call, self._ask_client, None)
        return call


cdef _ServerCallFields _server_call_fields = None


cdef inline _ServerCallFields _of_server_calls():
    global _server_call_fields
    if _server_call_fields is None:
        _server_call_fields = _ServerCallFields()
    return _server_call_fields


def new_call(connection, stream, head, method):
    """See `gateway.transports.grpc.server_call.new_call`."""
    cdef _ServerCallFields of = _of_server_calls()
    return of._new(connection, stream, head, method)


@cython.binding(True)
def on_complete_stream(self, stream, head, view, tail):
    """See `gateway.transports.grpc.server_connection.GrpcServerConnection.on_complete_stream`."""
    cdef _ServerCallFields of = _of_server_calls()
    if (
        type(head) is not of._head_class
        or type(stream) is not _of_streams()._stream
        or not PyObject_TypeCheck(self, <PyTypeObject*><void*>of._connection_class)
    ):
        return _python_version("on_complete_stream")(self, stream, head, view, tail)
    method = _field(self, of._methods).get(_field(head, of._path))
    if (
        method is None
        or _field(head, of._oversized)
        or _field(head, of._http_status) != 200
        or _field(head, of._length) is not None
    ):
        return _python_version("on_complete_stream")(self, stream, head, view, tail)
    call = of._new(self, stream, head, method)
    _set_field(stream, of._owner, call)
    if _field(call, of._deadline) is None and method.is_unary:
        message = whole_message(view, method.limits.message_bytes)
        if message is not None:
            call._run(call._unary(message, None))
            return
    call.on_complete_stream(view)


cdef object _sender(caller, fields):
    """Return the client that sent *fields*; as `gateway.transports.callers.Caller.client`."""
    cdef _CallerFields of = _of_callers()
    if type(caller) is not of._caller:
        return caller.last if caller.fields is fields else caller.client(fields)
    last = _field(caller, of._last)
    if fields is _field(caller, of._fields):
        return last
    if type(fields) is not tuple or type(last) is not of._client:
        return caller.client(fields)
    if first_value(fields, "user-agent") != _field(last, of._agent):
        return caller.client(fields)
    _set_field(caller, of._fields, fields)
    return last


cdef class _CallerFields:
    """Where callers and clients have their fields."""

    cdef object _caller, _client
    cdef Py_ssize_t _fields, _last, _agent

    def __cinit__(self):
        from gateway.ir.context import Client
        from gateway.transports.callers import Caller

        self._caller, self._client = Caller, Client
        self._fields, self._last = _offset(Caller, "fields"), _offset(Caller, "last")
        self._agent = _offset(Client, "agent")


cdef _CallerFields _caller_fields = None


cdef inline _CallerFields _of_callers():
    global _caller_fields
    if _caller_fields is None:
        _caller_fields = _CallerFields()
    return _caller_fields


@cython.binding(True)
def _wire_request(self, view, message):
    """See `gateway.transports.grpc.server_call.ServerCall._wire_request`."""
    cdef _ServerCallFields of = _of_server_calls()
    if message is not None or not PyObject_TypeCheck(self, <PyTypeObject*><void*>of._call):
        return _python_version("_wire_request")(self, view, message)
    head, connection = _field(self, of._head), _field(self, of._connection)
    if type(head) is not of._head_class or not PyObject_TypeCheck(
        connection, <PyTypeObject*><void*>of._connection_class
    ):
        return _python_version("_wire_request")(self, view, message)
    shares = _field(connection, of._client)
    if type(shares) is not of._shares:
        return _python_version("_wire_request")(self, view, message)
    metadata = _field(head, of._metadata)
    client = _field(self, of._named)
    if client is None:
        client = _sender(_field(shares, of._caller), metadata)
    request = _copy_of(of._request)
    _set_field(request, of._of_method, _field(self, of._method).path)
    _set_field(request, of._message, (view,))
    _set_field(request, of._of_metadata, metadata)
    _set_field(request, of._of_deadline, _field(self, of._deadline))
    _set_field(request, of._of_client, client)
    return request
