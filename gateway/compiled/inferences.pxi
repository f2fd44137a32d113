# Inferences between their messages and calls: protocols/oip/http/infer_request.py, protocols/oip/grpc/infer.py.

cdef class _RequestDecoder:
    """Makes calls of requests over HTTP; what is unusual, *python* does."""

    cdef object _python, _parse, _read, _learn, _fields_of, _like, _context_like, _origin_like
    cdef object _wire, _headers, _plain_parameters, _fields_like, _length_key
    cdef Py_ssize_t _headers_at, _body, _rest, _deadline, _client, _cached
    cdef Py_ssize_t _fields_metadata, _fields_id, _fields_length
    cdef Py_ssize_t _parsed_parameters, _parsed_outputs, _parsed_form, _parsed_unknown, _origin_unknown
    cdef Py_ssize_t _model, _context, _inputs, _outputs, _id, _sequence, _priority, _timeout, _parameters
    cdef Py_ssize_t _metadata, _request_id, _call_deadline, _origin, _call_client
    cdef Py_ssize_t _origin_wire, _origin_form, _has_bytes

    def __cinit__(self, parse, read, learn, python):
        from gateway.ir.calls import InferRequest
        from gateway.ir.context import Context, Origin
        from gateway.protocols.oip.http import infer_request
        from gateway.protocols.oip.http.context import NAME, NEEDS
        from gateway.protocols.oip.parameters import NO_REQUEST_PARAMETERS
        from gateway.wire.http import Headers, HttpRequest

        parsed, fields = infer_request.ParsedRequest, infer_request.HeaderFields
        self._python = python(parse, read, learn)
        self._parse, self._read, self._learn = parse, read, learn
        self._fields_of, self._plain_parameters = infer_request.fields_of, NO_REQUEST_PARAMETERS
        self._fields_like, self._length_key = fields((), "", None), infer_request.LENGTH_KEY
        self._origin_like = Origin(NAME, None)
        self._context_like = Context(NAME, needs=NEEDS)
        self._like = InferRequest(parameters=NO_REQUEST_PARAMETERS.custom)
        self._wire, self._headers = HttpRequest, Headers
        self._headers_at, self._body = _offset(HttpRequest, "headers"), _offset(HttpRequest, "body")
        self._rest, self._deadline = _offset(HttpRequest, "body_stream"), _offset(HttpRequest, "deadline")
        self._client, self._cached = _offset(HttpRequest, "client"), _offset(Headers, "_read")
        self._fields_metadata, self._fields_id = _offset(fields, "metadata"), _offset(fields, "request_id")
        self._fields_length = _offset(fields, "json_bytes")
        self._parsed_parameters, self._parsed_form = _offset(parsed, "parameters"), _offset(parsed, "form")
        self._parsed_outputs = _offset(parsed, "outputs")
        self._parsed_unknown, self._origin_unknown = _offset(parsed, "unknown"), _offset(Origin, "unknown")
        self._model, self._context = _offset(InferRequest, "model"), _offset(InferRequest, "context")
        self._inputs, self._outputs = _offset(InferRequest, "inputs"), _offset(InferRequest, "outputs")
        self._id, self._sequence = _offset(InferRequest, "id"), _offset(InferRequest, "sequence")
        self._priority, self._timeout = _offset(InferRequest, "priority"), _offset(InferRequest, "timeout_us")
        self._parameters, self._metadata = _offset(InferRequest, "parameters"), _offset(Context, "metadata")
        self._request_id, self._call_deadline = _offset(Context, "request_id"), _offset(Context, "deadline")
        self._origin, self._call_client = _offset(Context, "origin"), _offset(Context, "client")
        self._origin_wire, self._origin_form = _offset(Origin, "wire"), _offset(Origin, "form")
        self._has_bytes = _offset(Origin, "has_bytes")

    def decode(self, model, wire, request_id):
        cdef Py_ssize_t end
        cdef tuple found
        cdef object length, has_bytes
        if type(wire) is not self._wire or _field(wire, self._rest) is not None:
            return self._python(model, wire, request_id)
        parts, headers = _field(wire, self._body), _field(wire, self._headers_at)
        if type(parts) is not tuple or len(<tuple>parts) != 1 or type((<tuple>parts)[0]) is not memoryview:
            return self._python(model, wire, request_id)
        body = (<tuple>parts)[0]
        fields = self._fields(headers)
        length = _field(fields, self._fields_length)
        end = PyObject_Size(body)
        if length is not None:
            if not length or length > end:
                return self._python(model, wire, request_id)
            end = length
        found = self._parse(body, end)
        has_bytes = True
        read = found[0]
        if read is None:
            key = found[1]
            read, has_bytes = self._read(model, body, length)
            if key is not None:
                self._learn(key, body, end, read)
        return self._call(model, wire, fields, <tuple>read, request_id, has_bytes)

    cdef object _fields(self, headers):
        """Return the parsed fields of a request; see `fields_of`."""
        cdef tuple cached, sent
        if PyObject_TypeCheck(headers, <PyTypeObject*><void*>self._headers):
            cached = _field(headers, self._cached)
            if cached[0] is self._fields_of:
                return cached[1]
            places = _of_headers()._places(headers)
            if places is not None and PyDict_GetItem(places, self._length_key) is NULL:
                sent = <tuple>sender_metadata(headers)
                fields = _copy_of(self._fields_like)
                _set_field(fields, self._fields_metadata, sent[0])
                _set_field(fields, self._fields_id, sent[1])
                _set_field(headers, self._cached, (self._fields_of, fields))
                return fields
        return headers.parsed_with(self._fields_of)

    cdef object _call(self, model, wire, fields, tuple read, request_id, has_bytes):
        """Return the call of a request."""
        parsed = read[0]
        parameters = _field(parsed, self._parsed_parameters)
        origin = _copy_of(self._origin_like)
        _set_field(origin, self._origin_wire, wire)
        _set_field(origin, self._origin_form, _field(parsed, self._parsed_form))
        _set_field(origin, self._has_bytes, has_bytes)
        _set_field(origin, self._origin_unknown, _field(parsed, self._parsed_unknown))
        context = _copy_of(self._context_like)
        own_id = _field(fields, self._fields_id)
        _set_field(context, self._metadata, _field(fields, self._fields_metadata))
        _set_field(context, self._request_id, own_id if own_id else request_id)
        _set_field(context, self._call_deadline, _field(wire, self._deadline))
        _set_field(context, self._origin, origin)
        _set_field(context, self._call_client, _field(wire, self._client))
        call = _copy_of(self._like)
        _set_field(call, self._model, model)
        _set_field(call, self._context, context)
        _set_field(call, self._inputs, read[2])
        _set_field(call, self._outputs, _field(parsed, self._parsed_outputs))
        _set_field(call, self._id, read[1])
        if parameters is not self._plain_parameters:
            _set_field(call, self._sequence, parameters.sequence)
            _set_field(call, self._priority, parameters.priority)
            _set_field(call, self._timeout, parameters.timeout_us)
            _set_field(call, self._parameters, parameters.custom)
        return call


def request_decoder(parse, read, learn):
    """See `gateway.protocols.oip.http.infer_request.request_decoder`."""
    return _RequestDecoder(parse, read, learn, _python_version("request_decoder")).decode


cdef class _ReplyReader:
    """Reads replies of gRPC that have nothing but tensors."""

    cdef object _read, _like, _origin_like, _call, _wire, _status
    cdef Py_ssize_t _call_id, _call_outputs, _message, _wire_status, _message_model, _message_parameters
    cdef Py_ssize_t _name, _model, _outputs, _id, _origin, _origin_wire

    def __cinit__(self, read, like):
        from gateway.ir.calls import InferRequest, InferResponse
        from gateway.ir.context import ModelRef, Origin
        from gateway.protocols.oip.grpc.context import NAME
        from gateway.protocols.oip.grpc.scan import InferMessage
        from gateway.wire.grpc import GrpcResponse, GrpcStatus

        self._read, self._like, self._origin_like = read, like, Origin(NAME, None)
        self._call, self._wire, self._status = InferRequest, GrpcResponse, GrpcStatus.OK
        self._call_id, self._call_outputs = _offset(InferRequest, "id"), _offset(InferRequest, "outputs")
        self._message, self._wire_status = _offset(GrpcResponse, "message"), _offset(GrpcResponse, "status")
        self._message_model = _offset(InferMessage, "model")
        self._message_parameters = _offset(InferMessage, "parameters")
        self._name, self._model = _offset(ModelRef, "name"), _offset(InferResponse, "model")
        self._outputs, self._id = _offset(InferResponse, "outputs"), _offset(InferResponse, "id")
        self._origin, self._origin_wire = _offset(InferResponse, "origin"), _offset(Origin, "wire")

    def read(self, call, wire):
        cdef tuple found
        if (
            type(call) is not self._call
            or type(wire) is not self._wire
            or _field(wire, self._wire_status) is not self._status
            or _field(call, self._call_outputs)
        ):
            return None
        parts = _field(wire, self._message)
        if type(parts) is not tuple or len(<tuple>parts) != 1 or type((<tuple>parts)[0]) is not memoryview:
            return None
        plain = self._read((<tuple>parts)[0])
        if plain is None:
            return None
        found = <tuple>plain
        model = _field(found[0], self._message_model)
        own_id = _field(call, self._call_id)
        if _field(found[0], self._message_parameters) or not _field(model, self._name):
            return None
        if found[1] and own_id and found[1] != own_id:
            return None
        origin = _copy_of(self._origin_like)
        _set_field(origin, self._origin_wire, wire)
        reply = _copy_of(self._like)
        _set_field(reply, self._model, model)
        _set_field(reply, self._outputs, found[2])
        _set_field(reply, self._id, own_id)
        _set_field(reply, self._origin, origin)
        return reply


def reply_reader(read, like):
    """See `gateway.protocols.oip.grpc.infer.reply_reader`."""
    return _ReplyReader(read, like).read


cdef class _CallWriter:
    """Writes calls as requests of gRPC that have nothing but tensors."""

    cdef object _write, _like, _call, _id_name
    cdef Py_ssize_t _model, _version, _context, _inputs, _outputs, _id, _sequence, _priority, _timeout, _parameters
    cdef Py_ssize_t _metadata, _request_id, _deadline, _message, _wire_metadata, _wire_deadline, _origin, _unknown

    def __cinit__(self, write, method):
        from gateway.ir.calls import InferRequest
        from gateway.ir.context import REQUEST_ID, Context, ModelRef, Origin
        from gateway.wire.grpc import GrpcRequest

        self._write, self._like, self._call, self._id_name = write, GrpcRequest(method), InferRequest, REQUEST_ID
        self._model, self._version = _offset(InferRequest, "model"), _offset(ModelRef, "version")
        self._context, self._inputs = _offset(InferRequest, "context"), _offset(InferRequest, "inputs")
        self._outputs, self._id = _offset(InferRequest, "outputs"), _offset(InferRequest, "id")
        self._sequence, self._priority = _offset(InferRequest, "sequence"), _offset(InferRequest, "priority")
        self._timeout, self._parameters = _offset(InferRequest, "timeout_us"), _offset(InferRequest, "parameters")
        self._metadata, self._request_id = _offset(Context, "metadata"), _offset(Context, "request_id")
        self._deadline, self._message = _offset(Context, "deadline"), _offset(GrpcRequest, "message")
        self._wire_metadata = _offset(GrpcRequest, "metadata")
        self._wire_deadline = _offset(GrpcRequest, "deadline")
        self._origin, self._unknown = _offset(Context, "origin"), _offset(Origin, "unknown")

    def write(self, call):
        if type(call) is not self._call:
            return None
        model = _field(call, self._model)
        if (
            model is None
            or _field(call, self._parameters)
            or _field(call, self._sequence) is not None
            or _field(call, self._priority)
            or _field(call, self._timeout) is not None
        ):
            return None
        version = _field(model, self._version)
        if version and not (version.isascii() and version.isdecimal()):
            return None
        context = _field(call, self._context)
        origin = _field(context, self._origin)
        if origin is not None and _field(origin, self._unknown):
            return None
        message = self._write(
            model, _field(call, self._id), _field(call, self._inputs), _field(call, self._outputs)
        )
        if message is None:
            return None
        pairs, request_id = _field(context, self._metadata), _field(context, self._request_id)
        wire = _copy_of(self._like)
        _set_field(wire, self._message, message)
        if pairs:
            _set_field(wire, self._wire_metadata, metadata_with_id(pairs, request_id))
        elif request_id:
            _set_field(wire, self._wire_metadata, ((self._id_name, request_id),))
        _set_field(wire, self._wire_deadline, _field(context, self._deadline))
        return wire


def call_writer(write, method):
    """See `gateway.protocols.oip.grpc.infer.call_writer`."""
    return _CallWriter(write, method).write


cdef class _PlainCallFields:
    """Where requests of gRPC and their calls have their fields."""

    cdef object _like, _context_like, _origin_like
    cdef Py_ssize_t _wire_metadata, _wire_deadline, _wire_client, _message_model, _columns
    cdef Py_ssize_t _model, _context, _inputs, _id
    cdef Py_ssize_t _metadata, _request_id, _deadline, _origin, _client, _origin_wire, _has_bytes

    def __cinit__(self):
        from gateway.ir.calls import InferRequest
        from gateway.ir.context import Context, Origin
        from gateway.protocols.oip.grpc.context import NAME, NEEDS
        from gateway.protocols.oip.grpc.scan import InferMessage
        from gateway.wire.grpc import GrpcRequest

        self._like, self._context_like = InferRequest(), Context(NAME, needs=NEEDS)
        self._origin_like = Origin(NAME, None)
        self._wire_metadata, self._wire_deadline = _offset(GrpcRequest, "metadata"), _offset(GrpcRequest, "deadline")
        self._wire_client, self._message_model = _offset(GrpcRequest, "client"), _offset(InferMessage, "model")
        self._columns, self._model = _offset(InferMessage, "columns"), _offset(InferRequest, "model")
        self._context, self._inputs = _offset(InferRequest, "context"), _offset(InferRequest, "inputs")
        self._id, self._metadata = _offset(InferRequest, "id"), _offset(Context, "metadata")
        self._request_id, self._deadline = _offset(Context, "request_id"), _offset(Context, "deadline")
        self._origin, self._client = _offset(Context, "origin"), _offset(Context, "client")
        self._origin_wire, self._has_bytes = _offset(Origin, "wire"), _offset(Origin, "has_bytes")


cdef _PlainCallFields _plain_call_fields = None


def plain_call(wire, tuple read not None, spare_id):
    """See `gateway.protocols.oip.grpc.infer.plain_call`."""
    global _plain_call_fields
    if _plain_call_fields is None:
        _plain_call_fields = _PlainCallFields()
    cdef _PlainCallFields at = _plain_call_fields
    message = read[0]
    origin, context, call = _copy_of(at._origin_like), _copy_of(at._context_like), _copy_of(at._like)
    _set_field(origin, at._origin_wire, wire)
    _set_field(origin, at._has_bytes, _field(message, at._columns) is not None)
    metadata, request_id = _field(wire, at._wire_metadata), spare_id
    if metadata:
        texts, found = texts_and_id(metadata)
        _set_field(context, at._metadata, texts)
        request_id = found or spare_id
    _set_field(context, at._request_id, request_id)
    _set_field(context, at._deadline, _field(wire, at._wire_deadline))
    _set_field(context, at._origin, origin)
    _set_field(context, at._client, _field(wire, at._wire_client))
    _set_field(call, at._model, _field(message, at._message_model))
    _set_field(call, at._context, context)
    _set_field(call, at._inputs, read[2])
    _set_field(call, at._id, read[1])
    return call
