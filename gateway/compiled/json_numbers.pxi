# Lists of numbers of JSON: protocols/oip/json/elements.py and write.py.

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
        cdef char out[_FEW_NUMBERS * _WIDEST + 2]
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
        return 0 < self._count <= _FEW_NUMBERS and self._most != 0


def number_packer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.elements.number_packer`."""
    return _NumberPacker("number_packer", code, count)


def integer_writer(str code not None, Py_ssize_t count):
    """See `gateway.protocols.oip.json.write.integer_writer`."""
    return _IntegerWriter("integer_writer", code, count)
