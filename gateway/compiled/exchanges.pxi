# Requests of HTTP that have arrived: transports/http/exchange.py.

import time as _time


cdef enum:
    _MAX_AGENT = 256  # `_MAX_AGENT` of transports/callers.py


cdef class _ExchangeFields:
    """Where exchanges, and what they ask, have their fields."""

    cdef object _exchange, _buffered, _request, _empty, _caller, _client, _state, _shares, _head_class
    cdef Py_ssize_t _listener, _incoming, _connection, _head, _frontend, _handle, _deadline, _body, _held
    cdef Py_ssize_t _reservation
    cdef Py_ssize_t _limits, _budget, _slots, _handler_of
    cdef Py_ssize_t _raw_head, _checked, _here
    cdef Py_ssize_t _method, _path, _query, _headers, _length, _is_chunked, _has_coding, _timeout
    cdef Py_ssize_t _client_slots, _memory, _caller_at, _fields, _last, _address, _agent

    def __cinit__(self):
        from gateway.ir.context import Client
        from gateway.transports.client_shares import ClientShares
        from gateway.transports.callers import Caller
        from gateway.transports.http.exchange import Exchange
        from gateway.transports.http.interfaces import ListenerState
        from gateway.transports.http.request_body import EMPTY
        from gateway.transports.http.request_head import Head
        from gateway.transports.http1.head_reader import RequestHead
        from gateway.transports.http1.request import BufferedRequest
        from gateway.wire.http import HttpRequest

        self._exchange, self._buffered, self._request, self._empty = Exchange, BufferedRequest, HttpRequest, EMPTY
        self._caller, self._state, self._shares, self._head_class = Caller, ListenerState, ClientShares, Head
        self._listener, self._incoming = _offset(Exchange, "_listener"), _offset(Exchange, "_incoming")
        self._connection, self._head = _offset(Exchange, "_connection"), _offset(Exchange, "_head")
        self._frontend, self._handle = _offset(Exchange, "_frontend"), _offset(Exchange, "_handle")
        self._deadline, self._body = _offset(Exchange, "_deadline"), _offset(Exchange, "_body")
        self._held, self._reservation = _offset(Exchange, "_held"), _offset(Exchange, "_reservation")
        self._limits, self._budget = _offset(ListenerState, "limits"), _offset(ListenerState, "budget")
        self._slots, self._handler_of = _offset(ListenerState, "slots"), _offset(ListenerState, "handler_of")
        self._raw_head, self._here = _offset(BufferedRequest, "_head"), _offset(BufferedRequest, "buffered_body")
        self._checked = _offset(RequestHead, "checked")
        self._method, self._path = _offset(Head, "method"), _offset(Head, "path")
        self._query, self._headers = _offset(Head, "query"), _offset(Head, "headers")
        self._length, self._is_chunked = _offset(Head, "length"), _offset(Head, "is_chunked")
        self._has_coding, self._timeout = _offset(Head, "has_content_coding"), _offset(Head, "timeout_s")
        self._client_slots, self._memory = _offset(ClientShares, "slots"), _offset(ClientShares, "memory")
        self._caller_at = _offset(ClientShares, "caller")
        self._client = Client
        self._address, self._agent = _offset(Client, "address"), _offset(Client, "agent")
        self._fields, self._last = _offset(Caller, "fields"), _offset(Caller, "last")

    cdef object _head_of(self, incoming, limits):
        """Return the head of a request; raise HttpError as `incoming.head` does."""
        if type(incoming) is self._buffered:
            checked = _field(_field(incoming, self._raw_head), self._checked)
            if checked is not None:
                return checked
        return incoming.head(limits)

    cdef object _client_of(self, caller, headers):
        """Return the client that sent *headers*; as `Caller.client`."""
        cdef _HeadersFields at = _of_headers()
        cdef PyObject* place
        if type(caller) is not self._caller:
            return caller.client(headers)
        last = _field(caller, self._last)
        if _field(caller, self._fields) is headers:
            return last
        places = at._places(headers)
        if places is None or type(last) is not self._client:
            return caller.client(headers)
        place = PyDict_GetItem(places, "user-agent")
        agent = ""
        if place is not NULL:
            agent = (<tuple>(<tuple>_field(headers, at._pairs))[<Py_ssize_t><object>place])[1]
        if agent != _field(last, self._agent):
            if PyUnicode_GET_LENGTH(agent) > _MAX_AGENT:
                return caller.client(headers)
            last = self._client(_field(last, self._address), agent)
            _set_field(caller, self._last, last)
        _set_field(caller, self._fields, headers)
        return last


cdef _ExchangeFields _exchange_fields = None


@cython.binding(True)
def _try_immediate(self):
    """See `gateway.transports.http.exchange.Exchange._try_immediate`."""
    global _exchange_fields
    if _exchange_fields is None:
        _exchange_fields = _ExchangeFields()
    cdef _ExchangeFields of = _exchange_fields
    if not PyObject_TypeCheck(self, <PyTypeObject*><void*>of._exchange):
        raise TypeError(f"expected an Exchange, found {type(self)}")
    listener, incoming = _field(self, of._listener), _field(self, of._incoming)
    client = _field(self, of._connection).client
    if type(listener) is not of._state or type(client) is not of._shares:
        return _python_version("_try_immediate")(self)
    limits = _field(listener, of._limits)
    head = of._head_of(incoming, limits)
    if type(head) is not of._head_class:
        return _python_version("_try_immediate")(self)
    _set_field(self, of._head, head)
    cdef tuple handler = <tuple?>_field(listener, of._handler_of)(_field(head, of._path))
    _set_field(self, of._frontend, handler[0])
    _set_field(self, of._handle, handler[1])
    timeout_s = _field(head, of._timeout)
    if timeout_s is not None:
        _set_field(self, of._deadline, _time.monotonic() + timeout_s)
    body, length = of._empty, _field(head, of._length)
    budget = _field(listener, of._budget)
    size = own_size = budget.call_bytes
    if length is not None:
        body = _field(incoming, of._here) if type(incoming) is of._buffered else incoming.buffered_body
        if body is None:
            return None
        if _field(self, of._reservation) is None:
            if _field(head, of._has_coding) or length > limits.message_bytes:
                return None
            size = size + length
    elif _field(head, of._is_chunked):
        return None
    if not try_acquire(budget, size, _field(client, of._memory)):
        if size == own_size:  # there are no bytes, or their memory is reserved
            _set_field(self, of._body, body)
        return None
    _set_field(self, of._held, size)
    if not try_acquire(_field(listener, of._slots), 1, _field(client, of._client_slots)):
        _set_field(self, of._body, body)
        return None
    headers = _field(head, of._headers)
    return of._request(
        _field(head, of._method),
        _field(head, of._path),
        _field(head, of._query),
        headers,
        (body,),
        _field(self, of._deadline),
        None,
        "",
        None,
        of._client_of(_field(client, of._caller_at), headers),
    )


cdef enum:
    _CACHED_HEAD = 1024  # `MAX_CACHED_BYTES` of transports/http1/head_reader.py


cdef class _RequestFields:
    """Where requests of HTTP/1 and their heads have their fields."""

    cdef object _request, _head_class, _reader
    cdef Py_ssize_t _size, _unsampled, _cache
    cdef Py_ssize_t _head, _head_cache, _method, _version, _should_close, _body, _is_complete, _reservation
    cdef Py_ssize_t _of_method, _of_version, _of_should_close, _length, _is_chunked

    def __cinit__(self):
        from gateway.transports.http1.head_reader import HeadReader, RequestHead
        from gateway.transports.http1.request import BufferedRequest

        self._request, self._head_class, self._reader = BufferedRequest, RequestHead, HeadReader
        self._size, self._unsampled = _offset(HeadReader, "size"), _offset(HeadReader, "unsampled")
        self._cache = _offset(HeadReader, "head_cache")
        self._head, self._head_cache = _offset(BufferedRequest, "_head"), _offset(BufferedRequest, "_head_cache")
        self._method, self._version = _offset(BufferedRequest, "method"), _offset(BufferedRequest, "version")
        self._should_close = _offset(BufferedRequest, "should_close")
        self._body, self._reservation = _offset(BufferedRequest, "buffered_body"), _offset(BufferedRequest, "reservation")
        self._is_complete = _offset(BufferedRequest, "is_complete")
        self._of_method, self._of_version = _offset(RequestHead, "method"), _offset(RequestHead, "version")
        self._of_should_close = _offset(RequestHead, "should_close")
        self._length, self._is_chunked = _offset(RequestHead, "length"), _offset(RequestHead, "is_chunked")

    cdef object _new(self, head, head_cache, body):
        """Return a request that is complete; as `BufferedRequest`."""
        request = PyType_GenericAlloc(<PyTypeObject*><void*>self._request, 0)
        _set_field(request, self._head, head)
        _set_field(request, self._head_cache, head_cache)
        _set_field(request, self._method, _field(head, self._of_method))
        _set_field(request, self._version, _field(head, self._of_version))
        _set_field(request, self._should_close, _field(head, self._of_should_close))
        _set_field(request, self._body, body)
        _set_field(request, self._is_complete, True)
        _set_field(request, self._reservation, None)
        return request

    cdef object _known(self, heads, cache, _HeadRecogniser recogniser, Text text, Py_ssize_t end):
        """Return a head that needs no parser; see `HeadReader.known`."""
        cdef Py_ssize_t unsampled = _field(heads, self._unsampled)
        cdef bytes raw = None
        if unsampled:
            _set_field(heads, self._unsampled, unsampled - 1)
        elif end - 4 <= _CACHED_HEAD:
            raw = PyBytes_FromStringAndSize(<const char*>text, end)
            head = cache.get(raw)
            if head is not None:
                return head
        head = recogniser._known(text, end)
        if head is None:
            _set_field(heads, self._unsampled, 0)
        elif raw is not None:
            heads.sample(raw, head)
        return head


cdef _RequestFields _request_fields = None


cdef Py_ssize_t _head_end(Text text, Py_ssize_t size) noexcept:
    """Return where a head ends, after its empty line; 0 without one."""
    cdef Text at = text
    cdef Text stop = text + size - 3
    while at < stop:
        at = <Text>memchr(at, c"\r", stop - at)
        if at is NULL:
            return 0
        if not memcmp(at, b"\r\n\r\n", 4):
            return at + 4 - text
        at += 1
    return 0


def known_request(buffer, Py_ssize_t nbytes, heads):
    """See `gateway.transports.http1.request.known_request`."""
    global _request_fields
    cdef Py_buffer raw
    cdef Text text
    cdef Py_ssize_t end
    if _request_fields is None:
        _request_fields = _RequestFields()
    cdef _RequestFields of = _request_fields
    if type(heads) is not of._reader:
        return _python_version("known_request")(buffer, nbytes, heads)
    if _field(heads, of._size):  # a part of a head has arrived before
        return None
    cache = _field(heads, of._cache)
    cdef _HeadRecogniser recogniser = _recogniser_of(cache.recognise)
    PyObject_GetBuffer(buffer, &raw, PyBUF_SIMPLE)
    try:
        if not 0 <= nbytes <= raw.len or recogniser is None:
            return _python_version("known_request")(buffer, nbytes, heads)
        text = <Text>raw.buf
        end = _head_end(text, nbytes)
        if not end:
            return None
        head = of._known(heads, cache, recogniser, text, end)
        if type(head) is not of._head_class:
            return None
        if _field(head, of._is_chunked) or end + (_field(head, of._length) or 0) != nbytes:
            return head
        body = memoryview(PyBytes_FromStringAndSize(<const char*>text + end, nbytes - end))
    finally:
        PyBuffer_Release(&raw)
    return of._new(head, cache, body)


cdef class _ResponseFields:
    """Where responses of HTTP have their fields, and the lines that the last one had."""

    cdef object _response, _headers_class, _extended_class, _written, _first_line, _date
    cdef object _status_of_first, _end_of_dated
    cdef bytes _last, _last_closed, _last_kept, _first, _dated
    cdef int64_t _second
    cdef Py_ssize_t _status, _headers, _request_id, _read, _base, _more

    def __cinit__(self):
        from gateway.transports.http import response_writer as writer
        from gateway.wire.http import ExtendedHeaders, Headers, HttpResponse

        self._response, self._headers_class, self._written = HttpResponse, Headers, writer._written
        self._extended_class = ExtendedHeaders
        self._base, self._more = _offset(ExtendedHeaders, "base"), _offset(ExtendedHeaders, "more")
        self._first_line, self._date = writer._first_line, writer._date
        self._last, self._last_closed, self._last_kept = writer._LAST, writer._LAST_CLOSED, writer._LAST_KEPT
        self._second = -1
        self._status, self._headers = _offset(HttpResponse, "status"), _offset(HttpResponse, "headers")
        self._request_id, self._read = _offset(HttpResponse, "request_id"), _offset(Headers, "_read")

    cdef bytes _first_of(self, status):
        if status is not self._status_of_first:
            self._status_of_first, self._first = status, self._first_line(status)
        return self._first

    cdef bytes _dated_end(self, bytes end):
        cdef double second = _time.time() // 1  # no duration
        if <int64_t>second != self._second or end is not self._end_of_dated:
            self._second, self._end_of_dated = <int64_t>second, end
            self._dated = <bytes>self._date(second) + end
        return self._dated

    cdef tuple _written_of(self, headers):
        cdef tuple read, base, more
        if type(headers) is self._headers_class:
            read = <tuple>_field(headers, self._read)
            if read[0] is self._written:
                return <tuple>read[1]
        elif type(headers) is self._extended_class:
            base = self._written_of(_field(headers, self._base))
            more = response_lines(_field(headers, self._more))
            return <bytes>base[0] + <bytes>more[0], base[1] or more[1]
        return headers.parsed_with(self._written)


cdef _ResponseFields _response_fields = None


def response_text(response, Py_ssize_t length, keep, version, varies=False, body=(), bytes framing=b""):
    """See `gateway.transports.http.response_writer.response_text`."""
    global _response_fields
    if _response_fields is None:
        _response_fields = _ResponseFields()
    cdef _ResponseFields of = _response_fields
    if type(response) is not of._response:
        return _python_version("response_text")(response, length, keep, version, varies, body, framing)
    cdef tuple written = of._written_of(_field(response, of._headers))
    cdef bytes end = of._last
    if not keep:
        end = of._last_closed
    elif version < (1, 1):
        end = of._last_kept
    if not written[1]:
        end = of._dated_end(end)
    if framing:
        end = framing + end
    first = of._first_of(_field(response, of._status))
    return join_response(first, written[0], _field(response, of._request_id), varies, length, end, body)
