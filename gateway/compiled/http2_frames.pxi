# The frames of small streams: transports/http2/frames.py and grpc/messages.py.

cdef enum:
    _HEAD_BYTES = 9
    _PREFIX_BYTES = 5
    _DATA = 0
    _HEADERS = 1
    _WINDOW_UPDATE = 8
    _END_STREAM = 1
    _END_HEADERS = 4
    _SMALL_FRAME_BYTES = 256  # `SMALL_FRAME_BYTES` of transports/http2/frames.py
    _MAX_STREAM = 0x7FFFFFFF
    _MAX_WINDOW = 0x7FFFFFFF


cdef inline Py_ssize_t _frame(Text at, Py_ssize_t size, int kind, uint64_t* number, int* flags) noexcept:
    """Return the size of the payload of a frame, and set *number* and *flags*; -1 for another frame."""
    if size < _HEAD_BYTES or at[3] != kind:
        return -1
    flags[0] = at[4]
    number[0] = <uint64_t>at[5] << 24 | at[6] << 16 | at[7] << 8 | at[8]
    cdef Py_ssize_t length = at[0] << 16 | at[1] << 8 | at[2]
    return length if length <= size - _HEAD_BYTES else -1


def copy_data(data not None, Py_ssize_t at, uint64_t number, Py_ssize_t rest, Py_ssize_t window, room not None):
    """See `gateway.transports.http2.frames.copy_data`."""
    cdef Py_buffer source
    cdef Py_buffer target
    cdef Text start
    cdef char* out
    cdef Py_ssize_t length, left
    cdef Py_ssize_t begun = 0
    cdef bint is_last = False
    PyObject_GetBuffer(room, &target, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    except BaseException:
        PyBuffer_Release(&target)
        raise
    start, out = <Text>source.buf, <char*>target.buf
    left = target.len
    while left:
        if not rest:
            if source.len - at < _HEAD_BYTES or start[at + 3] != _DATA or start[at + 4] > _END_STREAM:
                break
            length = start[at] << 16 | start[at + 1] << 8 | start[at + 2]
            is_last = start[at + 4] == _END_STREAM
            if (
                not _SMALL_FRAME_BYTES <= length <= window - begun
                or (is_last and length <= left)
                or (<uint64_t>start[at + 5] << 24 | start[at + 6] << 16 | start[at + 7] << 8 | start[at + 8]) != number
            ):
                break
            begun += length
            rest = length
            at += _HEAD_BYTES
        length = min(rest, source.len - at, left)
        memcpy(out, start + at, length)
        out += length
        at += length
        left -= length
        rest -= length
        if rest:
            break
    length = target.len - left
    PyBuffer_Release(&source)
    PyBuffer_Release(&target)
    return at, length, begun, rest, is_last and rest > 0


cdef inline char* _put_head(char* out, Py_ssize_t size, int kind, int flags, uint64_t number) noexcept:
    out[0], out[1], out[2] = <char>(size >> 16), <char>(size >> 8), <char>size
    out[3], out[4] = <char>kind, <char>flags
    out[5], out[6] = <char>(number >> 24), <char>(number >> 16)
    out[7], out[8] = <char>(number >> 8), <char>number
    return out + _HEAD_BYTES


def join_stream(uint64_t number, bytes block not None, buffers, Py_ssize_t size, bytes tail):
    """See `gateway.transports.http2.frames.join_stream`."""
    cdef Py_ssize_t total = 2 * _HEAD_BYTES + PyBytes_GET_SIZE(block) + size
    if tail is not None:
        total += _HEAD_BYTES + PyBytes_GET_SIZE(tail)
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, total)
    cdef char* out = PyBytes_AS_STRING(joined)
    out = _put_head(out, PyBytes_GET_SIZE(block), _HEADERS, _END_HEADERS, number)
    out = _put(out, block)
    out = _put_head(out, size, _DATA, _END_STREAM if tail is None else 0, number)
    out = _put_content(out, buffers, size)
    if tail is not None:
        out = _put_head(out, PyBytes_GET_SIZE(tail), _HEADERS, _END_HEADERS | _END_STREAM, number)
        _put(out, tail)
    return joined


cdef enum:
    _JOINED_BYTES = 8192  # as in transports/http2/streams.py, JOINED_BYTES


def join_call(uint64_t number, bytes block not None, head, message, Py_ssize_t size, bytes tail, trailers):
    """See `gateway.transports.grpc.messages.join_call`."""
    cdef _Fields fields
    cdef _Fields last
    cdef Py_ssize_t block_bytes = _read_fields(head, &fields)
    cdef Py_ssize_t tail_bytes = 0 if tail is None else _read_fields(trailers, &last)
    if block_bytes < 0 or tail_bytes < 0 or not 0 <= size <= _JOINED_BYTES:
        return _python_version("join_call")(number, block, head, message, size, tail, trailers)
    block_bytes += PyBytes_GET_SIZE(block)
    cdef Py_ssize_t heads = 2 * _HEAD_BYTES
    if tail is not None:
        tail_bytes += PyBytes_GET_SIZE(tail)
        heads += _HEAD_BYTES
    cdef Py_ssize_t total = block_bytes + _PREFIX_BYTES + size + tail_bytes
    if total > _JOINED_BYTES:
        return None
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, heads + total)
    cdef char* out = PyBytes_AS_STRING(joined)
    out = _put_head(out, block_bytes, _HEADERS, _END_HEADERS, number)
    out = _put_fields(_put(out, block), &fields)
    out = _put_head(out, _PREFIX_BYTES + size, _DATA, _END_STREAM if tail is None else 0, number)
    out[0], out[1], out[2] = 0, <char>(size >> 24), <char>(size >> 16)
    out[3], out[4] = <char>(size >> 8), <char>size
    out = _put_content(out + _PREFIX_BYTES, message, size)
    if tail is not None:
        out = _put_head(out, tail_bytes, _HEADERS, _END_HEADERS | _END_STREAM, number)
        _put_fields(_put(out, tail), &last)
    return joined


cdef object _CONTENT = slice(_PREFIX_BYTES, None)


def whole_message(view not None, Py_ssize_t limit_bytes):
    """See `gateway.transports.grpc.messages.whole_message`."""
    cdef Py_buffer raw
    cdef Text at
    cdef Py_ssize_t size
    cdef bint is_whole
    PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
    at = <Text>raw.buf
    size = raw.len - _PREFIX_BYTES
    is_whole = (
        0 <= size <= limit_bytes
        and not at[0]
        and (<uint64_t>at[1] << 24 | at[2] << 16 | at[3] << 8 | at[4]) == <uint64_t>size
    )
    PyBuffer_Release(&raw)
    return view[_CONTENT] if is_whole else None
