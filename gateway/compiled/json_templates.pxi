# Messages of JSON by their templates: protocols/oip/json/templates.py, wire/rows/templates.py.

cdef enum:
    _TEMPLATE_TEXT = 1 << 13
    _MOST_HOLES = 32

cdef uint8_t _IN_LIST[256]
cdef uint8_t _IN_ID[256]
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
    if end - quote > 8 and not memcmp(quote, b'"data":', 7):
        at = quote + 7 + (quote[7] == c' ')
        if at[0] != c'[':
            return NULL
        start[0] = at
        return _list_end(at, end)
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


cdef inline Text _list_end(Text at, Text end) noexcept:
    """Return the last end of a list in what may be lists of numbers; NULL if there is none."""
    cdef Text last = NULL
    at += 1
    while at < end and _IN_LIST[at[0]]:
        if at[0] == c']':
            last = at + 1
        at += 1
    return last


cdef class _TemplateParser:
    """Reads messages by their templates; what is unusual, *python* does."""

    cdef object _template_of, _python, _tensor, _raw_data
    cdef Py_ssize_t _most_bytes, _id_bytes

    def __cinit__(self, template_of, Py_ssize_t most_bytes, Py_ssize_t id_bytes, python):
        from gateway.ir.tensors.data import RawData
        from gateway.ir.tensors.tensor import Tensor

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
        if template is not None and count == (<tuple>template)[3] and size - end == (<tuple>template)[4]:
            found = self._fill(<tuple>template, starts, stops, body, end)
            if found is not None:
                return found, None
        return None, key

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


cdef class _RowParser:
    """Reads messages of rows by their templates; what is unusual, *python* does."""

    cdef object _template_of, _python, _tensor, _untyped, _no_parameters
    cdef Py_ssize_t _most_bytes, _most_elements

    def __cinit__(self, template_of, Py_ssize_t most_bytes, Py_ssize_t most_elements, python):
        from gateway.ir.context import NO_PARAMETERS
        from gateway.ir.tensors.data import UntypedData
        from gateway.ir.tensors.tensor import Tensor

        self._template_of, self._most_bytes, self._most_elements = template_of, most_bytes, most_elements
        self._python = python(template_of, most_bytes, most_elements)
        self._tensor, self._untyped, self._no_parameters = Tensor, UntypedData, NO_PARAMETERS

    def parse(self, body):
        cdef Py_buffer raw
        found = None
        PyObject_GetBuffer(body, &raw, PyBUF_SIMPLE)
        try:
            if raw.len <= self._most_bytes and raw.len <= _TEMPLATE_TEXT:
                found = self._parse(<Text>raw.buf, raw.len)
        finally:
            PyBuffer_Release(&raw)
        return self._python(body) if found is None else found

    cdef tuple _parse(self, Text text, Py_ssize_t size):
        """Parse a message of not too many holes; return None for one that Python reads."""
        cdef char out[_TEMPLATE_TEXT + 1]
        cdef char* used = out
        cdef Text starts[_MOST_HOLES]
        cdef Text stops[_MOST_HOLES]
        cdef Text at = text
        cdef Text end = text + size
        cdef Text opened = text
        cdef Text stop
        cdef int index
        cdef int count = 0
        while True:
            opened = <Text>memchr(opened, c'[', end - opened)
            if opened is NULL:
                break
            stop = _list_end(opened, end)
            if stop is NULL:
                opened += 1
                continue
            if count == _MOST_HOLES:
                return None
            starts[count], stops[count] = opened, stop
            used = _put_text(used, <const char*>at, opened - at)
            used[0] = 0
            used += 1
            at = opened = stop
            count += 1
        used = _put_text(used, <const char*>at, end - at)
        cdef bytes key = PyBytes_FromStringAndSize(out, used - out)
        template = self._template_of(key)
        if template is None or (<tuple>template)[1] != count:
            return None, (key, [_between(starts[index], stops[index]) for index in range(count)])
        found = self._fill(<tuple>template, starts, stops, size)
        return None if found is None else (found, None)

    cdef tuple _fill(self, tuple template, Text* starts, Text* stops, Py_ssize_t size):
        """Fill a template; return None where the content of a hole does not fit."""
        cdef list tensors = []
        cdef tuple slot
        for found in <tuple>template[2]:
            slot = <tuple>found
            value = self._value(slot, starts, stops)
            if value is None:
                return None
            data = self._untyped(value, slot[1], slot[2], slot[3], slot[4], slot[5], size)
            tensors.append(self._tensor(slot[0], None, None, data, self._no_parameters))
            size = 0
        return template[0], tuple(tensors)

    cdef bytes _value(self, tuple slot, Text* starts, Text* stops):
        """Return the text of a value; None for one that Python looks at."""
        cdef Py_ssize_t sizes[_MOST_RANK]
        cdef int rank = slot[7]
        cdef int index, hole
        cdef Py_ssize_t length = 1
        cdef Py_ssize_t elements = 1
        cdef tuple holes = slot[6]
        cdef bytes text
        cdef char* out
        if rank > _MOST_RANK:
            return None
        for index in range(rank):
            sizes[index] = -1
        for index in range(len(holes)):
            hole = holes[index]
            if _lists_end(starts[hole], stops[hole], sizes, rank) != stops[hole]:
                return None
            length += stops[hole] - starts[hole] + 1
        for index in range(rank):
            elements *= sizes[index]
        if elements * len(holes) > self._most_elements:
            return None
        if slot[5] is not None and (rank != 2 or sizes[1] != len(<tuple>slot[5])):
            return None
        index = slot[9]
        if index >= 0 and _lists_end(starts[index], stops[index], sizes, 1) != stops[index]:
            return None
        if not slot[8]:
            return _between(starts[hole], stops[hole])
        text = PyBytes_FromStringAndSize(NULL, length)
        out = PyBytes_AS_STRING(text)
        for index in range(len(holes)):
            hole = holes[index]
            out[0] = c',' if index else c'['
            out = _put_text(out + 1, <const char*>starts[hole], stops[hole] - starts[hole])
        out[0] = c']'
        return text


cdef Text _lists_end(Text at, Text end, Py_ssize_t* sizes, int rank) noexcept:
    """Return the end of lists of plain numbers, nested *rank* deep; NULL for others.

    A negative one of *sizes* becomes the length of the first list of its depth.
    """
    cdef Py_ssize_t count = 0
    if at == end or at[0] != c'[':
        return NULL
    while True:
        at += 1
        while at < end and at[0] == c' ':
            at += 1
        at = _lists_end(at, end, sizes + 1, rank - 1) if rank > 1 else _number_end(at, end)
        if at is NULL:
            return NULL
        count += 1
        while at < end and at[0] == c' ':
            at += 1
        if at == end or (at[0] != c',' and at[0] != c']'):
            return NULL
        if at[0] == c']':
            break
    if sizes[0] < 0:
        sizes[0] = count
    return at + 1 if sizes[0] == count else NULL


cdef inline Text _number_end(Text at, Text end) noexcept:
    """Return the end of a plain number; NULL for another one. A list ends before *end*."""
    cdef Text first
    at += at < end and at[0] == c'-'
    first = at
    while at < end and c'0' <= at[0] <= c'9':
        at += 1
    if at == first or at - first > 18 or (first[0] == c'0' and at - first > 1):
        return NULL
    if at < end and at[0] == c'.':
        first = at + 1
        at += 1
        while at < end and c'0' <= at[0] <= c'9':
            at += 1
        if at == first:
            return NULL
    if at < end and (at[0] == c'e' or at[0] == c'E'):
        at += 1
        at += at < end and (at[0] == c'-' or at[0] == c'+')
        first = at
        while at < end and c'0' <= at[0] <= c'9':
            at += 1
        if not 0 < at - first < 3:
            return NULL
    return at


def row_parser(template_of, Py_ssize_t most_bytes, Py_ssize_t most_elements):
    """See `gateway.wire.rows.templates.row_parser`."""
    python = _python_version("row_parser")
    return _RowParser(template_of, most_bytes, most_elements, python).parse
