# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True
"""The compiled versions of hot functions, in typed code over raw bytes.

`gateway/accelerator.py` decides whether they are used. Each has the name, the results and the errors
of a Python function that is decorated with `accelerated`. What is unusual is left to that function.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_Size
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from struct import error as StructError
from types import MemberDescriptorType

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    const unsigned char* PyUnicode_1BYTE_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)

ctypedef const unsigned char* Text


cdef object _python_version(str name):
    """Return the Python version of a function."""
    from gateway.accelerator import PYTHON_VERSIONS  # which imports this module

    return PYTHON_VERSIONS[name]


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
    cdef Text start, stop
    cdef char* out = <char*>malloc(size + 1)
    cdef char* used = out
    cdef list holes = []
    if out is NULL:
        raise MemoryError
    try:
        while True:
            stop = _copy_to_hole(&used, at, end, &start)
            if stop is NULL:
                break
            holes.append(PyBytes_FromStringAndSize(<const char*>start, stop - start))
            at = stop
        if not holes:
            return text, holes
        return PyBytes_FromStringAndSize(out, used - out), holes
    finally:
        free(out)


cdef Text _copy_to_hole(char** out, Text at, Text end, Text* start) noexcept:
    """Copy the text before the next hole, and then a byte of 0; return the end of this hole.

    Set *start* to its start.  Where there is no hole, copy the rest of the text and return NULL.
    """
    cdef Text stop = NULL
    cdef Text quote = <Text>memchr(at, c'"', end - at)
    # Up to the first hole, and between holes, the text is copied with its quotes.
    while quote is not NULL:
        stop = _hole(quote, end, start)
        if stop is not NULL:
            break
        quote = <Text>memchr(quote + 1, c'"', end - quote - 1)
    cdef Py_ssize_t size = (end if quote is NULL else quote) - at
    memcpy(out[0], at, size)
    out[0] += size
    if quote is not NULL:
        out[0][0] = 0
        out[0] += 1
    return stop


cdef Text _hole(Text quote, Text end, Text* start) noexcept:
    """Return the end of the hole whose key is at *quote*, and set *start*; NULL if there is none."""
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

    What they do not read or write themselves, the Python version of the function *name* does.
    """

    cdef object _python
    cdef str _name, _format
    cdef char _code
    cdef Py_ssize_t _expected, _count, _size
    cdef int64_t _least, _most

    def __cinit__(self, str name, str code, Py_ssize_t count):
        self._name, self._format, self._expected = name, code, count
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

    cdef object _in_python(self, argument):
        if self._python is None:  # most numbers never need it
            self._python = _python_version(self._name)(self._format, self._expected)
        return self._python(argument)

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

    cdef char* _put(self, char* end, const char* at) noexcept:
        """Write integers as JSON and return the end of the text."""
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
            if self._least and value < 0:
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
        return end + 1


cdef class _NumberPacker(_Numbers):
    """Reads a list of numbers."""

    def __call__(self, bytes text not None):
        return self.pack(<Text>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef bytes pack(self, Text at, Py_ssize_t length):
        """Return the numbers in a text, which ends with a bracket."""
        cdef bytes raw
        if self._count > 0 and length and at[length - 1] == c']':
            raw = PyBytes_FromStringAndSize(NULL, self._count * self._size)
            if self._read(at, length, PyBytes_AS_STRING(raw)):
                return raw
        return self._in_python(PyBytes_FromStringAndSize(<const char*>at, length))


cdef class _IntegerWriter(_Numbers):
    """Writes integers."""

    def __call__(self, view):
        cdef Py_buffer raw
        cdef char out[_FEW * _WIDEST + 2]
        if not self._is_native():
            return self._in_python(view)
        PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
        try:
            if raw.len == self._count * self._size:
                return PyBytes_FromStringAndSize(out, self._put(out, <const char*>raw.buf) - out)
        finally:
            PyBuffer_Release(&raw)
        return self._in_python(view)

    cdef bint _is_native(self) noexcept:
        """Return whether `_put` writes these integers."""
        return 0 < self._count <= _FEW and self._most != 0


def number_packer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.elements.number_packer`."""
    return _NumberPacker("number_packer", code, count)


def integer_writer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.write.integer_writer`."""
    return _IntegerWriter("integer_writer", code, count)


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


# ---- Open Inference: messages from cached parts (protocols/oip/grpc/encode.py, http/infer_response.py)

cdef extern from *:
    """
    #include "structmember.h"
    """
    ctypedef struct PyObject
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member


cdef Py_ssize_t _offset(struct, str name) except -1:
    """Return where the instances of a class with slots, such as a Struct, have the field *name*."""
    member = getattr(struct, name)
    if type(member) is not MemberDescriptorType:
        raise TypeError(f"{struct} has no slot {name!r}")
    return (<PyMemberDescrObject*><void*>member).d_member.offset


cdef inline object _field(instance, Py_ssize_t offset):
    """Return the field of an instance; a tenth of the instructions of an attribute."""
    cdef PyObject* value = (<PyObject**>(<char*><void*>instance + offset))[0]
    if value is NULL:
        raise AttributeError("a field has no value")
    return <object>value


cdef enum:
    _ENTRIES = 64  # a power of two
    _MOST_TENSORS = 16
    _RESPONSE_BYTES = 1 << 14
    _TEMPLATE_TEXT = 1 << 13
    _MOST_HOLES = 32
    _TAIL = 4096  # `TAIL_BYTES` of wire/protobuf.py
    _ID_BYTES = 127  # whose length is a varint of one byte
    _ID_KEY = 3 << 3 | 2


cdef class _Parts:
    """The parts of messages that depend on a model, or on the description of a tensor.

    Messages of one form usually share the objects of their descriptions.  So the parts are found by
    identity first, and only then by the functions, which cache them by value.
    """

    cdef object _model_part, _tensor_part
    cdef tuple _last
    cdef object _tensor, _raw_data, _array_data
    cdef Py_ssize_t _name, _datatype, _shape, _data, _parameters, _view, _array
    cdef list _found

    def __cinit__(self, model_part, tensor_part, *_others):
        from gateway.ir.data import ArrayData, RawData
        from gateway.ir.tensor import Tensor

        self._model_part, self._tensor_part = model_part, tensor_part
        self._tensor, self._raw_data, self._array_data = Tensor, RawData, ArrayData
        self._array = _offset(ArrayData, "array")
        self._name, self._datatype = _offset(Tensor, "name"), _offset(Tensor, "datatype")
        self._shape, self._data = _offset(Tensor, "shape"), _offset(Tensor, "data")
        self._parameters, self._view = _offset(Tensor, "parameters"), _offset(RawData, "view")
        self._found = [None] * _ENTRIES

    cdef bytes _of_model(self, model):
        cdef tuple last = self._last
        if last is None or last[0] is not model:
            last = model, self._model_part(model)
            self._last = last
        return <bytes>last[1]

    cdef object _of_plain(self, tensor):
        """Return the part of a tensor without parameters; None for one with them."""
        if type(tensor) is not self._tensor:
            return None
        parameters = _field(tensor, self._parameters)
        if type(parameters) is not dict or <dict>parameters:
            return None
        name, shape = _field(tensor, self._name), _field(tensor, self._shape)
        datatype = _field(tensor, self._datatype)
        cdef Py_ssize_t at = (<Py_ssize_t><void*>name >> 4 ^ <Py_ssize_t><void*>shape >> 5) & (_ENTRIES - 1)
        cdef object entry = self._found[at]
        if (
            entry is None
            or (<tuple>entry)[0] is not name
            or (<tuple>entry)[1] is not datatype
            or (<tuple>entry)[2] is not shape
        ):
            entry = name, datatype, shape, self._tensor_part(name, datatype, shape)
            self._found[at] = entry
        return (<tuple>entry)[3]

    cdef object _raw(self, tensor, dtype):
        """Return raw data, or a copy of an array of *dtype*; None for other data."""
        data = _field(tensor, self._data)
        if type(data) is self._raw_data:
            return _field(data, self._view)
        if type(data) is not self._array_data:
            return None
        array = _field(data, self._array)
        return array.tobytes() if array.dtype is dtype else None


cdef class _MessageWriter(_Parts):
    """Writes messages of protobuf; what is unusual, *python* does."""

    cdef object _python, _output_part
    cdef object _output
    cdef Py_ssize_t _output_name, _classes, _output_parameters, _shared

    def __cinit__(self, model_part, tensor_part, output_part, python):
        from gateway.ir.tensor import RequestedOutput

        self._output_part = output_part
        self._python = python(model_part, tensor_part, output_part)
        self._output, self._output_name = RequestedOutput, _offset(RequestedOutput, "name")
        self._classes, self._shared = _offset(RequestedOutput, "classes"), _offset(RequestedOutput, "shared")
        self._output_parameters = _offset(RequestedOutput, "parameters")

    def write(self, model, request_id, tensors, outputs=()):
        whole = self._whole(model, request_id, tensors, outputs)
        return self._python(model, request_id, tensors, outputs) if whole is None else (whole,)

    cdef bytes _whole(self, model, request_id, tensors, outputs):
        """Write a small message; return None for another one."""
        if (
            type(request_id) is not str
            or not PyUnicode_IS_COMPACT_ASCII(request_id)
            or PyUnicode_GET_LENGTH(request_id) > _ID_BYTES
            or type(tensors) is not tuple
            or len(<tuple>tensors) > _MOST_TENSORS
        ):
            return None
        cdef Py_ssize_t sizes[_MOST_TENSORS]
        cdef Py_ssize_t id_bytes = PyUnicode_GET_LENGTH(request_id)
        cdef Py_ssize_t total, size, index
        cdef list parts = []
        cdef list fields
        cdef bytes whole, part
        cdef tuple found
        cdef char* out
        cdef Py_buffer raw
        cdef bint fits
        try:
            part = self._of_model(model)
            fields = [self._output_field(output) for output in outputs]
            total = len(part) + (2 + id_bytes if id_bytes else 0)
            for output in fields:
                if output is None:
                    return None
                total += len(<bytes>output)
            for index in range(len(<tuple>tensors)):
                found = self._of_plain((<tuple>tensors)[index])
                if found is None:
                    return None
                size = found[2]
                if not 0 <= size <= _TAIL:
                    return None
                sizes[index] = size
                total += len(<bytes>found[0]) + len(<bytes>found[1]) + size
                parts.append(found)
        except ValueError:  # the Python version finds it, too
            return None
        whole = PyBytes_FromStringAndSize(NULL, total)
        out = _put(PyBytes_AS_STRING(whole), part)
        if id_bytes:
            out[0], out[1] = _ID_KEY, <char>id_bytes
            memcpy(out + 2, PyUnicode_1BYTE_DATA(request_id), id_bytes)
            out += 2 + id_bytes
        for index in range(len(parts)):
            out = _put(out, <bytes>(<tuple>parts[index])[0])
        for output in fields:
            out = _put(out, <bytes>output)
        for index in range(len(parts)):
            out = _put(out, <bytes>(<tuple>parts[index])[1])
            data = self._raw((<tuple>tensors)[index], (<tuple>parts[index])[3])
            if data is None:
                return None
            PyObject_GetBuffer(data, &raw, PyBUF_SIMPLE)
            fits = raw.len == sizes[index]
            if fits:
                memcpy(out, raw.buf, raw.len)
                out += raw.len
            PyBuffer_Release(&raw)
            if not fits:
                return None
        return whole

    cdef object _output_field(self, output):
        """Return the field of an output that has only a name; None for another one."""
        if type(output) is not self._output or _field(output, self._shared) is not None:
            return None
        parameters = _field(output, self._output_parameters)
        if type(parameters) is not dict or <dict>parameters or _field(output, self._classes) != 0:
            return None
        return self._output_part(_field(output, self._output_name))


def message_writer(model_field, tensor_parts, output_field):
    """See `gateway.protocols.oip.grpc.encode.message_writer`."""
    python = _python_version("message_writer")
    return _MessageWriter(model_field, tensor_parts, output_field, python).write


cdef class _ResponseWriter(_Parts):
    """Writes JSON responses whose outputs have few integers; what is unusual, *python* does."""

    cdef object _python

    def __cinit__(self, model_part, tensor_part, python):
        self._python = python(model_part, tensor_part)

    def write(self, model, request_id, outputs):
        cdef char out[_RESPONSE_BYTES]
        cdef char* end = out
        cdef Py_ssize_t left, index, size
        cdef bytes part
        cdef tuple found
        cdef _IntegerWriter integers
        cdef Py_buffer raw
        if type(request_id) is not str or type(outputs) is not tuple:
            return self._python(model, request_id, outputs)
        part = self._of_model(model)
        size = PyUnicode_GET_LENGTH(request_id)
        left = _RESPONSE_BYTES - size - len(part) - 32  # which is enough for the names of members
        if left < 0 or not _is_plain(request_id):
            return self._python(model, request_id, outputs)
        if size:
            end = _put_text(end, b'{"id":"', 7)
            end = _put_text(end, <const char*>PyUnicode_1BYTE_DATA(request_id), size)
            end = _put_text(end, b'",', 2)
        else:
            end[0] = c'{'
            end += 1
        end = _put(end, part)
        end = _put_text(end, b'"outputs":[', 11)
        for index in range(len(<tuple>outputs)):
            found = self._of_plain((<tuple>outputs)[index])
            if found is None:
                return None
            data = self._raw((<tuple>outputs)[index], found[3])
            if data is None:
                return None
            if type(found[2]) is not _IntegerWriter:
                return self._python(model, request_id, outputs)
            part, integers = <bytes>found[0], <_IntegerWriter>found[2]
            left -= len(part) + integers._count * _WIDEST + 3
            if left < 0 or not integers._is_native():
                return self._python(model, request_id, outputs)
            if index:
                end[0] = c','
                end += 1
            end = _put(end, part)
            PyObject_GetBuffer(data, &raw, PyBUF_SIMPLE)
            size = raw.len
            if size == integers._count * integers._size:
                end = integers._put(end, <const char*>raw.buf)
            PyBuffer_Release(&raw)
            if size != integers._count * integers._size:
                return None
            end[0] = c'}'
            end += 1
        end = _put_text(end, b']}', 2)
        return PyBytes_FromStringAndSize(out, end - out)


cdef inline char* _put_text(char* out, const char* text, Py_ssize_t size) noexcept:
    memcpy(out, text, size)
    return out + size


cdef bint _is_plain(text) noexcept:
    """Return whether a text stands in JSON as it is."""
    cdef Text at
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(text)
    if not PyUnicode_IS_COMPACT_ASCII(text):
        return False
    at = PyUnicode_1BYTE_DATA(text)
    return _is_printable(at, size) and not memchr(at, c'"', size) and not memchr(at, c'\\', size)


cdef bint _is_printable(Text at, Py_ssize_t size) noexcept:
    """Return whether a text is printable ASCII."""
    cdef Py_ssize_t index
    for index in range(size):
        if not 0x20 <= at[index] < 0x7F:
            return False
    return True


def response_writer(model_text, integers):
    """See `gateway.protocols.oip.http.infer_response.response_writer`."""
    return _ResponseWriter(model_text, integers, _python_version("response_writer")).write


cdef class _TemplateParser:
    """Reads messages by their templates; what is unusual, *python* does."""

    cdef object _template_of, _python, _tensor, _raw_data
    cdef Py_ssize_t _most_bytes, _id_bytes

    def __cinit__(self, template_of, Py_ssize_t most_bytes, Py_ssize_t id_bytes, python):
        from gateway.ir.data import RawData
        from gateway.ir.tensor import Tensor

        self._template_of, self._most_bytes, self._id_bytes = template_of, most_bytes, id_bytes
        self._python = python(template_of, most_bytes, id_bytes)
        self._tensor, self._raw_data = Tensor, RawData

    def parse(self, body, Py_ssize_t end):
        cdef Py_buffer raw
        if end > self._most_bytes:
            return None, None
        found = None
        PyObject_GetBuffer(body, &raw, PyBUF_SIMPLE)
        try:
            if 0 <= end <= raw.len and end <= _TEMPLATE_TEXT:
                found = self._parse(body, <Text>raw.buf, end, raw.len)
        finally:
            PyBuffer_Release(&raw)
        return self._python(body, end) if found is None else found

    cdef tuple _parse(self, body, Text text, Py_ssize_t end, Py_ssize_t size):
        """Parse a message of not too many holes."""
        cdef char out[_TEMPLATE_TEXT]
        cdef char* used = out
        cdef Text starts[_MOST_HOLES + 1]
        cdef Text stops[_MOST_HOLES + 1]
        cdef Text at = text
        cdef int count = 0
        cdef object template = None
        cdef object holes = ()
        cdef bytes key
        if end < size:
            key = PyBytes_FromStringAndSize(<const char*>text, end)
            template = self._template_of(key)
        if template is None:
            while True:
                at = _copy_to_hole(&used, at, text + end, &starts[count])
                if at is NULL:
                    break
                if count == _MOST_HOLES:
                    return None
                stops[count] = at
                count += 1
            key = PyBytes_FromStringAndSize(out, used - out)
            template = self._template_of(key)
            holes = None
        if template is not None and count == (<tuple>template)[3] and size - end == (<tuple>template)[4]:
            found = self._fill(<tuple>template, starts, stops, body, end)
            if found is not None:
                return found, None
        if holes is None:
            holes = [_between(starts[index], stops[index]) for index in range(count)]
        return None, (key, holes, body[end:])

    cdef tuple _fill(self, tuple template, Text* starts, Text* stops, body, Py_ssize_t end):
        """Fill a template; return None where the content of a hole does not fit."""
        cdef Text start, stop
        request_id = template[1]
        if template[2] is not None:
            start, stop = starts[<int>template[2]], stops[<int>template[2]]
            if start[0] != c'"' or stop - start - 2 > self._id_bytes:
                return None
            request_id = PyUnicode_DecodeASCII(<const char*>start + 1, stop - start - 2, NULL)
        cdef list tensors = []
        for slot in <tuple>template[5]:
            data = self._data(<tuple>slot, starts, stops, body, end)
            if data is None:
                return None
            data = self._raw_data(data)
            tensors.append(
                self._tensor((<tuple>slot)[0], (<tuple>slot)[1], (<tuple>slot)[2], data, (<tuple>slot)[3])
            )
        return template[0], request_id, tuple(tensors)

    cdef object _data(self, tuple slot, Text* starts, Text* stops, body, Py_ssize_t end):
        """Return the raw data of a slot; None where it does not fit."""
        cdef Py_ssize_t start = slot[5]
        cdef Py_ssize_t length
        pack = slot[4]
        if pack is None:
            return body[end + start : end + <Py_ssize_t>slot[6]]
        try:
            if type(pack) is _NumberPacker:
                length = stops[start] - starts[start]
                return memoryview((<_NumberPacker>pack).pack(starts[start], length))
            return memoryview(pack(_between(starts[start], stops[start])))
        except (ValueError, OverflowError, StructError):
            return None


cdef inline bytes _between(Text start, Text stop):
    return PyBytes_FromStringAndSize(<const char*>start, stop - start)


def template_parser(template_of, Py_ssize_t most_bytes, Py_ssize_t id_bytes):
    """See `gateway.protocols.oip.json.templates.template_parser`."""
    python = _python_version("template_parser")
    return _TemplateParser(template_of, most_bytes, id_bytes, python).parse


cdef class _BinaryWriter(_Parts):
    """Writes the objects of raw tensors whose bytes follow the JSON."""

    def write(self, tensors):
        cdef Py_ssize_t total = 0
        cdef list parts = []
        cdef list views = []
        cdef bytes text
        cdef char* out
        for tensor in tensors:
            part = self._of_plain(tensor)
            if part is None:
                return None
            data = _field(tensor, self._data)
            if type(data) is not self._raw_data:
                return None
            view = _field(data, self._view)
            if PyObject_Size(view) != <Py_ssize_t>(<tuple>part)[1]:
                return None
            total += len(<bytes>(<tuple>part)[0]) + 1
            parts.append((<tuple>part)[0])
            views.append(view)
        if not parts:
            return None
        text = PyBytes_FromStringAndSize(NULL, total - 1)
        out = PyBytes_AS_STRING(text)
        for index in range(len(parts)):
            if index:
                out[0] = c','
                out += 1
            out = _put(out, <bytes>parts[index])
        return text, views


def binary_writer(part_of):
    """See `gateway.protocols.oip.json.write.binary_writer`."""
    return _BinaryWriter(None, part_of).write


# ---- Messages of protobuf with cached values (wire/message_cache.py)

cdef class _LayoutFinder:
    """Finds cached values of messages that repeat around their holes."""

    cdef dict _layouts

    def __cinit__(self, dict layouts not None):
        self._layouts = layouts

    def get(self, view):
        cdef Py_buffer raw
        cdef object value = None
        cdef tuple layout
        PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
        try:
            layouts = self._layouts.get(raw.len)
            if layouts is not None:
                for each in <list>layouts:
                    layout = <tuple>each
                    value = (<dict>layout[3]).get(_around(<tuple>layout[0], <Text>raw.buf, raw.len))
                    if value is not None:
                        return value, layout[2](view)
        finally:
            PyBuffer_Release(&raw)
        return None


cdef bytes _around(tuple holes, Text text, Py_ssize_t size):
    """Return the bytes of a message around its holes."""
    cdef Py_ssize_t left = size
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t start, stop
    for hole in holes:
        start, stop = (<slice>hole).start, (<slice>hole).stop
        if not at <= start <= stop <= size:
            raise ValueError(f"hole {hole} is not after the others in a message of {size} bytes")
        left -= stop - start
        at = stop
    cdef bytes around = PyBytes_FromStringAndSize(NULL, left)
    cdef char* out = PyBytes_AS_STRING(around)
    at = 0
    for hole in holes:
        start = (<slice>hole).start
        out = _put_text(out, <const char*>text + at, start - at)
        at = (<slice>hole).stop
    _put_text(out, <const char*>text + at, size - at)
    return around


def layout_finder(layouts):
    """See `gateway.wire.message_cache.layout_finder`."""
    return _LayoutFinder(layouts).get


# ---- Open Inference: cached gRPC messages (protocols/oip/grpc/decode.py)

cdef class _PlainReader:
    """Reads cached messages whose tensors need no check."""

    cdef object _cached, _tensor, _raw_data
    cdef Py_ssize_t _id_bytes

    def __cinit__(self, cached, Py_ssize_t id_bytes):
        from gateway.ir.data import RawData
        from gateway.ir.tensor import Tensor

        self._cached, self._id_bytes = cached, id_bytes
        self._tensor, self._raw_data = Tensor, RawData

    def read(self, view):
        cdef Py_buffer raw
        cdef Py_ssize_t index
        found = self._cached(view)
        if found is None:
            return None
        cdef tuple message = <tuple?>(<tuple?>found)[0]
        cdef tuple raws = <tuple?>(<tuple?>found)[1]
        cdef Py_ssize_t first = message[1]
        if message[2] is None:
            return None
        cdef tuple names, datatypes, shapes, parameters
        names, datatypes, shapes, parameters = message[2]
        if len(raws) - first != len(names):
            raise ValueError(f"message has {len(raws)} holes for {len(names)} tensors")
        request_id = ""
        if first:
            PyObject_GetBuffer(raws[0], &raw, PyBUF_SIMPLE)
            try:
                if raw.len > self._id_bytes or not _is_printable(<Text>raw.buf, raw.len):
                    return None
                request_id = PyUnicode_DecodeASCII(<const char*>raw.buf, raw.len, NULL)
            finally:
                PyBuffer_Release(&raw)
        cdef list tensors = []
        for index in range(len(names)):
            data = self._raw_data(raws[first + index])
            tensors.append(
                self._tensor(names[index], datatypes[index], shapes[index], data, parameters[index])
            )
        return message[0], request_id, tuple(tensors)


def plain_reader(cached, Py_ssize_t id_bytes):
    """See `gateway.protocols.oip.grpc.decode.plain_reader`."""
    return _PlainReader(cached, id_bytes).read
