# Messages of JSON by their templates: protocols/oip/json/templates.py.

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
