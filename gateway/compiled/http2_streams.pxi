# Streams that arrive or leave in one piece: transports/http2/connection.py and streams.py, grpc/client_call.py.

cdef enum:
    _COPIED_BYTES = 4096  # `COPIED_BYTES` of transports/http2/frames.py
    _WINDOW_BYTES = 65535  # `STREAM_WINDOW` of transports/http2/connection.py
    _LEAST_WINDOW = 1 << 19  # `_WIDEN_AT` there
    _REFUND = 10  # `RESPONSE_REFUND` of transports/http2/flood_control.py
    _UPDATE_BYTES = 13  # `UPDATE_BYTES` of transports/http2/frames.py


cdef struct _Whole:
    uint64_t number
    Text block
    Py_ssize_t block_bytes
    Py_ssize_t begin  # of the content
    Py_ssize_t stop
    Text tail  # NULL without trailers
    Py_ssize_t tail_bytes
    Py_ssize_t end
    Py_ssize_t opened  # by how much the peer opens the window of the stream


cdef inline Py_ssize_t _opened_by(Text at, Py_ssize_t size, uint64_t number) noexcept:
    """See `gateway.transports.http2.frames.opened_by`."""
    cdef uint64_t same = 0
    cdef int flags = 0
    if _frame(at, size, _WINDOW_UPDATE, &same, &flags) != _UPDATE_BYTES - _HEAD_BYTES or same != number:
        return 0
    return (at[9] & 0x7F) << 24 | at[10] << 16 | at[11] << 8 | at[12]


cdef bint _read_whole(bytes data, Py_ssize_t at, Py_ssize_t max_block, _Whole* whole) noexcept:
    """Read the frames of a whole stream; see `gateway.transports.http2.frames.complete_stream`."""
    cdef Text start = <Text>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t length
    cdef uint64_t same = 0
    cdef int flags = 0
    length = _frame(start + at, size - at, _HEADERS, &whole.number, &flags)
    if not 0 < length <= max_block or flags != _END_HEADERS or not 0 < whole.number <= _MAX_STREAM:
        return False
    whole.block, whole.block_bytes = start + at + _HEAD_BYTES, length
    whole.begin = at + 2 * _HEAD_BYTES + length
    whole.opened = _opened_by(start + whole.begin - _HEAD_BYTES, size - whole.begin + _HEAD_BYTES, whole.number)
    if whole.opened:
        whole.begin += _UPDATE_BYTES
    length = _frame(start + whole.begin - _HEAD_BYTES, size - whole.begin + _HEAD_BYTES, _DATA, &same, &flags)
    if length <= 0 or same != whole.number:
        return False
    whole.stop = whole.end = whole.begin + length
    whole.tail, whole.tail_bytes = NULL, 0
    if flags == _END_STREAM:
        return True
    if flags:
        return False
    length = _frame(start + whole.stop, size - whole.stop, _HEADERS, &same, &flags)
    if not 0 <= length <= max_block or flags != (_END_HEADERS | _END_STREAM) or same != whole.number:
        return False
    whole.tail, whole.tail_bytes = start + whole.stop + _HEAD_BYTES, length
    whole.end = whole.stop + _HEAD_BYTES + length
    return True


cdef class _StreamFields:
    """Where connections of HTTP/2, their writers and their streams have their fields."""

    cdef object _receiver, _writer, _stream, _budget, _failure, _partial, _read_call_block
    cdef object _open, _half_local, _half_remote, _closed, _remote_ended, _end
    cdef Py_ssize_t _blocks, _max_block, _has_settings, _streams, _windows, _window, _heads, _has_heads
    cdef Py_ssize_t _events, _writer_at
    cdef Py_ssize_t _last, _is_accepting, _max_streams, _read_block, _read_head, _table
    cdef Py_ssize_t _initial, _room, _is_paused, _has_shrunk, _out, _flood_budget, _open_streams, _remaining
    cdef Py_ssize_t _number, _owner, _stream_room, _stream_window, _left, _state, _expected, _waiting
    cdef Py_ssize_t _unread, _written, _unsent, _place

    def __cinit__(self):
        from functools import partial

        from gateway.transports.http2 import states
        from gateway.transports.http2.connection import Http2Connection
        from gateway.transports.http2.flood_control import FloodBudget
        from gateway.transports.http2.frames import Http2StreamError
        from gateway.transports.http2.hpack import HeaderBlockReader
        from gateway.transports.http2.streams import Http2Stream, Http2StreamWriter
        from gateway.transports.http2.windows import ReceiveWindows

        self._receiver, self._writer, self._stream = Http2Connection, Http2StreamWriter, Http2Stream
        self._budget, self._failure = FloodBudget, Http2StreamError
        self._partial, self._read_call_block = partial, read_call_block
        self._open, self._closed = states.OPEN, states.CLOSED
        self._half_local, self._half_remote = states.HALF_CLOSED_LOCAL, states.HALF_CLOSED_REMOTE
        self._remote_ended, self._end = states.REMOTE_ENDED, states.Http2StreamEvent.RECEIVE_END
        self._blocks, self._windows = _offset(Http2Connection, "_blocks"), _offset(Http2Connection, "windows")
        self._has_settings = _offset(Http2Connection, "has_settings")
        self._streams, self._window = _offset(Http2Connection, "streams"), _offset(ReceiveWindows, "left")
        self._max_block = _offset(HeaderBlockReader, "max_block")
        self._heads, self._has_heads = _offset(HeaderBlockReader, "_heads"), _offset(HeaderBlockReader, "_has_heads")
        self._events, self._writer_at = _offset(Http2Connection, "_receiver"), _offset(Http2Connection, "writer")
        self._last, self._is_accepting = _offset(Http2Connection, "last"), _offset(Http2Connection, "_is_accepting")
        self._max_streams, self._table = _offset(Http2Connection, "_max_streams"), _offset(HeaderBlockReader, "_table")
        self._read_block = _offset(HeaderBlockReader, "_read_block")
        self._read_head = _offset(HeaderBlockReader, "_read_head")
        self._initial, self._room = _offset(Http2StreamWriter, "initial_window"), _offset(Http2StreamWriter, "_room")
        self._is_paused = _offset(Http2StreamWriter, "is_paused")
        self._unsent = _offset(Http2StreamWriter, "_waiting")
        self._has_shrunk, self._out = _offset(Http2StreamWriter, "has_shrunk"), _offset(Http2StreamWriter, "_out")
        self._flood_budget = _offset(Http2StreamWriter, "_flood_budget")
        self._open_streams = _offset(Http2StreamWriter, "_streams")
        self._remaining = _offset(FloodBudget, "remaining")
        self._number, self._owner = _offset(Http2Stream, "number"), _offset(Http2Stream, "owner")
        self._stream_room, self._stream_window = _offset(Http2Stream, "room"), _offset(Http2Stream, "window")
        self._left, self._state = _offset(Http2Stream, "frame_bytes_left"), _offset(Http2Stream, "state")
        self._expected, self._waiting = _offset(Http2Stream, "expected_bytes"), _offset(Http2Stream, "waiting")
        self._unread, self._written = _offset(Http2Stream, "unread"), _offset(Http2Stream, "written")
        self._place = _offset(Http2Stream, "place")

    cdef object _new(self, number, room, window, owner, state):
        """Return a stream; as `Http2Stream`."""
        stream = PyType_GenericAlloc(<PyTypeObject*><void*>self._stream, 0)
        _set_field(stream, self._number, number)
        _set_field(stream, self._owner, owner)
        _set_field(stream, self._place, None)
        _set_field(stream, self._stream_room, room)
        _set_field(stream, self._stream_window, window)
        _set_field(stream, self._left, 0)
        _set_field(stream, self._state, state)
        _set_field(stream, self._expected, None)
        _set_field(stream, self._waiting, None)
        _set_field(stream, self._unread, 0)
        _set_field(stream, self._written, 0)
        return stream

    cdef Py_ssize_t _take_update(self, writer, bytes data, Py_ssize_t at) except -1:
        """As `gateway.transports.http2.streams.Http2StreamWriter.take_update`."""
        cdef Py_ssize_t opened = _opened_by(<Text>PyBytes_AS_STRING(data) + at, PyBytes_GET_SIZE(data) - at, 0)
        cdef Py_ssize_t room = <Py_ssize_t>_field(writer, self._room) + opened
        if not opened or room > _MAX_WINDOW or <dict>_field(writer, self._unsent):
            return at
        _set_field(writer, self._room, room)
        return at + _UPDATE_BYTES

    cdef int _check(self, core) except -1:
        if not PyObject_TypeCheck(core, <PyTypeObject*><void*>self._receiver):
            raise TypeError(f"expected an Http2Connection, found {type(core)}")
        return 0


cdef _StreamFields _stream_fields = None


cdef inline _StreamFields _of_streams():
    global _stream_fields
    if _stream_fields is None:
        _stream_fields = _StreamFields()
    return _stream_fields


cdef object _content(bytes data, Py_ssize_t begin, Py_ssize_t stop):
    """See `gateway.transports.http2.frames.content`."""
    if stop - begin <= _COPIED_BYTES:
        return memoryview(PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + begin, stop - begin))
    return memoryview(data)[begin:stop]


cdef object _fresh_head(blocks, _StreamFields of, bytes block):
    """Return the head that a block is; as `gateway.transports.http2.hpack.HeaderBlockReader.read` without a cached one."""
    cdef tuple before = <tuple?>_field(blocks, of._table)
    cdef tuple found, limits
    head = None
    read_block = _field(blocks, of._read_block)
    if read_block is None:
        found = _decode_block(block, before, _field(blocks, of._max_block))
        if found is None:
            found = <tuple?>_python_version("decode_block")(block, before, _field(blocks, of._max_block))
        fields, table = found[0], found[1]
    else:
        found = None
        if type(read_block) is of._partial and read_block.func is of._read_call_block:
            limits = <tuple>read_block.args
            found = _read_call_block(block, before, limits[0], limits[1], True)
        if found is None:
            found = <tuple?>read_block(block, before)
        head, fields, table = found[0], found[1], found[2]
    _set_field(blocks, of._table, table)
    if head is None:
        head = _field(blocks, of._read_head)(fields)
    if table is not before:  # until then, equal bytes mean equal fields
        if _field(blocks, of._has_heads):
            _set_field(blocks, of._has_heads, False)
            _field(blocks, of._heads).clear()
    elif not isinstance(head, of._failure):
        heads = _field(blocks, of._heads)
        if heads.should_admit(block):
            _set_field(blocks, of._has_heads, True)
            heads.put(block, head)
    return head


def new_stream(number, room, window, owner):
    """See `gateway.transports.http2.streams.new_stream`."""
    cdef _StreamFields of = _of_streams()
    return of._new(number, room, window, owner, of._open)


@cython.binding(True)
def take_request(self, bytes data not None, Py_ssize_t at):
    """See `gateway.transports.http2.connection.Http2Connection.take_request`."""
    cdef _StreamFields of = _of_streams()
    cdef _Whole whole
    cdef Py_ssize_t length, window, room
    of._check(self)
    blocks, windows = _field(self, of._blocks), _field(self, of._windows)
    if not _read_whole(data, at, _field(blocks, of._max_block), &whole):
        return 0
    length = whole.stop - whole.begin
    window = <Py_ssize_t>_field(windows, of._window) - length
    writer = _field(self, of._writer_at)
    room = <Py_ssize_t>_field(writer, of._initial) + whole.opened
    streams = _field(self, of._streams)
    if (
        whole.tail is not NULL
        or length > _WINDOW_BYTES
        or room > _MAX_WINDOW
        or window < _LEAST_WINDOW
        or whole.number <= <uint64_t>_field(self, of._last)
        or not whole.number & 1
        or not _field(self, of._is_accepting)
        or len(<dict>streams) >= <Py_ssize_t>_field(self, of._max_streams)
        or not _field(self, of._has_settings)
    ):
        return 0
    number = whole.number
    block = PyBytes_FromStringAndSize(<const char*>whole.block, whole.block_bytes)
    head = _field(blocks, of._heads).get(block) if _field(blocks, of._has_heads) else None
    if head is None:
        head = _fresh_head(blocks, of, block)
        if isinstance(head, of._failure):
            self._head(number, head, end=False)
            return at + _HEAD_BYTES + whole.block_bytes
    _set_field(self, of._last, number)
    _set_field(windows, of._window, window)
    stream = of._new(number, room, _WINDOW_BYTES - length, None, of._half_remote)
    (<dict>streams)[number] = stream
    view = _content(data, whole.begin, whole.stop)
    _field(self, of._events).on_complete_stream(stream, head, view, None)
    return of._take_update(writer, data, whole.end)


@cython.binding(True)
def take_response(self, bytes data not None, Py_ssize_t at):
    """See `gateway.transports.http2.connection.Http2Connection.take_response`."""
    cdef _StreamFields of = _of_streams()
    cdef _Whole whole
    cdef Py_ssize_t length, window
    of._check(self)
    blocks, windows = _field(self, of._blocks), _field(self, of._windows)
    if not _read_whole(data, at, _field(blocks, of._max_block), &whole) or whole.tail is NULL or whole.opened:
        return 0
    length = whole.stop - whole.begin
    window = <Py_ssize_t>_field(windows, of._window) - length
    number = whole.number
    streams = _field(self, of._streams)
    stream = (<dict>streams).get(number)
    if type(stream) is not of._stream:
        return 0
    state = _field(stream, of._state)
    if (
        (state is not of._half_local and state in of._remote_ended)
        or length > <Py_ssize_t>_field(stream, of._stream_window)
        or window < _LEAST_WINDOW
        or _field(stream, of._expected) is not None
        or not _field(self, of._has_settings)
    ):
        return 0
    block = PyBytes_FromStringAndSize(<const char*>whole.block, whole.block_bytes)
    last = PyBytes_FromStringAndSize(<const char*>whole.tail, whole.tail_bytes)
    heads = _field(blocks, of._heads).get
    head, tail = heads(block), heads(last)
    if head is None:
        head = _fresh_head(blocks, of, block)
        if isinstance(head, of._failure):
            self._head(number, head, end=False)
            return whole.begin - _HEAD_BYTES
        tail = heads(last)  # the table of fields may have changed
    if tail is None:
        tail = _fresh_head(blocks, of, last)
        if isinstance(tail, of._failure):
            self._head(number, tail, end=True)
            return whole.end
    _set_field(windows, of._window, window)
    if state is of._half_local:  # its window does not matter any more
        _set_field(stream, of._state, of._closed)
        del (<dict>streams)[number]
    else:
        stream.move(of._end)
    view = _content(data, whole.begin, whole.stop)
    _field(self, of._events).on_complete_stream(stream, head, view, tail)
    return of._take_update(_field(self, of._writer_at), data, whole.end)


@cython.binding(True)
def send_joined(self, stream, frames, Py_ssize_t size):
    """See `gateway.transports.http2.streams.Http2StreamWriter.send_joined`."""
    cdef _StreamFields of = _of_streams()
    cdef Py_ssize_t room, stream_room
    if type(self) is not of._writer or type(stream) is not of._stream:
        return _python_version("send_joined")(self, stream, frames, size)
    room = <Py_ssize_t>_field(self, of._room) - size
    stream_room = <Py_ssize_t>_field(stream, of._stream_room) - size
    if room < 0 or stream_room < 0 or _field(self, of._is_paused) or _field(self, of._has_shrunk):
        return False
    (<list>_field(self, of._out)).append(frames)
    _set_field(self, of._room, room)
    _set_field(stream, of._stream_room, stream_room)
    budget = _field(self, of._flood_budget)
    _set_field(budget, of._remaining, <Py_ssize_t>_field(budget, of._remaining) + _REFUND)
    if _field(stream, of._state) is of._half_remote:
        _set_field(stream, of._state, of._closed)
        del (<dict>_field(self, of._open_streams))[_field(stream, of._number)]
    else:
        _set_field(stream, of._state, of._half_local)
    return True


cdef class _AnswerFields:
    """Where calls of a client, heads and responses have their fields."""

    cdef object _call, _head_class, _response, _ok
    cdef Py_ssize_t _stream, _limit, _is_unary, _waiter, _head, _error, _end, _rest
    cdef Py_ssize_t _http_status, _is_grpc, _status, _metadata

    def __cinit__(self):
        from gateway.transports.grpc.client_call import ClientCall
        from gateway.transports.grpc.headers import GrpcResponseHead
        from gateway.wire.grpc import GrpcResponse, GrpcStatus

        self._call, self._head_class, self._response = ClientCall, GrpcResponseHead, GrpcResponse
        self._ok = GrpcStatus.OK
        self._stream, self._limit = _offset(ClientCall, "stream"), _offset(ClientCall, "limit_bytes")
        self._is_unary, self._waiter = _offset(ClientCall, "is_unary"), _offset(ClientCall, "waiter")
        self._head, self._error = _offset(ClientCall, "_head"), _offset(ClientCall, "_error")
        self._end, self._rest = _offset(ClientCall, "_end"), _offset(ClientCall, "_rest")
        self._http_status = _offset(GrpcResponseHead, "http_status")
        self._is_grpc, self._status = _offset(GrpcResponseHead, "is_grpc"), _offset(GrpcResponseHead, "status")
        self._metadata = _offset(GrpcResponseHead, "metadata")


cdef _AnswerFields _answer_fields = None


def answer(call, head, view, tail):
    """See `gateway.transports.grpc.client_call.answer`."""
    global _answer_fields
    cdef _StreamFields streams = _of_streams()
    if _answer_fields is None:
        _answer_fields = _AnswerFields()
    cdef _AnswerFields of = _answer_fields
    if type(call) is not of._call or type(head) is not of._head_class or type(tail) is not of._head_class:
        return _python_version("answer")(call, head, view, tail)
    waiter, stream = _field(call, of._waiter), _field(call, of._stream)
    if type(stream) is not streams._stream:
        return _python_version("answer")(call, head, view, tail)
    if (
        not _field(call, of._is_unary)
        or _field(call, of._head) is not None
        or _field(call, of._error) is not None
        or waiter is None
        or _field(head, of._http_status) != 200
        or not _field(head, of._is_grpc)
        or _field(head, of._status) is not None
        or _field(tail, of._status) is not of._ok
        or _field(tail, of._http_status) is not None
    ):
        return False
    message = whole_message(view, _field(call, of._limit))
    if message is None:
        return False
    _set_field(call, of._end, tail)
    if not waiter.done():
        waiter.set_result(of._response((message,), metadata=_field(tail, of._metadata)))
    if _field(stream, streams._state) is not streams._closed:
        call.cancel()
    elif _field(call, of._rest) is None and not _field(stream, streams._unread):
        _set_field(stream, streams._owner, None)  # as `release`, which has nothing else to do
    return True
