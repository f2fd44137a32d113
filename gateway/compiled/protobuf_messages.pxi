# Messages of protobuf whose form is in no cache: protocols/oip/grpc/scan.py.

cdef enum:
    _ONLY_NAMED = 32  # requested outputs; more are left to Python
    _REMEMBERED = 256  # `_REMEMBERED_BYTES`: the fields of a longer description are counted


cdef struct _Described:
    _Span whole
    _Span name
    int datatype
    int rank
    Py_ssize_t dims[_MOST_RANK]
    Py_ssize_t count


cdef inline Text _length_delimited(Text at, Text end, int* number, _Span* value) noexcept:
    """Read a field with a size, and return its end; NULL for another field."""
    cdef Py_ssize_t size = 0
    cdef int shift = 0
    cdef unsigned char byte
    if end - at < 2 or at[0] >= 0x80 or at[0] & 7 != 2 or at[0] < 8:
        return NULL
    number[0] = at[0] >> 3
    at += 1
    while True:
        if at == end or shift == 28:
            return NULL
        byte = at[0]
        size |= <Py_ssize_t>(byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            break
    if size > end - at:
        return NULL
    value.start, value.stop = at, at + size
    return value.stop


cdef bint _packed_dims(_Span* packed, _Described* found) noexcept:
    """Read a packed shape; return whether it is a plain one."""
    cdef Text at = packed.start
    cdef int shift
    cdef Py_ssize_t dim
    while at < packed.stop:
        if found.rank == _MOST_RANK:
            return False
        dim, shift = 0, 0
        while True:
            if at == packed.stop or shift == 35:
                return False
            dim |= <Py_ssize_t>(at[0] & 0x7F) << shift
            shift += 7
            at += 1
            if at[-1] < 0x80:
                break
        if dim > _MOST_SIZE:
            return False
        found.dims[found.rank] = dim
        found.rank += 1
    return True


cdef bint _describe(_Datatypes datatypes, _Described* found) noexcept:
    """Read the description of a tensor with raw contents; return whether it has nothing else."""
    cdef Text at = found.whole.start
    cdef _Span value
    cdef int number = 0
    cdef int index
    found.name.start, found.datatype, found.rank, found.count = NULL, -1, 0, 1
    while at < found.whole.stop:
        at = _length_delimited(at, found.whole.stop, &number, &value)
        if at is NULL:
            return False
        if number == 1 and found.name.start is NULL:
            found.name = value
        elif number == 2 and found.datatype < 0:
            found.datatype = datatypes._named(value.start, value.stop - value.start)
            if found.datatype < 0:
                return False
        elif number != 3 or found.rank or not _packed_dims(&value, found):
            return False
    for index in range(found.rank):
        found.count *= found.dims[index]
        if found.count > _MOST_SIZE:
            return False
    # An empty tensor is left to Python, which looks at its other dimensions.
    return found.name.start is not NULL and found.datatype >= 0 and found.count > 0


cdef class _MessageScanner:
    """Scans messages of plain tensors with raw contents; all others, *python* does."""

    cdef object _python, _message, _description, _model, _no_parameters, _empty
    cdef int _raw_number
    cdef bint _is_request
    cdef Py_ssize_t _model_bytes, _name_bytes, _tensors, _outputs, _rank, _dim, _elements, _message_bytes

    def __cinit__(self, limits, int raw_tag, python):
        from gateway.ir.context import NO_PARAMETERS, ModelRef
        from gateway.protocols.oip.grpc.scan import EMPTY, RAW_INPUTS, InferMessage, TensorDescription

        self._python = python(limits, raw_tag)
        self._message, self._description, self._model = InferMessage, TensorDescription, ModelRef
        self._no_parameters, self._empty = NO_PARAMETERS, EMPTY
        self._raw_number, self._is_request = raw_tag >> 3, raw_tag == RAW_INPUTS
        self._model_bytes, self._name_bytes = limits.model_name_bytes, limits.name_bytes
        self._tensors, self._outputs = limits.tensors, limits.outputs
        self._rank, self._dim, self._elements = limits.rank, limits.dim, limits.elements
        self._message_bytes = limits.message_bytes

    def scan(self, view, counter):
        cdef Py_buffer raw
        PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
        try:
            found = self._scan(view, <Text>raw.buf, raw.len, counter)
        finally:
            PyBuffer_Release(&raw)
        return self._python(view, counter) if found is None else found

    cdef tuple _scan(self, view, Text start, Py_ssize_t size, counter):
        """Scan a message; return None for one that Python scans."""
        cdef _Described found[_MOST_TENSORS]
        cdef _Span raws[_MOST_TENSORS]
        cdef _Span outputs[_ONLY_NAMED]
        cdef _Span model, version, request_id, value, inner
        cdef Text at = start
        cdef Text end = start + size
        cdef int tensors = 0
        cdef int contents = 0
        cdef int wanted = 0
        cdef int number = 0
        cdef Py_ssize_t count = 0
        model.start = version.start = request_id.start = NULL
        while at < end:
            at = _length_delimited(at, end, &number, &value)
            count += 1
            if at is NULL:
                return None
            if number == self._raw_number:
                if contents == _MOST_TENSORS:
                    return None
                raws[contents] = value
                contents += 1
            elif number == 5:
                if tensors == _MOST_TENSORS or value.stop - value.start > _REMEMBERED:
                    return None
                found[tensors].whole = value
                tensors += 1
            elif number == 1 and model.start is NULL:
                model = value
            elif number == 2 and version.start is NULL:
                version = value
            elif number == 3 and request_id.start is NULL:
                request_id = value
            elif number == 6 and self._is_request and wanted < _ONLY_NAMED:
                if _length_delimited(value.start, value.stop, &number, &inner) != value.stop or number != 1:
                    return None
                outputs[wanted] = inner
                wanted += 1
                count += 1
            else:
                return None
        if contents != tensors or tensors > self._tensors or wanted > self._outputs:
            return None
        return self._message_of(
            view, start, counter, count, &model, &version, &request_id, found, raws, tensors, outputs, wanted
        )

    cdef tuple _message_of(
        self, view, Text start, counter, Py_ssize_t count, _Span* model, _Span* version, _Span* request_id,
        _Described* found, _Span* raws, int tensors, _Span* outputs, int wanted
    ):
        """Return a message of these parts; None where Python decides."""
        cdef _Datatypes datatypes = _of_datatypes()
        cdef tuple names = PyTuple_New(tensors)
        cdef tuple kinds = PyTuple_New(tensors)
        cdef tuple shapes = PyTuple_New(tensors)
        cdef tuple parameters = PyTuple_New(tensors)
        cdef tuple views = PyTuple_New(tensors)
        cdef list described = []
        cdef list requested = []
        cdef object own_id, name, version_name, kind, shape, part
        cdef Py_ssize_t size
        cdef int index, other
        name, version_name = self._text(model, self._model_bytes), self._text(version, self._name_bytes)
        own_id = self._text(request_id, self._name_bytes)
        if name is None or version_name is None or own_id is None or _is_dots(model) or _is_dots(version):
            return None
        model_found = self._model(name, version_name)
        for index in range(tensors):
            if not _describe(datatypes, &found[index]):
                return None
            name = self._text(&found[index].name, self._name_bytes)
            size = found[index].count * datatypes._sizes[found[index].datatype]
            if (
                not name
                or not datatypes._sizes[found[index].datatype]
                or raws[index].stop - raws[index].start != size
                or not self._is_allowed(&found[index], size)
            ):
                return None
            for other in range(index):
                if _are_equal(&found[other].name, &found[index].name):
                    return None
            kind, shape = datatypes._all[found[index].datatype], _tuple(found[index].dims, found[index].rank)
            part = view[raws[index].start - start : raws[index].stop - start]
            described.append(
                self._description(
                    name, kind, shape, found[index].count, size, self._no_parameters, self._empty
                )
            )
            _put_item(names, index, name)
            _put_item(kinds, index, kind)
            _put_item(shapes, index, shape)
            _put_item(parameters, index, self._no_parameters)
            _put_item(views, index, part)
        for index in range(wanted):
            name = self._text(&outputs[index], self._name_bytes)
            if not name:
                return None
            for other in range(index):
                if _are_equal(&outputs[other], &outputs[index]):
                    return None
            requested.append((name, self._no_parameters))
        left = counter.remaining - count
        if left < 0:
            return None
        counter.remaining = left
        columns = names, kinds, shapes, parameters
        message = self._message(model_found, self._no_parameters, described, requested, columns)
        return message, own_id, views

    cdef object _text(self, _Span* span, Py_ssize_t most):
        """Return a plain text, "" for none; None where Python decides."""
        cdef Py_ssize_t size
        if span.start is NULL:
            return ""
        size = span.stop - span.start
        if size > most or not _is_printable(span.start, size):
            return None
        return PyUnicode_DecodeASCII(<const char*>span.start, size, NULL)

    cdef bint _is_allowed(self, _Described* found, Py_ssize_t size) noexcept:
        """Return whether a shape is within the limits."""
        cdef int index
        for index in range(found.rank):
            if found.dims[index] > self._dim:
                return False
        return found.rank <= self._rank and found.count <= self._elements and size <= self._message_bytes


cdef inline void _put_item(tuple items, Py_ssize_t index, item) noexcept:
    Py_INCREF(item)
    PyTuple_SET_ITEM(items, index, item)


cdef inline bint _is_dots(_Span* span) noexcept:
    """Return whether a text is a segment of a path with a meaning."""
    return span.start is not NULL and (_equals(span, b".", 1) or _equals(span, b"..", 2))


def message_scanner(limits, int raw_tag):
    """See `gateway.protocols.oip.grpc.scan.message_scanner`."""
    return _MessageScanner(limits, raw_tag, _python_version("message_scanner")).scan
