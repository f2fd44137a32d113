# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True
"""The compiled versions of hot functions, in typed code over raw bytes.

`gateway/accelerator.py` decides whether they are used. Each has the name, the results and the errors
of a Python function that is decorated with `accelerated`. What is unusual is left to that function.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    void* PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)

ctypedef const unsigned char* Text

# ---- JSON: the holes of templates (protocols/oip/json/templates.py)

cdef uint8_t _IN_LIST[256]
cdef uint8_t _IN_ID[256]
cdef int _each
for _each in b"-+0123456789.eE, []":
    _IN_LIST[_each] = 1
for _each in b"-_.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
    _IN_ID[_each] = 1


def split_holes(bytes text not None):
    """See `gateway.protocols.oip.json.templates.split_holes`."""
    cdef Text at = <Text>PyBytes_AS_STRING(text)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    cdef Text end = at + size
    cdef Text quote, start, stop
    cdef char* out = <char*>malloc(size + 1)
    cdef Py_ssize_t used = 0
    cdef list holes = []
    if out is NULL:
        raise MemoryError
    try:
        while True:
            quote = <Text>memchr(at, c'"', end - at)
            # Up to the first hole, and between holes, the text is copied with its quotes.
            while quote is not NULL:
                stop = _hole(quote, end, &start)
                if stop is not NULL:
                    break
                quote = <Text>memchr(quote + 1, c'"', end - quote - 1)
            if quote is NULL:
                break
            memcpy(out + used, at, quote - at)
            used += quote - at
            out[used] = 0
            used += 1
            holes.append(PyBytes_FromStringAndSize(<const char*>start, stop - start))
            at = stop
        if not holes:
            return text, holes
        memcpy(out + used, at, end - at)
        return PyBytes_FromStringAndSize(out, used + (end - at)), holes
    finally:
        free(out)


cdef Text _hole(Text quote, Text end, Text* start) noexcept:
    """Return the end of the hole whose key is at *quote*, and set *start*; NULL if there is none.

    A byte of 0 follows the last one of a bytes object.
    """
    cdef Text at
    cdef Text last = NULL
    if end - quote > 8 and not memcmp(quote, b'"data":', 7):
        at = quote + 7 + (quote[7] == c' ')
        if at[0] != c'[':
            return NULL
        start[0] = at
        at += 1
        while at < end and _IN_LIST[at[0]]:
            if at[0] == c']':
                last = at + 1
            at += 1
        return last
    if end - quote > 6 and not memcmp(quote, b'"id":', 5):
        at = quote + 5 + (quote[5] == c' ')
        if at[0] != c'"':
            return NULL
        start[0] = at
        at += 1
        while at < end and _IN_ID[at[0]]:
            at += 1
        return at + 1 if at < end and at[0] == c'"' else NULL
    return NULL


# ---- JSON: lists of numbers (protocols/oip/json/elements.py and write.py)

cdef double _POWERS[23]
cdef double _power = 1
for _each in range(23):
    _POWERS[_each] = _power  # exact up to 10 ** 22
    _power *= 10

cdef uint64_t _EXACT = 1 << 53

cdef enum:
    _FEW = 512  # numbers that are written here
    _WIDEST = 21  # characters of a number, with its comma


_SIZES = {"b": 1, "h": 2, "i": 4, "q": 8, "f": 4, "d": 8}


cdef class _Numbers:
    """Numbers of one type and count, as JSON and as raw little-endian data.

    What the methods do not read or write themselves, *python* does.
    """

    cdef object _python
    cdef char _code
    cdef Py_ssize_t _count, _size
    cdef int64_t _least, _most

    def __cinit__(self, str code, Py_ssize_t count, python):
        self._python = python(code, count)
        self._code = ord(code)
        self._count = count
        self._size = _SIZES.get(code.lower(), 0)
        bits = 8 * self._size
        self._least, self._most = 0, 0
        if not self._size:
            self._count = 0  # left to Python
        elif code in "bhiq":
            self._least, self._most = -(1 << bits - 1), (1 << bits - 1) - 1
        elif code in "BHIQ":
            self._most = min((1 << bits) - 1, (1 << 63) - 1)

    def pack(self, bytes text not None):
        cdef bytes raw
        if self._count > 0:
            raw = PyBytes_FromStringAndSize(NULL, self._count * self._size)
            if self._read(<Text>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), PyBytes_AS_STRING(raw)):
                return raw
        return self._python(text)

    cdef bint _read(self, Text at, Py_ssize_t length, char* out) noexcept:
        """Read a list of short numbers; return whether it is one."""
        cdef Text end = at + length
        cdef Text first
        cdef bint negative, is_float
        cdef uint64_t value
        cdef int64_t signed
        cdef int fraction, exponent, sign
        cdef double number
        cdef float single
        cdef Py_ssize_t index = 0
        cdef bint floats = self._code == c'f' or self._code == c'd'
        if at[0] != c'[':
            return False
        while index < self._count:
            at += 1
            while at[0] == c' ':
                at += 1
            negative = at[0] == c'-'
            at += negative
            first = at
            value = 0
            while c'0' <= at[0] <= c'9':
                value = value * 10 + (at[0] - c'0')
                at += 1
            # More digits are rare, and the value has overflowed.
            if at == first or at - first > 18 or (first[0] == c'0' and at - first > 1):
                return False
            is_float = False
            if floats:
                fraction = exponent = 0
                if at[0] == c'.':
                    is_float = True
                    at += 1
                    while c'0' <= at[0] <= c'9':
                        value = value * 10 + (at[0] - c'0')
                        fraction += 1
                        at += 1
                    if not fraction or at - first > 19:
                        return False
                if at[0] == c'e' or at[0] == c'E':
                    is_float = True
                    at += 1
                    sign = -1 if at[0] == c'-' else 1
                    if at[0] == c'-' or at[0] == c'+':
                        at += 1
                    if not c'0' <= at[0] <= c'9':
                        return False
                    while c'0' <= at[0] <= c'9':
                        exponent = exponent * 10 + (at[0] - c'0')
                        if exponent > 99:
                            return False
                        at += 1
                    exponent *= sign
                exponent -= fraction
                # Value and power of ten are exact, so the result is rounded once.
                if value > _EXACT or not -22 <= exponent <= 22:
                    return False
                number = <double>value
                number = number / _POWERS[-exponent] if exponent < 0 else number * _POWERS[exponent]
                if negative and (is_float or value):  # the integer -0 is 0
                    number = -number
                if self._code == c'd':
                    memcpy(out, &number, 8)
                else:
                    single = <float>number
                    memcpy(out, &single, 4)
            else:
                signed = -<int64_t>value if negative else <int64_t>value
                if not self._least <= signed <= self._most:
                    return False
                memcpy(out, &signed, self._size)
            out += self._size
            index += 1
            while at[0] == c' ':
                at += 1
            if at[0] != (c',' if index < self._count else c']'):
                return False
        return at + 1 == end

    def text(self, view):
        """Return integers as JSON."""
        cdef Py_buffer raw
        if not 0 < self._count <= _FEW or self._most == 0 or self._code == c'Q':
            return self._python(view)
        PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
        try:
            if raw.len == self._count * self._size:
                return self._write(<const char*>raw.buf)
        finally:
            PyBuffer_Release(&raw)
        return self._python(view)

    cdef bytes _write(self, const char* at):
        cdef char out[_FEW * _WIDEST + 2]
        cdef char* end = out
        cdef char digits[_WIDEST]
        cdef int used
        cdef uint64_t left
        cdef int64_t value
        cdef Py_ssize_t index
        for index in range(self._count):
            end[0] = c',' if index else c'['
            end += 1
            value = 0
            memcpy(&value, at, self._size)
            at += self._size
            if self._least and self._size < 8:
                value = (value ^ (self._most + 1)) - (self._most + 1)  # extend the sign
            left = <uint64_t>value
            if value < 0:
                left = 0 - left
                end[0] = c'-'
                end += 1
            used = 0
            while left >= 10:
                digits[used] = <char>(c'0' + left % 10)
                used += 1
                left //= 10
            end[0] = <char>(c'0' + left)
            end += 1
            while used:
                used -= 1
                end[0] = digits[used]
                end += 1
        end[0] = c']'
        return PyBytes_FromStringAndSize(out, end + 1 - out)


def number_packer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.elements.number_packer`."""
    from gateway.accelerator import PYTHON_VERSIONS  # which imports this module

    return _Numbers(code, count, PYTHON_VERSIONS["number_packer"]).pack


def integer_writer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.write.integer_writer`."""
    from gateway.accelerator import PYTHON_VERSIONS

    return _Numbers(code, count, PYTHON_VERSIONS["integer_writer"]).text


# ---- HTTP/2 and gRPC: the frames of small streams (transports/http2/frames.py, grpc/messages.py)

cdef enum:
    _HEAD_BYTES = 9
    _PREFIX_BYTES = 5
    _DATA = 0
    _HEADERS = 1
    _END_STREAM = 1
    _END_HEADERS = 4
    _MAX_STREAM = 0x7FFFFFFF


cdef inline Py_ssize_t _frame(Text at, Py_ssize_t size, int kind, uint64_t* number, int* flags) noexcept:
    """Return the size of the payload of a frame, and set *number* and *flags*; -1 for another frame."""
    if size < _HEAD_BYTES or at[3] != kind:
        return -1
    flags[0] = at[4]
    number[0] = <uint64_t>at[5] << 24 | at[6] << 16 | at[7] << 8 | at[8]
    cdef Py_ssize_t length = at[0] << 16 | at[1] << 8 | at[2]
    return length if length <= size - _HEAD_BYTES else -1


def complete_stream(bytes data not None, Py_ssize_t at, Py_ssize_t max_block):
    """See `gateway.transports.http2.frames.complete_stream`."""
    cdef Text start = <Text>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t begin, stop, end, length, head
    cdef uint64_t number = 0, same = 0
    cdef int flags = 0
    cdef bytes block
    head = _frame(start + at, size - at, _HEADERS, &number, &flags)
    if not 0 < head <= max_block or flags != _END_HEADERS or not 0 < number <= _MAX_STREAM:
        return None
    begin = at + _HEAD_BYTES + head
    length = _frame(start + begin, size - begin, _DATA, &same, &flags)
    if length <= 0 or same != number:
        return None
    begin += _HEAD_BYTES
    stop = begin + length
    block = PyBytes_FromStringAndSize(<const char*>start + at + _HEAD_BYTES, head)
    if flags == _END_STREAM:
        return number, block, begin, stop, None, stop
    if flags:
        return None
    length = _frame(start + stop, size - stop, _HEADERS, &same, &flags)
    if not 0 <= length <= max_block or flags != (_END_HEADERS | _END_STREAM) or same != number:
        return None
    end = stop + _HEAD_BYTES + length
    return number, block, begin, stop, PyBytes_FromStringAndSize(<const char*>start + end - length, length), end


cdef inline char* _put_head(char* out, Py_ssize_t size, int kind, int flags, uint64_t number) noexcept:
    out[0], out[1], out[2] = <char>(size >> 16), <char>(size >> 8), <char>size
    out[3], out[4] = <char>kind, <char>flags
    out[5], out[6] = <char>(number >> 24), <char>(number >> 16)
    out[7], out[8] = <char>(number >> 8), <char>number
    return out + _HEAD_BYTES


cdef inline char* _put(char* out, bytes part) noexcept:
    memcpy(out, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return out + PyBytes_GET_SIZE(part)


cdef char* _put_content(char* out, buffers, Py_ssize_t size) except NULL:
    """Copy buffers of *size* bytes, and return the position after them."""
    cdef Py_ssize_t left = size
    cdef Py_ssize_t length
    cdef Py_buffer raw
    for buffer in buffers:
        if type(buffer) is bytes:
            length = PyBytes_GET_SIZE(<bytes>buffer)
            if length <= left:
                memcpy(out, PyBytes_AS_STRING(<bytes>buffer), length)
        else:
            PyObject_GetBuffer(buffer, &raw, PyBUF_SIMPLE)
            length = raw.len
            if length <= left:
                memcpy(out, raw.buf, length)
            PyBuffer_Release(&raw)
        left -= length  # once it is negative, nothing is copied
        out += length
    if left:
        raise ValueError(f"the content has {size - left} bytes, {size} are announced")
    return out


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


# ---- gRPC: metadata (transports/grpc/headers.py)

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
    at[0] = <Text>PyUnicode_DATA(value)
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
    cdef Py_ssize_t count, index, each, key_size, value_size
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
        for each in range(value_size):
            if not c" " <= values[index][each] <= c"~":
                return _with_metadata(block, metadata)
        key_sizes[index], value_sizes[index] = key_size, value_size
        total += 3 + key_size + value_size
    joined = PyBytes_FromStringAndSize(NULL, total)
    out = _put(PyBytes_AS_STRING(joined), block)
    for index in range(count):
        out[0], out[1] = 0, key_sizes[index]  # a literal field that is not indexed
        memcpy(out + 2, keys[index], key_sizes[index])
        out += 2 + key_sizes[index]
        out[0] = value_sizes[index]
        memcpy(out + 1, values[index], value_sizes[index])
        out += 1 + value_sizes[index]
    return joined


cdef _with_metadata(bytes block, metadata):
    from gateway.accelerator import PYTHON_VERSIONS

    return PYTHON_VERSIONS["with_metadata"](block, metadata)


# ---- HTTP/1: responses (transports/http/response_writer.py)

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
    cdef Py_ssize_t id_size, index
    cdef Py_ssize_t total = PyBytes_GET_SIZE(first) + PyBytes_GET_SIZE(fields) + PyBytes_GET_SIZE(end)
    cdef bytes joined
    cdef char* out
    id_size = _short_text(request_id, &text)
    for index in range(id_size):
        if not c" " <= text[index] <= c"~":
            id_size = -1
            break
    if id_size < 0 or content < 0:
        return _join_response(first, fields, request_id, varies, length, end, body)
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
        out = _put(out, _REQUEST_ID)
        memcpy(out, text, id_size)
        out = _put(out + id_size, _LINE_END)
    if varies:
        out = _put(out, _VARIES)
    if length >= 0:
        out = _put(out, _LENGTH)
        memcpy(out, digit, digits + _WIDEST - digit)
        out = _put(out + (digits + _WIDEST - digit), _LINE_END)
    _put_content(_put(out, end), body, content)
    return joined


cdef _join_response(first, fields, request_id, varies, length, end, body):
    from gateway.accelerator import PYTHON_VERSIONS

    return PYTHON_VERSIONS["join_response"](first, fields, request_id, varies, length, end, body)
