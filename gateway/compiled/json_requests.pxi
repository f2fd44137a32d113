# Requests of JSON whose form is in no cache: protocols/oip/http/infer_request.py.

cdef enum:
    _MOST_OUTPUTS = 32

cdef uint8_t _IN_TEXT[256]  # of characters that stand in JSON as they are
for _each in range(0x20, 0x7F):
    _IN_TEXT[_each] = _each not in b'"\\'


cdef struct _Span:
    Text start  # NULL for what is absent
    Text stop


cdef struct _Member:
    _Span name
    _Span datatype
    _Span data
    int rank  # -1 where there is no shape
    Py_ssize_t dims[_MOST_RANK]
    Py_ssize_t nbytes  # of its bytes after the JSON; -1 where its elements are in the JSON


cdef struct _Output:
    _Span name
    bint is_binary


cdef inline bint _equals(_Span* span, const char* text, Py_ssize_t size) noexcept:
    """Return whether a part of a message is this text."""
    return span.stop - span.start == size and not memcmp(span.start, text, size)


cdef inline bint _are_equal(_Span* one, _Span* other) noexcept:
    return _equals(one, <const char*>other.start, other.stop - other.start)


cdef inline Text _after_blanks(Text at, Text end) noexcept:
    while at < end and (at[0] == c' ' or at[0] == c'\n' or at[0] == c'\r' or at[0] == c'\t'):
        at += 1
    return at


cdef Text _plain_text(Text at, Text end, _Span* span) noexcept:
    """Find a plain text that was not found before, and return its end; NULL for another value."""
    if span.start is not NULL or at == end or at[0] != c'"':
        return NULL
    at += 1
    span.start = at
    while at < end and _IN_TEXT[at[0]]:
        at += 1
    if at == end or at[0] != c'"':
        return NULL
    span.stop = at
    return at + 1


cdef Text _key(Text at, Text end, _Span* key) noexcept:
    """Find the next key of an object, and return the start of its value; NULL for none."""
    key.start = NULL
    at = _plain_text(_after_blanks(at, end), end, key)
    if at is NULL:
        return NULL
    at = _after_blanks(at, end)
    if at == end or at[0] != c':':
        return NULL
    return _after_blanks(at + 1, end)


cdef Text _next_item(Text at, Text end, char closes, bint* is_last) noexcept:
    """Return what follows the comma or the bracket after an item; NULL for something else."""
    at = _after_blanks(at, end)
    if at == end or (at[0] != c',' and at[0] != closes):
        return NULL
    is_last[0] = at[0] == closes
    return at + 1


cdef Text _integer(Text at, Text end, Py_ssize_t* value) noexcept:
    """Read a short integer that is not negative, and return its end; NULL for another value."""
    cdef Text first = at
    value[0] = 0
    while at < end and c'0' <= at[0] <= c'9':
        value[0] = value[0] * 10 + (at[0] - c'0')
        at += 1
        if at - first > 10:
            return NULL
    return NULL if at == first or (first[0] == c'0' and at - first > 1) else at


cdef Text _dims(Text at, Text end, _Member* member) noexcept:
    """Read a shape that was not read before, and return its end; NULL for another value."""
    cdef bint is_last = False
    if member.rank >= 0 or at == end or at[0] != c'[':
        return NULL
    member.rank = 0
    at = _after_blanks(at + 1, end)
    if at < end and at[0] == c']':
        return at + 1
    while not is_last:
        if member.rank == _MOST_RANK:
            return NULL
        at = _integer(_after_blanks(at, end), end, &member.dims[member.rank])
        if at is NULL:
            return NULL
        member.rank += 1
        at = _next_item(at, end, c']', &is_last)
        if at is NULL:
            return NULL
    return at


cdef Text _only_parameter(Text at, Text end, const char* name, Py_ssize_t size) noexcept:
    """Return the value of the only parameter *name* of an object; NULL for another object."""
    cdef _Span key
    if at == end or at[0] != c'{':
        return NULL
    at = _key(at + 1, end, &key)
    return at if at is not NULL and _equals(&key, name, size) else NULL


cdef Text _object_end(Text at, Text end) noexcept:
    """Return the end of an object whose last value ends here; NULL where more follows."""
    if at is NULL:
        return NULL
    at = _after_blanks(at, end)
    return at + 1 if at < end and at[0] == c'}' else NULL


cdef Text _flag(Text at, Text end, bint* flag) noexcept:
    """Read true or false, and return its end; NULL for another value."""
    if at is not NULL and end - at > 5:
        if not memcmp(at, b"true", 4):
            flag[0] = True
            return at + 4
        if not memcmp(at, b"false", 5):
            flag[0] = False
            return at + 5
    return NULL


cdef Text _member(Text at, Text end, _Member* member) noexcept:
    """Find the parts of a tensor, and return its end; NULL for a tensor with others."""
    cdef _Span key
    cdef bint is_last = False
    member.name.start = member.datatype.start = member.data.start = NULL
    member.rank, member.nbytes = -1, -1
    if at == end or at[0] != c'{':
        return NULL
    at += 1
    while not is_last:
        at = _key(at, end, &key)
        if at is NULL:
            return NULL
        if _equals(&key, b"name", 4):
            at = _plain_text(at, end, &member.name)
        elif _equals(&key, b"shape", 5):
            at = _dims(at, end, member)
        elif _equals(&key, b"datatype", 8):
            at = _plain_text(at, end, &member.datatype)
        elif _equals(&key, b"data", 4) and member.data.start is NULL and at < end and at[0] == c'[':
            member.data.start = at
            at = <Text>memchr(at, c']', end - at)
            if at is not NULL:
                at += 1
                member.data.stop = at
        elif _equals(&key, b"parameters", 10) and member.nbytes < 0:
            at = _only_parameter(at, end, b"binary_data_size", 16)
            if at is not NULL:
                at = _object_end(_integer(at, end, &member.nbytes), end)
        else:
            return NULL
        if at is not NULL:
            at = _next_item(at, end, c'}', &is_last)
        if at is NULL:
            return NULL
    if member.name.start is NULL or member.datatype.start is NULL or member.rank < 0:
        return NULL
    return at if (member.data.start is NULL) == (member.nbytes >= 0) else NULL


cdef Text _members(Text at, Text end, _Member* members, int* count) noexcept:
    """Find the tensors of a list, and return its end; NULL for another list."""
    cdef bint is_last = False
    cdef int other
    if count[0] or at == end or at[0] != c'[':
        return NULL
    at += 1
    while not is_last:
        if count[0] == _MOST_TENSORS:
            return NULL
        at = _member(_after_blanks(at, end), end, &members[count[0]])
        if at is NULL:
            return NULL
        for other in range(count[0]):
            if _are_equal(&members[other].name, &members[count[0]].name):
                return NULL
        count[0] += 1
        at = _next_item(at, end, c']', &is_last)
        if at is NULL:
            return NULL
    return at


cdef Text _outputs(Text at, Text end, _Output* outputs, int* count) noexcept:
    """Find the requested outputs of a list, and return its end; NULL for another list."""
    cdef _Span key
    cdef bint is_last = False
    cdef bint is_closed
    cdef bint has_parameters
    cdef int other
    cdef _Output* output
    if count[0] or at == end or at[0] != c'[':
        return NULL
    at += 1
    while not is_last:
        at = _after_blanks(at, end)
        if count[0] == _MOST_OUTPUTS or at == end or at[0] != c'{':
            return NULL
        at += 1
        output = &outputs[count[0]]
        output.name.start = NULL
        output.is_binary = False
        is_closed = has_parameters = False
        while not is_closed:
            at = _key(at, end, &key)
            if at is NULL:
                return NULL
            if _equals(&key, b"name", 4):
                at = _plain_text(at, end, &output.name)
            elif _equals(&key, b"parameters", 10) and not has_parameters:
                has_parameters = True
                at = _flag(_only_parameter(at, end, b"binary_data", 11), end, &output.is_binary)
                at = _object_end(at, end)
            else:
                return NULL
            if at is not NULL:
                at = _next_item(at, end, c'}', &is_closed)
            if at is NULL:
                return NULL
        if output.name.start is NULL:
            return NULL
        for other in range(count[0]):
            if _are_equal(&outputs[other].name, &output.name):
                return NULL
        count[0] += 1
        at = _next_item(at, end, c']', &is_last)
        if at is NULL:
            return NULL
    return at


cdef class _RequestReader:
    """Reads requests of JSON that have the usual members; all others, *python* reads."""

    cdef object _python, _tensor, _raw_data, _output, _no_parameters, _parsed, _form, _plain_parsed
    cdef object _binary_parameters, _plain_parameters
    cdef Py_ssize_t _json_bytes, _name_bytes, _tensors, _outputs, _rank
    cdef Py_ssize_t _dim, _elements, _message_bytes

    def __cinit__(self, limits, python):
        from gateway.ir.context import NO_PARAMETERS
        from gateway.ir.tensors.data import RawData
        from gateway.ir.tensors.tensor import RequestedOutput, Tensor
        from gateway.protocols.oip.http import infer_request
        from gateway.protocols.oip.json.parse import SIMD_FROM_BYTES
        from gateway.protocols.oip.parameters import NO_REQUEST_PARAMETERS, RequestParameters

        self._python = python(limits)
        self._tensor, self._raw_data, self._output = Tensor, RawData, RequestedOutput
        self._no_parameters = NO_PARAMETERS
        self._parsed, self._form = infer_request.ParsedRequest, infer_request.InferReplyFormat
        self._plain_parameters = NO_REQUEST_PARAMETERS
        self._binary_parameters = RequestParameters(binary_data_output=True)
        self._plain_parsed = self._parsed(NO_REQUEST_PARAMETERS, (), infer_request.ALL_JSON)
        self._json_bytes = min(limits.json_bytes, SIMD_FROM_BYTES - 1)
        # A plain request is not deeper, has no more keys, and no longer names of parameters.
        if min(limits.json_depth, limits.json_keys) < 5 or limits.name_bytes < 18 or not limits.parameters:
            self._json_bytes = 0
        self._name_bytes, self._tensors, self._outputs = limits.name_bytes, limits.tensors, limits.outputs
        self._rank, self._dim, self._elements = limits.rank, limits.dim, limits.elements
        self._message_bytes = limits.message_bytes

    def read(self, model, body, length):
        cdef Py_buffer raw
        cdef Py_ssize_t end
        found = None
        PyObject_GetBuffer(body, &raw, PyBUF_SIMPLE)
        try:
            end = raw.len if length is None else length
            if 0 < end <= self._json_bytes and end <= raw.len:
                found = self._read(body, <Text>raw.buf, end, raw.len)
        finally:
            PyBuffer_Release(&raw)
        return self._python(model, body, length) if found is None else found

    cdef tuple _read(self, body, Text text, Py_ssize_t end, Py_ssize_t size):
        """Read a request; return None for one that Python reads."""
        cdef _Member members[_MOST_TENSORS]
        cdef _Output outputs[_MOST_OUTPUTS]
        cdef _Span key, own_id
        cdef Text stop = text + end
        cdef Text at = _after_blanks(text, stop)
        cdef int count = 0
        cdef int wanted = 0
        cdef int index
        cdef bint is_last = False
        cdef bint all_binary = False
        cdef bint has_parameters = False
        cdef Py_ssize_t used = end
        cdef list tensors = []
        own_id.start = NULL
        if at == stop or at[0] != c'{':
            return None
        at += 1
        while not is_last:
            at = _key(at, stop, &key)
            if at is NULL:
                return None
            if _equals(&key, b"inputs", 6):
                at = _members(at, stop, members, &count)
            elif _equals(&key, b"id", 2):
                at = _plain_text(at, stop, &own_id)
            elif _equals(&key, b"outputs", 7):
                at = _outputs(at, stop, outputs, &wanted)
            elif _equals(&key, b"parameters", 10) and not has_parameters:
                has_parameters = True
                at = _flag(_only_parameter(at, stop, b"binary_data_output", 18), stop, &all_binary)
                at = _object_end(at, stop)
            else:
                return None
            if at is not NULL:
                at = _next_item(at, stop, c'}', &is_last)
            if at is NULL:
                return None
        if _after_blanks(at, stop) != stop or not 0 < count <= self._tensors:
            return None
        for index in range(count):
            tensor = self._tensor_of(&members[index], body, size, &used)
            if tensor is None:
                return None
            tensors.append(tensor)
        request_id = "" if own_id.start is NULL else self._name(&own_id)
        parsed = self._plain_parsed
        if wanted or all_binary or has_parameters:
            parsed = self._parsed_of(outputs, wanted, all_binary, has_parameters)
        if used != size or request_id is None or parsed is None:
            return None
        return (parsed, request_id, tuple(tensors)), True

    cdef object _name(self, _Span* span):
        """Return a plain text; None for one that is too long for a name."""
        if span.stop - span.start > self._name_bytes:
            return None
        return PyUnicode_DecodeASCII(<const char*>span.start, span.stop - span.start, NULL)

    cdef object _tensor_of(self, _Member* member, body, Py_ssize_t size, Py_ssize_t* used):
        """Return a tensor, and add its bytes after the JSON to *used*; None where Python decides."""
        cdef _Datatypes datatypes = _of_datatypes()
        cdef int at = datatypes._named(member.datatype.start, member.datatype.stop - member.datatype.start)
        cdef Py_ssize_t length = member.data.stop - member.data.start
        cdef Py_ssize_t count = 1
        cdef Py_ssize_t nbytes
        cdef int index
        cdef bytes raw
        if at < 0 or member.rank > self._rank or member.name.start == member.name.stop:
            return None
        for index in range(member.rank):
            if member.dims[index] > self._dim or member.dims[index] > _MOST_SIZE:
                return None
            count *= member.dims[index]
            if count > _MOST_SIZE:
                return None
        nbytes = count * datatypes._sizes[at]
        if not 0 < nbytes <= self._message_bytes or count > self._elements:
            return None
        name = self._name(&member.name)
        if name is None:
            return None
        if member.nbytes >= 0:
            if member.nbytes != nbytes or size - used[0] < nbytes:
                return None
            data = body[used[0] : used[0] + nbytes]
            used[0] += nbytes
        else:
            kind = datatypes._kinds[at]
            if kind is None or length < 2 * count + 1:  # a digit for each, and a comma or a bracket
                return None
            raw = PyBytes_FromStringAndSize(NULL, nbytes)
            if not (<_Numbers>kind)._read(count, member.data.start, length, PyBytes_AS_STRING(raw)):
                return None
            data = memoryview(raw)
        data = self._raw_data(data)
        shape = _tuple(member.dims, member.rank)
        return self._tensor(name, datatypes._all[at], shape, data, self._no_parameters)

    cdef object _parsed_of(self, _Output* outputs, int wanted, bint all_binary, bint has_parameters):
        """Return what a request has beside its tensors; None where Python decides."""
        cdef dict listed = {}
        cdef list found = []
        cdef int index
        if wanted > self._outputs:
            return None
        for index in range(wanted):
            name = self._name(&outputs[index].name)
            if not name:
                return None
            listed[name] = outputs[index].is_binary
            found.append(self._output(name, 0, self._no_parameters))
        form = self._plain_parsed.form
        if all_binary or True in listed.values():
            form = self._form(all_binary, listed)
        parameters = self._binary_parameters if all_binary else self._plain_parameters
        return self._parsed(parameters, tuple(found), form)


def request_reader(limits):
    """See `gateway.protocols.oip.http.infer_request.request_reader`."""
    return _RequestReader(limits, _python_version("request_reader")).read
