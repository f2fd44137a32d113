# The parts of messages that describe a tensor: protocols/oip/grpc/encode.py, protocols/oip/json/write.py.

cdef enum:
    _PART_NAME = 256  # a longer name is left to Python
    _PART_BYTES = _PART_NAME + 256  # enough for a description


cdef inline char* _put_varint(char* out, Py_ssize_t value) noexcept:
    """Write a number that is not negative, and return the end."""
    while value >= 0x80:
        out[0] = <char>(value & 0x7F | 0x80)
        value >>= 7
        out += 1
    out[0] = <char>value
    return out + 1


cdef inline char* _put_decimal(char* out, Py_ssize_t value) noexcept:
    """Write a number that is not negative as text, and return the end."""
    cdef char digits[_WIDEST]
    cdef int used = 0
    while value >= 10:
        digits[used] = <char>(c'0' + value % 10)
        used += 1
        value //= 10
    out[0] = <char>(c'0' + value)
    out += 1
    while used:
        used -= 1
        out[0] = digits[used]
        out += 1
    return out


cdef class _FieldParts:
    """Writes the fields of tensors in messages of protobuf."""

    cdef bytes _raw_key
    cdef object _unknown, _python

    def __cinit__(self, bytes raw_key not None, unknown, python):
        self._raw_key, self._unknown = raw_key, unknown
        self._python = python(raw_key, unknown)

    def parts(self, name, datatype, shape):
        cdef _Datatypes datatypes = _of_datatypes()
        cdef int at = -1 if datatype is None else datatypes._index(datatype)
        cdef Py_ssize_t size = -1
        cdef Py_ssize_t length, index
        cdef char inner[_PART_BYTES]
        cdef char dims[_MOST_RANK * 5]
        cdef char head[16]
        cdef char* end = inner
        cdef char* stop = dims
        cdef char* field_end
        if type(name) is str and PyUnicode_IS_COMPACT_ASCII(name) and at >= 0 and type(shape) is tuple:
            length = PyUnicode_GET_LENGTH(name)
            if datatype is not self._unknown and datatypes._sizes[at] and length <= _PART_NAME:
                size = _size_of(<tuple>shape, datatypes._sizes[at])
        if size < 0:
            return self._python(name, datatype, shape)
        end[0] = 1 << 3 | 2
        end = _put_varint(end + 1, length)
        end = _put_text(end, <const char*>PyUnicode_1BYTE_DATA(name), length)
        end[0], end[1] = 2 << 3 | 2, <char>datatypes._lengths[at]
        end = _put_text(end + 2, datatypes._names + at * _DATATYPE_NAME, datatypes._lengths[at])
        if <tuple>shape:
            for each in <tuple>shape:
                stop = _put_varint(stop, each)
            end[0], end[1] = 3 << 3 | 2, <char>(stop - dims)
            end = _put_text(end + 2, dims, stop - dims)
        length = end - inner
        head[0] = 5 << 3 | 2
        field_end = _put_varint(head + 1, length)
        field = PyBytes_FromStringAndSize(NULL, field_end - head + length)
        _put_text(_put_text(PyBytes_AS_STRING(field), head, field_end - head), inner, length)
        memcpy(head, PyBytes_AS_STRING(self._raw_key), PyBytes_GET_SIZE(self._raw_key))
        stop = _put_varint(head + PyBytes_GET_SIZE(self._raw_key), size)
        return field, PyBytes_FromStringAndSize(head, stop - head), size, datatypes._dtypes[at]


def field_parts(raw_key, unknown):
    """See `gateway.protocols.oip.grpc.encode.field_parts`."""
    return _FieldParts(raw_key, unknown, _python_version("field_parts")).parts


def binary_part(kind, name, datatype, shape):
    """See `gateway.protocols.oip.json.write.binary_part`."""
    cdef _Datatypes datatypes = _of_datatypes()
    cdef int at = -1 if datatype is None else datatypes._index(datatype)
    cdef Py_ssize_t size = -1
    cdef char out[_PART_BYTES]
    cdef char* end = out
    cdef bint is_input = kind == "input"
    if at >= 0 and type(name) is str and type(shape) is tuple and datatypes._sizes[at]:
        if 0 < PyUnicode_GET_LENGTH(name) <= _PART_NAME and _is_plain(name):
            size = _size_of(<tuple>shape, datatypes._sizes[at])
    if size <= 0:
        return _python_version("binary_part")(kind, name, datatype, shape)
    end = _put_text(end, b'{"name":"', 9)
    end = _put_text(end, <const char*>PyUnicode_1BYTE_DATA(name), PyUnicode_GET_LENGTH(name))
    end = _put_text(end, b'"', 1)
    if is_input:
        end = _put_json_shape(end, <tuple>shape)
    end = _put_text(end, b',"datatype":"', 13)
    end = _put_text(end, datatypes._names + at * _DATATYPE_NAME, datatypes._lengths[at])
    end = _put_text(end, b'"', 1)
    if not is_input:
        end = _put_json_shape(end, <tuple>shape)
    end = _put_text(end, b',"parameters":{"binary_data_size":', 34)
    end = _put_text(_put_decimal(end, size), b"}}", 2)
    return PyBytes_FromStringAndSize(out, end - out), size


cdef char* _put_json_shape(char* end, tuple shape) except NULL:
    """Write the member with a plain shape, and return the end."""
    cdef bint is_first = True
    end = _put_text(end, b',"shape":[', 10)
    for each in shape:
        if not is_first:
            end[0] = c','
            end += 1
        is_first = False
        end = _put_decimal(end, each)
    end[0] = c']'
    return end + 1
