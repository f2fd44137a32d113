# Lists of numbers of JSON: protocols/oip/json/elements.py and write.py,
# policies/complete/untyped.py.

cdef double _POWERS[23]
cdef double _power = 1
for _each in range(23):
    _POWERS[_each] = _power  # exact up to 10 ** 22
    _power *= 10

cdef uint64_t _EXACT = 1 << 53

cdef enum:
    _FEW_NUMBERS = 512  # numbers that are written here
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

    cdef bint _read(self, Py_ssize_t count, Text at, Py_ssize_t length, char* out) noexcept:
        """Read a list of short numbers; return whether it is one of *count*."""
        cdef Text end = at + length
        cdef Py_ssize_t index = 0
        if at[0] != c'[':
            return False
        while index < count:
            at += 1
            while at[0] == c' ':
                at += 1
            at = _read_number(self, at, out)
            if at is NULL:
                return False
            out += self._size
            index += 1
            while at[0] == c' ':
                at += 1
            if at[0] != (c',' if index < count else c']'):
                return False
        return at + 1 == end


cdef char* _put_integers(_Numbers kind, Py_ssize_t count, char* end, const char* at) noexcept:
    """Write a list of integers as JSON and return the end of the text."""
    cdef char digits[_WIDEST]
    cdef int used
    cdef uint64_t left
    cdef int64_t value
    cdef Py_ssize_t index
    for index in range(count):
        end[0] = c',' if index else c'['
        end += 1
        value = 0
        memcpy(&value, at, kind._size)
        at += kind._size
        if kind._least and kind._size < 8:
            value = (value ^ (kind._most + 1)) - (kind._most + 1)  # extend the sign
        left = <uint64_t>value
        if kind._least and value < 0:
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


cdef inline Text _read_number(_Numbers kind, Text at, char* out) noexcept:
    """Read a short number, and return its end; NULL for another one, or for no number."""
    cdef bint negative = at[0] == c'-'
    cdef bint is_float = False
    cdef uint64_t value = 0
    cdef int64_t signed
    cdef int sign
    cdef int fraction = 0
    cdef int exponent = 0
    cdef double number
    cdef double other
    cdef float single
    cdef Text first
    at += negative
    first = at
    while c'0' <= at[0] <= c'9':
        value = value * 10 + (at[0] - c'0')
        at += 1
    # More digits are rare, and the value has overflowed.
    if at == first or at - first > 18 or (first[0] == c'0' and at - first > 1):
        return NULL
    if kind._code != c'f' and kind._code != c'd':
        signed = -<int64_t>value if negative else <int64_t>value
        if not kind._least <= signed <= kind._most:
            return NULL
        memcpy(out, &signed, kind._size)
        return at
    if at[0] == c'.':
        is_float = True
        at += 1
        while c'0' <= at[0] <= c'9':
            value = value * 10 + (at[0] - c'0')
            fraction += 1
            at += 1
        if not fraction or at - first > 19:
            return NULL
    if at[0] == c'e' or at[0] == c'E':
        is_float = True
        at += 1
        sign = -1 if at[0] == c'-' else 1
        if at[0] == c'-' or at[0] == c'+':
            at += 1
        if not c'0' <= at[0] <= c'9':
            return NULL
        while c'0' <= at[0] <= c'9':
            exponent = exponent * 10 + (at[0] - c'0')
            if exponent > 99:
                return NULL
            at += 1
        exponent *= sign
    exponent -= fraction
    # Value and power of ten are exact, so the result is rounded once.
    if value > _EXACT or not -22 <= exponent <= 22:
        return NULL
    number = <double>value
    number = number / _POWERS[-exponent] if exponent < 0 else number * _POWERS[exponent]
    if negative and (is_float or value):  # the integer -0 is 0
        number = -number
    if kind._code == c'd':
        memcpy(out, &number, 8)
    else:
        single = <float>number
        if <double>single != number:
            if not is_float:
                return NULL  # an integer that is rounded
            other = number + (number - <double>single)
            if <double><float>other == other:
                return NULL  # it lies between two values, or beside one that has fewer bits
        memcpy(out, &single, 4)
    return at


cdef class _NumberPacker(_Numbers):
    """Reads a list of numbers."""

    def __call__(self, bytes text not None):
        return self.pack(<Text>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef bytes pack(self, Text at, Py_ssize_t length):
        """Return the numbers in a text, which ends with a bracket."""
        cdef bytes raw
        if self._count > 0 and length and at[length - 1] == c']':
            raw = PyBytes_FromStringAndSize(NULL, self._count * self._size)
            if self._read(self._count, at, length, PyBytes_AS_STRING(raw)):
                return raw
        return self._in_python(PyBytes_FromStringAndSize(<const char*>at, length))


cdef class _IntegerWriter(_Numbers):
    """Writes integers."""

    def __call__(self, view):
        cdef Py_buffer raw
        cdef char out[_FEW_NUMBERS * _WIDEST + 2]
        if not self._is_native():
            return self._in_python(view)
        PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
        try:
            if raw.len == self._count * self._size:
                return PyBytes_FromStringAndSize(out, _put_integers(self, self._count, out, <const char*>raw.buf) - out)
        finally:
            PyBuffer_Release(&raw)
        return self._in_python(view)

    cdef bint _is_native(self) noexcept:
        """Return whether `_put_integers` writes these integers."""
        return 0 < self._count <= _FEW_NUMBERS and self._most != 0


def number_packer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.elements.number_packer`."""
    return _NumberPacker("number_packer", code, count)


def integer_writer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.write.integer_writer`."""
    return _IntegerWriter("integer_writer", code, count)


cdef enum:
    _LIST_TEXT = 1 << 13  # the longest text of nested lists that is read here
    _MOST_RANK = 8

_KINDS = {code: _Numbers("", code, 1) for code in "bBhHiIqQfd"}
_SHAPES = {}
"""Shapes of tensors: parts of messages are found by their identity."""


cdef Text _read_lists(_Numbers kind, Text at, Text end, Py_ssize_t* dims, int rank, char** out) noexcept:
    """Read lists of short numbers, nested *rank* deep, and return their end; NULL for others.

    A negative one of *dims* becomes the length of the first list of its depth.
    """
    cdef Py_ssize_t count = 0
    if at == end or at[0] != c'[':
        return NULL
    while True:
        at += 1
        while at < end and at[0] == c' ':
            at += 1
        if rank > 1:
            at = _read_lists(kind, at, end, dims + 1, rank - 1, out)
        elif at < end:
            at = _read_number(kind, at, out[0])
            out[0] += kind._size
        if at is NULL or at >= end:
            return NULL
        count += 1
        while at < end and at[0] == c' ':
            at += 1
        if at == end or (at[0] != c',' and at[0] != c']'):
            return NULL
        if at[0] == c']':
            break
    if dims[0] < 0:
        dims[0] = count
    return at + 1 if dims[0] == count else NULL


def packed_numbers(bytes text not None, str code not None, tuple dims not None):
    """See `gateway.policies.complete.untyped.packed_numbers`."""
    cdef char out[_LIST_TEXT * 4]  # a number takes two bytes of text and becomes eight at most
    cdef char* used = out
    cdef Py_ssize_t sizes[_MOST_RANK]
    cdef Text at = <Text>PyBytes_AS_STRING(text)
    cdef Text end = at + PyBytes_GET_SIZE(text)
    cdef int rank = len(dims)
    cdef int index
    cdef bint is_declared = True
    kind = _KINDS.get(code)
    if kind is not None and 0 < rank <= _MOST_RANK and end - at <= _LIST_TEXT:
        for index in range(rank):
            sizes[index] = dims[index]
            is_declared = is_declared and sizes[index] >= 0
        if _read_lists(<_Numbers>kind, at, end, sizes, rank, &used) == end:
            packed = PyBytes_FromStringAndSize(out, used - out)
            return packed, dims if is_declared else _shape(sizes, rank)
    return _python_version("packed_numbers")(text, code, dims)


cdef tuple _tuple(Py_ssize_t* sizes, int rank):
    cdef tuple shape = PyTuple_New(rank)
    cdef object size
    cdef int index
    for index in range(rank):
        size = sizes[index]
        Py_INCREF(size)
        PyTuple_SET_ITEM(shape, index, size)
    return shape


cdef tuple _shape(Py_ssize_t* sizes, int rank):
    cdef tuple shape = _tuple(sizes, rank)
    found = (<dict>_SHAPES).get(shape)
    if found is None:
        if len(<dict>_SHAPES) == 1024:
            (<dict>_SHAPES).clear()
        found = _SHAPES[shape] = shape
    return <tuple>found
