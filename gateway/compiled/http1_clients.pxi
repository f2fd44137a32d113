# Requests to servers of HTTP/1, and their responses: transports/http1/client.py, client_connection.py.

cdef extern from "Python.h":
    int PySet_Add(object items, object key) except -1
    int PySet_Discard(object items, object key) except -1

cdef enum:
    _ONE_BUFFER = 65536  # `_JOIN_BYTES` of transports/http1/client.py
    _UNSAMPLED = 7  # `_SAMPLED` of transports/http1/response_reader.py

cdef double _UNSEEN_S = 0.01  # `UNSEEN_S` of transports/net/sockets.py
cdef double _LEAST_COARSE_S = 1.0  # `_COARSE_FROM_S` of transports/http/timeout_headers.py
cdef double _MOST_COARSE_S = 1e6
cdef bytes _TIMEOUT = b"grpc-timeout: "


cdef inline bint _is_ascii(text) noexcept:
    return PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text)


cdef class _RequestWriter:
    """Where requests have their fields, the timeout and the size of the body that were written last."""

    cdef object _request, _coarse_timeout, _last_timeout
    cdef frozenset _with_body
    cdef int64_t _last_count
    cdef Py_ssize_t _method, _path, _query, _headers, _body, _rest, _request_id, _size

    def __cinit__(self):
        from gateway.transports.http.timeout_headers import coarse_timeout
        from gateway.transports.http1 import client
        from gateway.wire.http import HttpRequest

        self._request = HttpRequest
        self._coarse_timeout, self._last_count, self._last_timeout = coarse_timeout, -1, ""
        self._with_body = client._WITH_BODY
        self._method, self._path = _offset(HttpRequest, "method"), _offset(HttpRequest, "path")
        self._query, self._headers = _offset(HttpRequest, "query"), _offset(HttpRequest, "headers")
        self._body, self._rest = _offset(HttpRequest, "body"), _offset(HttpRequest, "body_stream")
        self._request_id = _offset(HttpRequest, "request_id")

    cdef object _timeout_of(self, double left_s):
        cdef int64_t count
        if not _LEAST_COARSE_S <= left_s < _MOST_COARSE_S:
            return self._coarse_timeout(left_s)
        count = <int64_t>(left_s * 100)
        if count != self._last_count:
            self._last_timeout, self._last_count = self._coarse_timeout(left_s), count
        return self._last_timeout

    cdef bytes _text(self, wire, prefix, line_end, bint has_timeout, double left_s):
        """Return a complete request, of a large one the head; None for what Python writes."""
        cdef Py_ssize_t size, id_size
        cdef Py_ssize_t total = 3  # a blank, and the empty line
        cdef bint has_length
        cdef char digits[_WIDEST]
        cdef char* digit = digits + _WIDEST
        cdef Py_ssize_t rest
        cdef bytes joined
        cdef char* out
        if type(wire) is not self._request or _field(wire, self._rest) is not None:
            return None
        body = _field(wire, self._body)
        if type(body) is tuple and len(<tuple>body) == 1:
            size = PyObject_Size((<tuple>body)[0])
        else:
            size = 0
            for each in body:
                size += PyObject_Size(each)
        self._size = size
        method, path, query = _field(wire, self._method), _field(wire, self._path), _field(wire, self._query)
        request_id, lines = _field(wire, self._request_id), lines_of(_field(wire, self._headers))
        if not (
            _is_ascii(method)
            and _is_ascii(prefix)
            and _is_ascii(path)
            and _is_ascii(query)
            and _is_ascii(line_end)
            and _is_ascii(lines)
            and _is_ascii(request_id)
        ):
            return None
        id_size = PyUnicode_GET_LENGTH(request_id)
        total += PyUnicode_GET_LENGTH(method) + PyUnicode_GET_LENGTH(prefix) + PyUnicode_GET_LENGTH(path)
        total += PyUnicode_GET_LENGTH(query) + PyUnicode_GET_LENGTH(line_end)
        total += PyUnicode_GET_LENGTH(lines) + id_size
        if id_size:
            if not _is_printable(PyUnicode_1BYTE_DATA(request_id), id_size):
                return None
            total += PyBytes_GET_SIZE(_REQUEST_ID) + 2
        has_query = PyUnicode_GET_LENGTH(query) > 0
        total += has_query
        if has_timeout:
            timeout = self._timeout_of(left_s)
            total += PyBytes_GET_SIZE(_TIMEOUT) + PyUnicode_GET_LENGTH(timeout) + 2
        has_length = size > 0 or method in self._with_body
        if has_length:
            rest = size
            while True:
                digit -= 1
                digit[0] = <char>(c"0" + rest % 10)
                rest //= 10
                if not rest:
                    break
            total += PyBytes_GET_SIZE(_LENGTH) + (digits + _WIDEST - digit) + 2
        joined = PyBytes_FromStringAndSize(NULL, total if size > _ONE_BUFFER else total + size)
        out = _put_ascii(PyBytes_AS_STRING(joined), method)
        out[0] = c" "
        out = _put_ascii(_put_ascii(out + 1, prefix), path)
        if has_query:
            out[0] = c"?"
            out = _put_ascii(out + 1, query)
        out = _put_ascii(_put_ascii(out, line_end), lines)
        if id_size:
            out = _put(_put_ascii(_put(out, _REQUEST_ID), request_id), _LINE_END)
        if has_timeout:
            out = _put(_put_ascii(_put(out, _TIMEOUT), timeout), _LINE_END)
        if has_length:
            out = _put(_put_text(_put(out, _LENGTH), digit, digits + _WIDEST - digit), _LINE_END)
        out = _put(out, _LINE_END)
        if size <= _ONE_BUFFER:
            _put_content(out, body, size)
        return joined

    cdef tuple _buffers(self, wire, bytes text):
        """Return the buffers of the request that `_text` has written."""
        return (text, *_field(wire, self._body)) if self._size > _ONE_BUFFER else (text,)


cdef _RequestWriter _request_writer = None


cdef inline _RequestWriter _of_requests():
    global _request_writer
    if _request_writer is None:
        _request_writer = _RequestWriter()
    return _request_writer


def request_buffers(wire, prefix, line_end, left_s):
    """See `gateway.transports.http1.client.request_buffers`."""
    cdef double seconds = 0.0 if left_s is None else left_s
    cdef _RequestWriter writer = _of_requests()
    text = writer._text(wire, prefix, line_end, left_s is not None, seconds)
    if text is None:
        return _python_version("request_buffers")(wire, prefix, line_end, left_s)
    return writer._buffers(wire, text)


cdef class _ClientFields:
    """Where clients, their connections, caches of heads and responses have their fields."""

    cdef object _pool, _connection, _heads_class, _head_class, _response_class
    cdef Py_ssize_t _idle, _peer, _limits, _slots, _wheel, _prefix, _line_end, _is_closed, _pruning
    cdef Py_ssize_t _is_usable, _created_at, _last_used_at, _uses, _is_awaiting, _method, _waiter, _loop
    cdef Py_ssize_t _transport, _response, _failure, _growing, _pending, _rest, _paused, _heads, _buffer
    cdef Py_ssize_t _unsampled, _get, _recognise, _head_status, _head_headers, _plain
    cdef Py_ssize_t _status, _headers, _body, _is_compressible, _request_id, _age

    def __cinit__(self):
        from gateway.transports.contract import ClientLimits
        from gateway.transports.http1.client import HttpClient
        from gateway.transports.http1.client_connection import Http1ClientConnection
        from gateway.transports.http1.response_reader import ResponseHead, ResponseHeadCache
        from gateway.wire.http import HttpResponse

        pool, one = HttpClient, Http1ClientConnection
        self._pool, self._connection = pool, one
        self._heads_class, self._head_class = ResponseHeadCache, ResponseHead
        self._response_class = HttpResponse
        self._idle, self._peer, self._limits = _offset(pool, "_idle"), _offset(pool, "_peer"), _offset(pool, "_limits")
        self._slots, self._wheel = _offset(pool, "_slots"), _offset(pool, "_wheel")
        self._prefix, self._line_end = _offset(pool, "_prefix"), _offset(pool, "_line_end")
        self._is_closed, self._pruning = _offset(pool, "_is_closed"), _offset(pool, "_pruning")
        self._age = _offset(ClientLimits, "connection_age_s")
        self._is_usable, self._created_at = _offset(one, "is_usable"), _offset(one, "created_at")
        self._last_used_at, self._uses = _offset(one, "last_used_at"), _offset(one, "uses")
        self._is_awaiting, self._method = _offset(one, "is_awaiting"), _offset(one, "_method")
        self._waiter, self._loop = _offset(one, "_waiter"), _offset(one, "loop")
        self._transport, self._response = _offset(one, "transport"), _offset(one, "response")
        self._failure, self._growing = _offset(one, "failure"), _offset(one, "_growing")
        self._pending, self._rest = _offset(one, "_pending"), _offset(one, "_rest")
        self._paused, self._heads = _offset(one, "_paused"), _offset(one, "_heads")
        self._buffer = _offset(one, "_buffer")
        self._unsampled, self._get = _offset(ResponseHeadCache, "_unsampled"), _offset(ResponseHeadCache, "get")
        self._recognise = _offset(ResponseHeadCache, "recognise")
        self._head_status, self._head_headers = _offset(ResponseHead, "status"), _offset(ResponseHead, "headers")
        self._plain = _offset(ResponseHead, "plain")
        self._status, self._headers = _offset(HttpResponse, "status"), _offset(HttpResponse, "headers")
        self._body, self._request_id = _offset(HttpResponse, "body"), _offset(HttpResponse, "request_id")
        self._is_compressible = _offset(HttpResponse, "is_compressible")

    cdef bint _is_fresh(self, pool, connection, double now) except -1:
        """Return whether a connection may be used; as `HttpClient._is_fresh`."""
        cdef double idle_s = now - <double>_field(connection, self._last_used_at)
        return (
            _field(connection, self._is_usable)
            and idle_s <= <double>_field(pool, self._peer).reuse_s
            and now - <double>_field(connection, self._created_at) <= <double>_field(_field(pool, self._limits), self._age)
            and (idle_s < _UNSEEN_S or not connection.has_ended())
        )

    cdef object _head_of(self, heads, Text text, Py_ssize_t end):
        """Return the head of a response that is known or recognised; None for another one."""
        cdef Py_ssize_t unsampled = _field(heads, self._unsampled)
        cdef _HeadRecogniser recogniser = _recogniser_of(_field(heads, self._recognise))
        if unsampled:
            _set_field(heads, self._unsampled, unsampled - 1)
            if recogniser is not None:
                return recogniser._known(text, end)
        raw = PyBytes_FromStringAndSize(<const char*>text, end)
        head = None if unsampled else _field(heads, self._get)(raw)
        if head is None:
            head = (<tuple>_field(heads, self._recognise)(raw, 0, end))[0]
            if head is not None and not unsampled:
                _set_field(heads, self._unsampled, _UNSAMPLED)
        return head

    cdef object _complete(self, heads, Text text, Py_ssize_t size):
        """Return a plain response; None for another one. As `ResponseHeadCache.complete_response`."""
        cdef Py_ssize_t end = _head_end(text, size)
        if not end:
            return None
        head = self._head_of(heads, text, end)
        if head is None or <Py_ssize_t>_field(head, self._plain) != size - end:
            return None
        body = memoryview(PyBytes_FromStringAndSize(<const char*>text + end, size - end))
        response = PyType_GenericAlloc(<PyTypeObject*><void*>self._response_class, 0)
        _set_field(response, self._status, _field(head, self._head_status))
        _set_field(response, self._headers, _field(head, self._head_headers))
        _set_field(response, self._body, (body,))
        _set_field(response, self._is_compressible, False)
        _set_field(response, self._request_id, "")
        return response


cdef _ClientFields _client_fields = None


cdef inline _ClientFields _of_clients():
    global _client_fields
    if _client_fields is None:
        _client_fields = _ClientFields()
    return _client_fields


@cython.binding(True)
def _send_at_once(self, wire, deadline):
    """See `gateway.transports.http1.client.HttpClient._send_at_once`."""
    cdef _ClientFields of = _of_clients()
    cdef double now, when = 0.0
    cdef list idle
    cdef Py_ssize_t last
    if not PyObject_TypeCheck(self, <PyTypeObject*><void*>of._pool):
        raise TypeError(f"expected a pool of connections, found {type(self)}")
    idle = <list?>_field(self, of._idle)
    last = len(idle) - 1
    if last < 0 or type(idle[last]) is not of._connection:
        return _python_version("_send_at_once")(self, wire, deadline)
    now = _time.monotonic()
    if deadline is not None:
        when = deadline
        if when <= now:
            raise _field(self, of._peer).late()
    connection = idle[last]
    if not of._is_fresh(self, connection, now):
        return None
    cdef _RequestWriter writer = _of_requests()
    text = writer._text(
        wire, _field(self, of._prefix), _field(self, of._line_end), deadline is not None, when - now
    )
    if text is None:
        return _python_version("_send_at_once")(self, wire, deadline)
    if not try_acquire(_field(self, of._slots)):
        return None
    idle.pop()
    step = None
    try:
        if deadline is not None:
            step = _of_timeouts()._step_of(_field(self, of._wheel), deadline)
            PySet_Add(step, connection)
        _set_field(connection, of._uses, <Py_ssize_t>_field(connection, of._uses) + 1)
        _set_field(connection, of._is_awaiting, True)
        _set_field(connection, of._method, wire.method)
        waiter = _field(connection, of._loop).create_future()
        _set_field(connection, of._waiter, waiter)
        transport = _field(connection, of._transport)
        if writer._size > _ONE_BUFFER:
            transport.writelines(writer._buffers(wire, text))
        else:
            transport.write(text)
        if transport.is_closing():
            connection.note_unsent()
    except BaseException:
        self._end_exchange(connection, step)
        raise
    return connection, waiter, step


@cython.binding(True)
def _end_exchange(self, connection, step):
    """See `gateway.transports.http1.client.HttpClient._end_exchange`."""
    cdef _ClientFields of = _of_clients()
    if (
        type(connection) is not of._connection
        or not PyObject_TypeCheck(self, <PyTypeObject*><void*>of._pool)
        or _field(self, of._is_closed)
        or _field(self, of._pruning) is None
        or _field(connection, of._response) is not None
        or _field(connection, of._is_awaiting)
        or _field(connection, of._growing) is not None
        or _field(connection, of._pending)
        or _field(connection, of._rest) is not None
        or not _field(connection, of._is_usable)
        or _field(connection, of._paused)
    ):
        _python_version("_end_exchange")(self, connection, step)
        return
    if step is not None:
        PySet_Discard(step, connection)
    _set_field(connection, of._waiter, None)
    _set_field(connection, of._failure, None)
    _set_field(connection, of._last_used_at, _time.monotonic())
    (<list?>_field(self, of._idle)).append(connection)
    release(_field(self, of._slots))


@cython.binding(True)
def buffer_updated(self, Py_ssize_t nbytes):
    """See `gateway.transports.http1.client_connection.Http1ClientConnection.buffer_updated`."""
    cdef _ClientFields of = _of_clients()
    cdef Py_buffer raw
    if not PyObject_TypeCheck(self, <PyTypeObject*><void*>of._connection):
        raise TypeError(f"expected a connection of a client, found {type(self)}")
    heads = _field(self, of._heads)
    if (
        _field(self, of._response) is not None
        or not _field(self, of._is_awaiting)
        or type(heads) is not of._heads_class
        or _field(self, of._method) == "HEAD"
    ):
        return _python_version("buffer_updated")(self, nbytes)
    PyObject_GetBuffer(_field(self, of._buffer), &raw, PyBUF_SIMPLE)
    try:
        if not 0 <= nbytes <= raw.len:
            return _python_version("buffer_updated")(self, nbytes)
        response = of._complete(heads, <Text>raw.buf, nbytes)
        if response is None:
            data = PyBytes_FromStringAndSize(<const char*>raw.buf, nbytes)
    finally:
        PyBuffer_Release(&raw)
    if response is None:
        self._begin_response(data)
        return
    _set_field(self, of._is_awaiting, False)
    waiter = _field(self, of._waiter)
    if waiter is not None and not waiter.done():
        waiter.set_result(response)
