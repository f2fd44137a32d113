# Metadata of gRPC and the head of an HTTP/1 response: transports/grpc/headers.py, http/response_writer.py.

cdef enum:
    _SHORT_TEXT = 127  # from this length, HPACK writes a length in more than one byte
    _MAX_FIELDS = 64  # more are left to Python

cdef uint8_t _IN_KEY[256]
for _each in b"-_.0123456789abcdefghijklmnopqrstuvwxyz":
    _IN_KEY[_each] = 1

_RESERVED_KEYS = frozenset({"te", "content-type", "user-agent", "host", "connection"})


cdef inline Py_ssize_t _short_text(value, Text* at) noexcept:
    """Return the length of a short ASCII text, and set *at*; -1 for anything else."""
    if not PyUnicode_CheckExact(value) or not PyUnicode_IS_COMPACT_ASCII(value):
        return -1
    at[0] = PyUnicode_1BYTE_DATA(value)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(value)
    return size if size < _SHORT_TEXT else -1


cdef inline bint _is_text_key(key, Text at, Py_ssize_t size) except -1:
    """Return whether *key* is sent, with a text; see `gateway.transports.grpc.metadata.kind_of`."""
    cdef Py_ssize_t index
    for index in range(size):
        if not _IN_KEY[at[index]]:
            return False
    if size >= 4 and not memcmp(at + size - 4, b"-bin", 4):
        return False
    if size >= 5 and not memcmp(at, b"grpc-", 5):
        return False
    return size > 0 and key not in _RESERVED_KEYS


def with_metadata(bytes block not None, metadata):
    """See `gateway.transports.grpc.headers.with_metadata`."""
    cdef Text keys[_MAX_FIELDS]
    cdef Text values[_MAX_FIELDS]
    cdef uint8_t key_sizes[_MAX_FIELDS]
    cdef uint8_t value_sizes[_MAX_FIELDS]
    cdef Py_ssize_t count, index, key_size, value_size
    cdef Py_ssize_t total = PyBytes_GET_SIZE(block)
    cdef tuple pair
    cdef bytes joined
    cdef char* out
    if type(metadata) is not tuple or len(<tuple>metadata) > _MAX_FIELDS:
        return _with_metadata(block, metadata)
    count = len(<tuple>metadata)
    for index in range(count):
        if type((<tuple>metadata)[index]) is not tuple:
            return _with_metadata(block, metadata)
        pair = <tuple>(<tuple>metadata)[index]
        if len(pair) != 2:
            return _with_metadata(block, metadata)
        key_size = _short_text(pair[0], &keys[index])
        value_size = _short_text(pair[1], &values[index])
        if key_size < 0 or value_size < 0 or not _is_text_key(pair[0], keys[index], key_size):
            return _with_metadata(block, metadata)
        if not _is_printable(values[index], value_size):
            return _with_metadata(block, metadata)
        key_sizes[index], value_sizes[index] = key_size, value_size
        total += 3 + key_size + value_size
    joined = PyBytes_FromStringAndSize(NULL, total)
    out = _put(PyBytes_AS_STRING(joined), block)
    for index in range(count):
        out[0], out[1] = 0, key_sizes[index]  # a literal field that is not indexed
        out = _put_text(out + 2, <const char*>keys[index], key_sizes[index])
        out[0] = value_sizes[index]
        out = _put_text(out + 1, <const char*>values[index], value_sizes[index])
    return joined


cdef _with_metadata(bytes block, metadata):
    return _python_version("with_metadata")(block, metadata)


cdef bytes _VARIES = b"Vary: Accept-Encoding\r\n"
cdef bytes _REQUEST_ID = b"x-request-id: "
cdef bytes _LENGTH = b"Content-Length: "
cdef bytes _LINE_END = b"\r\n"


def join_response(
    bytes first not None,
    bytes fields not None,
    str request_id not None,
    bint varies,
    Py_ssize_t length,
    bytes end not None,
    body,
):
    """See `gateway.transports.http.response_writer.join_response`."""
    cdef Text text = NULL
    cdef char digits[_WIDEST]
    cdef char* digit = digits + _WIDEST
    cdef Py_ssize_t rest = length
    cdef Py_ssize_t content = length if body else 0
    cdef Py_ssize_t id_size
    cdef Py_ssize_t total = PyBytes_GET_SIZE(first) + PyBytes_GET_SIZE(fields) + PyBytes_GET_SIZE(end)
    cdef bytes joined
    cdef char* out
    id_size = _short_text(request_id, &text)
    if id_size < 0 or content < 0 or not _is_printable(text, id_size):
        python = _python_version("join_response")
        return python(first, fields, request_id, varies, length, end, body)
    if id_size:
        total += PyBytes_GET_SIZE(_REQUEST_ID) + id_size + 2
    if varies:
        total += PyBytes_GET_SIZE(_VARIES)
    if length >= 0:
        while True:
            digit -= 1
            digit[0] = <char>(c"0" + rest % 10)
            rest //= 10
            if not rest:
                break
        total += PyBytes_GET_SIZE(_LENGTH) + (digits + _WIDEST - digit) + 2
    total += content
    joined = PyBytes_FromStringAndSize(NULL, total)
    out = _put(_put(PyBytes_AS_STRING(joined), first), fields)
    if id_size:
        out = _put_text(_put(out, _REQUEST_ID), <const char*>text, id_size)
        out = _put(out, _LINE_END)
    if varies:
        out = _put(out, _VARIES)
    if length >= 0:
        out = _put_text(_put(out, _LENGTH), digit, digits + _WIDEST - digit)
        out = _put(out, _LINE_END)
    _put_content(_put(out, end), body, content)
    return joined
