# Heads that repeat except for some values: transports/http1/head_template.py.

cdef enum:
    _TEXT_BYTES = 4096  # of the text of a head; a longer one is left to Python
    _MAX_SLOTS = 128
    _MAX_DIGITS = 15

cdef uint8_t _IN_NAME[256]
cdef uint8_t _IN_TARGET[256]
for _each in b"-!#$%&'*+.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
    _IN_NAME[_each] = 1
for _each in b"-._~%:@!$&'()*+,;=?/0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
    _IN_TARGET[_each] = 1

cdef inline object _ascii(Text at, Py_ssize_t size):
    """Return a text of characters that are known to be ASCII."""
    text = PyUnicode_New(size, 127)
    if size > 0:
        memcpy(<void*>PyUnicode_1BYTE_DATA(text), at, size)
    return text


cdef bint _is_value(Text at, Py_ssize_t size) noexcept:
    """Return whether a text is printable ASCII and tabs."""
    cdef Py_ssize_t index
    for index in range(_printable(at, size), size):
        if not 0x20 <= at[index] < 0x7F and at[index] != c"\t":
            return False
    return True


cdef inline Text _line_end(Text at, Text stop) noexcept:
    """Return where the next CR LF begins; *stop* without one."""
    while True:
        at = <Text>memchr(at, c"\r", stop - at)
        if at is NULL or at + 1 >= stop:
            return stop
        if at[1] == c"\n":
            return at
        at += 1


_UNREAD = (None, None)


cdef extern from "Python.h":
    bint PyCFunction_Check(object)
    PyObject* PyCFunction_GET_SELF(object)
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)


cdef struct _Cut:
    # A head that is split: its target, Content-Length or -1, the values of its slots, and the rest.
    Text target
    Py_ssize_t target_bytes
    int64_t length
    int count
    Text values[_MAX_SLOTS]
    Py_ssize_t sizes[_MAX_SLOTS]
    Py_ssize_t text_bytes
    char text[_TEXT_BYTES]


cdef inline int _put_pair(tuple pairs, Py_ssize_t place, name, value) except -1:
    """Write a field into a tuple that nobody else has."""
    cdef tuple pair = (name, value)
    Py_INCREF(pair)
    PyTuple_SET_ITEM(pairs, place, pair)
    return 0


cdef inline void _put_others(tuple pairs, tuple others) noexcept:
    """Write those of *others* into a tuple that it does not have yet."""
    cdef Py_ssize_t index
    for index in range(len(others)):
        if PyTuple_GET_ITEM(pairs, index) is NULL:
            Py_INCREF(others[index])
            PyTuple_SET_ITEM(pairs, index, others[index])


cdef class _HeadRecogniser:
    """Reads heads by their templates; what is unusual, *python* does."""

    cdef uint64_t _lengths[256]  # by the first letter of a fixed name in lower case: its lengths
    cdef dict _fixed  # by that letter: the names
    cdef Py_ssize_t _most_bytes, _most_target
    cdef object _template_of, _python, _headers
    cdef Py_ssize_t _pairs, _lowered, _read, _positions  # of the fields
    cdef tuple _last  # of the last template of a response: fields, texts before slots and after all, filler
    cdef Py_ssize_t _length_slot

    def __cinit__(self, template_of, frozenset fixed, Py_ssize_t most_bytes, Py_ssize_t most_target, python):
        from gateway.wire.http import Headers

        cdef int index
        self._template_of, self._headers, self._fixed = template_of, Headers, {}
        self._most_bytes, self._most_target = most_bytes, most_target
        self._pairs, self._lowered = _offset(Headers, "pairs"), _offset(Headers, "_lowered")
        self._read, self._positions = _offset(Headers, "_read"), _offset(Headers, "positions")
        self._python = python(template_of, fixed, most_bytes, most_target)
        for index in range(256):
            self._lengths[index] = 0
        for name in (*fixed, b"content-length"):
            self._lengths[<int>name[0]] |= <uint64_t>1 << min(len(name), 63)
            self._fixed.setdefault(name[0], []).append(name)

    def recognise(self, bytes data not None, Py_ssize_t at, Py_ssize_t end):
        cdef Text start = <Text>PyBytes_AS_STRING(data)
        cdef _Cut cut
        cdef Py_ssize_t index
        if end - at > self._most_bytes:
            return None, None
        if not 0 <= at <= end - 4 or end > PyBytes_GET_SIZE(data):
            return self._python(data, at, end)
        if self._last is not None and self._as_before(start + at, start + end - 4, &cut):
            return self._last[2]("", cut.length, self._filled(<tuple>self._last[0], &cut)), None
        if not self._split(start + at, start + end - 4, &cut):
            return self._python(data, at, end)
        text = PyBytes_FromStringAndSize(cut.text, cut.text_bytes)
        head = self._by_template(text, &cut)
        if head is not None:
            return head, None
        values = [_ascii(cut.values[index], cut.sizes[index]) for index in range(cut.count)]
        return None, (text, _ascii(cut.target, cut.target_bytes), cut.length, values)

    cdef object _known(self, Text at, Py_ssize_t size):
        """Return the head of a text by its template; None without one."""
        cdef _Cut cut
        if size > self._most_bytes:
            return None
        if self._last is not None and self._as_before(at, at + size - 4, &cut):
            return self._last[2]("", cut.length, self._filled(<tuple>self._last[0], &cut))
        if not self._split(at, at + size - 4, &cut):
            return None
        return self._by_template(PyBytes_FromStringAndSize(cut.text, cut.text_bytes), &cut)

    cdef object _by_template(self, bytes text, _Cut* cut):
        """Return a head that is split by its template; None without one."""
        template = self._template_of(text)
        if template is None:
            return None
        if not self._most_target:
            self._remember(template, text, cut.count)
        headers = self._filled(<tuple>template.headers, cut)
        return template.fill(_ascii(cut.target, cut.target_bytes), cut.length, headers)

    cdef int _remember(self, template, bytes text, Py_ssize_t slots) except -1:
        """Note a template, and the texts before its *slots*, whose lines are names without a colon."""
        cdef list parts = []
        cdef list lines = text.split(b"\r\n")
        cdef bytes before = <bytes>lines[0]
        self._length_slot = -1
        for line in lines[1:]:
            before = before + b"\r\n" + <bytes>line
            if b":" not in <bytes>line:
                if (<bytes>line).lower() == b"content-length":
                    self._length_slot = len(parts)
                parts.append(before + b":")
                before = b""
        parts.append(before)
        self._last = (template.headers, parts, template.fill) if len(parts) == slots + 1 else None
        return 0

    cdef bint _as_before(self, Text here, Text stop, _Cut* cut) noexcept:
        """Find the slots of a head that has the text of the last one; return False for another head."""
        cdef list parts = <list>self._last[1]
        cdef Py_ssize_t slots = len(parts) - 1
        cdef Py_ssize_t index, size
        cdef Text value
        cdef Text value_end
        cdef Text line_end
        cdef bytes part
        cut.length, cut.count = -1, <int>slots
        for index in range(slots):
            part = <bytes>parts[index]
            size = PyBytes_GET_SIZE(part)
            if stop - here < size or memcmp(here, PyBytes_AS_STRING(part), size):
                return False
            value = here + size
            line_end = value_end = _line_end(value, stop)
            while value < value_end and (value[0] == c" " or value[0] == c"\t"):
                value += 1
            while value < value_end and ((value_end - 1)[0] == c" " or (value_end - 1)[0] == c"\t"):
                value_end -= 1
            if not _is_value(value, value_end - value):
                return False
            if index == self._length_slot:
                cut.length = _length(value, value_end - value) if value < value_end else -1
                if cut.length < 0:
                    return False
            cut.values[index], cut.sizes[index] = value, value_end - value
            here = line_end
        part = <bytes>parts[slots]
        return stop - here == PyBytes_GET_SIZE(part) and not memcmp(here, PyBytes_AS_STRING(part), stop - here)

    cdef object _filled(self, tuple template, _Cut* cut):
        """Return the fields of a template with other values."""
        cdef tuple pairs = <tuple>template[0]
        cdef tuple lowered = <tuple>template[1]
        cdef tuple places = <tuple>template[2]
        cdef Py_ssize_t index, place
        cdef tuple filled = PyTuple_New(len(pairs))
        cdef tuple filled_lowered = filled if lowered is pairs else None
        if filled_lowered is None and self._most_target:  # those of responses are rarely read
            filled_lowered = PyTuple_New(len(lowered))
        if len(places) != cut.count:
            raise ValueError(f"found {cut.count} slots in a head, its template has {len(places)}")
        for index in range(cut.count):
            place = places[index]
            if place >= 0:
                value = _ascii(cut.values[index], cut.sizes[index])
                _put_pair(filled, place, (<tuple>pairs[place])[0], value)
                if filled_lowered is not filled and filled_lowered is not None:
                    _put_pair(filled_lowered, place, (<tuple>lowered[place])[0], value)
        _put_others(filled, pairs)
        if filled_lowered is not filled and filled_lowered is not None:
            _put_others(filled_lowered, lowered)
        headers = PyType_GenericAlloc(<PyTypeObject*><void*>self._headers, 0)
        _set_field(headers, self._pairs, filled)
        _set_field(headers, self._lowered, filled_lowered)
        _set_field(headers, self._read, _UNREAD)
        _set_field(headers, self._positions, template[3])
        return headers

    cdef bint _split(self, Text at, Text stop, _Cut* cut) except -1:
        """Split a head; return False for what Python should read."""
        cdef char* out = cut.text
        cdef char* full = cut.text + _TEXT_BYTES
        cdef Text line_end = _line_end(at, stop)
        cdef Text here = at
        cdef Text value
        cdef Text value_end
        cdef Py_ssize_t size
        cdef int64_t length = -1
        cdef int kind
        cdef int count = 0
        cut.target, cut.target_bytes = at, 0
        if self._most_target:
            while here < line_end and c"A" <= here[0] <= c"Z":
                here += 1
            if here == at or here == line_end or here[0] != c" ":
                return False
            here += 1
            value = here
            while here < line_end and _IN_TARGET[here[0]]:
                here += 1
            if here == line_end or here[0] != c" " or value[0] != c"/" or here - value > self._most_target:
                return False
            if line_end - at > full - out:
                return False
            out = _put_text(out, <const char*>at, value - at)
            out = _put_text(out, <const char*>here, line_end - here)
            cut.target, cut.target_bytes = value, here - value
        else:
            if line_end - at > full - out:
                return False
            out = _put_text(out, <const char*>at, line_end - at)
        while line_end < stop:
            at = line_end + 2
            line_end = _line_end(at, stop)
            if full - out < 2:
                return False
            out = _put_text(out, b"\r\n", 2)
            here = at
            while here < line_end and _IN_NAME[here[0]]:
                here += 1
            size = here - at
            kind = 0
            if size and size < 64 and self._lengths[at[0] | 0x20] >> size & 1:
                kind = self._kind(at, size)
            if kind == 1 or here == line_end or here[0] != c":" or not size:
                if kind != 1 or (here < line_end and here[0] != c":"):
                    return False
                if line_end - at > full - out:
                    return False
                out = _put_text(out, <const char*>at, line_end - at)
                continue
            value, value_end = here + 1, line_end
            while value < value_end and (value[0] == c" " or value[0] == c"\t"):
                value += 1
            while value < value_end and ((value_end - 1)[0] == c" " or (value_end - 1)[0] == c"\t"):
                value_end -= 1
            if not _is_value(value, value_end - value):
                return False
            if kind == 2:
                if value == value_end or length >= 0:
                    return False
                length = _length(value, value_end - value)
                if length < 0:
                    if line_end - at > full - out:
                        return False
                    out = _put_text(out, <const char*>at, line_end - at)
                    continue
            if size > full - out or count == _MAX_SLOTS:
                return False
            out = _put_text(out, <const char*>at, size)
            cut.values[count], cut.sizes[count] = value, value_end - value
            count += 1
        cut.length, cut.count, cut.text_bytes = length, count, out - cut.text
        return True

    cdef int _kind(self, Text at, Py_ssize_t size) except -1:
        """Return 1 for a fixed name, 2 for that of the length; 0 for another one."""
        cdef char lower[64]
        cdef Py_ssize_t index
        for index in range(size):
            lower[index] = <char>(at[index] | 0x20 if c"A" <= at[index] <= c"Z" else at[index])
        if size == 14 and not memcmp(lower, b"content-length", 14):
            return 2
        for name in <list>self._fixed[<uint8_t>lower[0]]:
            if PyBytes_GET_SIZE(name) == size and not memcmp(PyBytes_AS_STRING(name), lower, size):
                return 1
        return 0


cdef int64_t _length(Text at, Py_ssize_t size) noexcept:
    """Return a length of a few digits that does not begin with 0; -1 for anything else."""
    cdef int64_t length = 0
    cdef Py_ssize_t index
    if size > _MAX_DIGITS or at[0] == c"0":
        return -1
    for index in range(size):
        if not c"0" <= at[index] <= c"9":
            return -1
        length = length * 10 + (at[index] - c"0")
    return length


cdef inline _HeadRecogniser _recogniser_of(function):
    """Return what recognises heads by its method *function*; None for a function in Python."""
    cdef PyObject* owner = PyCFunction_GET_SELF(function) if PyCFunction_Check(function) else NULL
    if owner is NULL or type(<object>owner) is not _HeadRecogniser:
        return None
    return <_HeadRecogniser><object>owner


def head_recogniser(template_of, fixed, Py_ssize_t most_bytes, Py_ssize_t most_target):
    """See `gateway.transports.http1.head_template.head_recogniser`."""
    python = _python_version("head_recogniser")
    return _HeadRecogniser(template_of, fixed, most_bytes, most_target, python).recognise


cdef class _RequestFiller:
    """Fills the template of a request."""

    cdef object _head, _checked, _length
    cdef Py_ssize_t _head_length, _head_checked, _path, _query, _headers, _checked_length

    def __cinit__(self, head, checked):
        kind, checked_kind = type(head), type(checked)
        self._length = head.length
        self._head = kind(head.method, head.version, head.should_close, head.length, head.is_chunked)
        self._checked = _copy_of(checked)
        self._head_length, self._head_checked = _offset(kind, "length"), _offset(kind, "checked")
        self._path, self._query = _offset(checked_kind, "path"), _offset(checked_kind, "query")
        self._headers = _offset(checked_kind, "headers")
        self._checked_length = _offset(checked_kind, "length")

    def fill(self, str target not None, int64_t length, headers):
        size = self._length if length < 0 else length
        checked = _copy_of(self._checked)
        if PyUnicode_IS_COMPACT_ASCII(target) and not memchr(
            PyUnicode_1BYTE_DATA(target), c"?", PyUnicode_GET_LENGTH(target)
        ):
            _set_field(checked, self._path, target)
            _set_field(checked, self._query, "")
        else:
            path, _, query = target.partition("?")
            _set_field(checked, self._path, path)
            _set_field(checked, self._query, query)
        _set_field(checked, self._headers, headers)
        _set_field(checked, self._checked_length, size)
        head = _copy_of(self._head)
        _set_field(head, self._head_length, size)
        _set_field(head, self._head_checked, checked)
        return head


def request_filler(head, checked):
    """See `gateway.transports.http1.head_reader.request_filler`."""
    return _RequestFiller(head, checked).fill


cdef class _ResponseFiller:
    """Fills the template of a response."""

    cdef object _head, _length
    cdef int64_t _most_bytes
    cdef Py_ssize_t _headers, _head_length, _plain

    def __cinit__(self, head, int64_t most_bytes):
        kind = type(head)
        self._head, self._length, self._most_bytes = _copy_of(head), head.length, most_bytes
        self._headers, self._head_length = _offset(kind, "headers"), _offset(kind, "length")
        self._plain = _offset(kind, "plain")

    def fill(self, _target, int64_t length, headers):
        size = self._length if length < 0 else length
        head = _copy_of(self._head)
        _set_field(head, self._headers, headers)
        _set_field(head, self._head_length, size)
        _set_field(head, self._plain, size if size is not None and size <= self._most_bytes else -1)
        return head


def response_filler(head, int64_t most_bytes):
    """See `gateway.transports.http1.response_reader.response_filler`."""
    return _ResponseFiller(head, most_bytes).fill
