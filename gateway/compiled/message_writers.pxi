# Messages of Open Inference from cached parts: protocols/oip/grpc/encode.py, http/infer_response.py, json/write.py.
# Rows: wire/rows/write_few.py.

cdef enum:
    _MOST_TENSORS = 16
    _RESPONSE_BYTES = 1 << 14
    _TAIL = 4096  # `TAIL_BYTES` of wire/protobuf/wire_format.py
    _ID_BYTES = 127  # whose length is a varint of one byte
    _ID_KEY = 3 << 3 | 2


cdef class _MessageWriter(_Parts):
    """Writes messages of protobuf; what is unusual, *python* does."""

    cdef object _python, _output_part
    cdef object _output
    cdef Py_ssize_t _output_name, _classes, _output_parameters, _shared

    def __cinit__(self, model_part, tensor_part, output_part, python):
        from gateway.ir.tensors.tensor import RequestedOutput

        self._output_part, self._python = output_part, python
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


def message_writer(model_field, tensor_parts, output_field, shared_field=None):
    """See `gateway.protocols.oip.grpc.encode.message_writer`."""
    python = _python_version("message_writer")(model_field, tensor_parts, output_field, shared_field)
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
                end = _put_integers(integers, integers._count, end, <const char*>raw.buf)
            PyBuffer_Release(&raw)
            if size != integers._count * integers._size:
                return None
            end[0] = c'}'
            end += 1
        end = _put_text(end, b']}', 2)
        return PyBytes_FromStringAndSize(out, end - out)


def response_writer(model_text, integers):
    """See `gateway.protocols.oip.http.infer_response.response_writer`."""
    return _ResponseWriter(model_text, integers, _python_version("response_writer")).write


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


cdef class _RowWriter(_Parts):
    """Writes few rows of integers; what is unusual, *python* does."""

    cdef object _python

    def __cinit__(self, model_part, tensor_part, python):
        self._python = python(tensor_part)

    def write(self, tensors, bint is_columns):
        cdef char out[_RESPONSE_BYTES]
        cdef char* end
        cdef Py_buffer raws[_MOST_TENSORS]
        cdef Py_ssize_t count = len(tensors)
        cdef Py_ssize_t left = _RESPONSE_BYTES - 2
        cdef Py_ssize_t rows = -1
        cdef Py_ssize_t index
        cdef list parts = []
        cdef list views = []
        cdef tuple part
        if not 0 < count <= _MOST_TENSORS:
            return self._python(tensors, is_columns)
        for tensor in tensors:
            part = self._of_plain(tensor)
            if part is None:
                return None
            view = self._raw(tensor, part[4])
            if view is None or (rows >= 0 and part[2] != rows):
                return None
            rows = part[2]
            if PyObject_Size(view) != rows * <Py_ssize_t>part[3] * (<_Numbers>_KINDS[part[1]])._size:
                return None
            left -= rows * (len(<bytes>part[0]) + 3 + <Py_ssize_t>part[3] * _WIDEST + 3) + 3
            parts.append(part)
            views.append(view)
        if left < 0:
            return self._python(tensors, is_columns)
        for index in range(count):
            PyObject_GetBuffer(views[index], &raws[index], PyBUF_SIMPLE)
        if count == 1:
            end = _put_rows(out, <tuple>parts[0], &raws[0], rows)
        elif is_columns:
            end = _put_columns(out, parts, raws, rows)
        else:
            end = _put_objects(out, parts, raws, rows)
        for index in range(count):
            PyBuffer_Release(&raws[index])
        return PyBytes_FromStringAndSize(out, end - out)


cdef char* _put_rows(char* end, tuple part, Py_buffer* raw, Py_ssize_t rows) except NULL:
    """Write a list of the rows of an output, and return the end of the text."""
    cdef Py_ssize_t index
    for index in range(rows):
        end[0] = c',' if index else c'['
        end = _put_row(end + 1, part, raw, index)
    end[0] = c']'
    return end + 1


cdef inline char* _put_row(char* end, tuple part, Py_buffer* raw, Py_ssize_t index) except NULL:
    cdef _Numbers kind = <_Numbers>_KINDS[part[1]]
    cdef Py_ssize_t width = part[3]
    return _put_integers(kind, width, end, <const char*>raw.buf + index * width * kind._size)


cdef char* _put_columns(char* end, list parts, Py_buffer* raws, Py_ssize_t rows) except NULL:
    """Write an object with a list of rows for each output, and return the end of the text."""
    cdef Py_ssize_t column
    for column in range(len(parts)):
        end[0] = c',' if column else c'{'
        end = _put(end + 1, <bytes>(<tuple>parts[column])[0])
        end = _put_rows(end, <tuple>parts[column], &raws[column], rows)
    end[0] = c'}'
    return end + 1


cdef char* _put_objects(char* end, list parts, Py_buffer* raws, Py_ssize_t rows) except NULL:
    """Write a list with an object for each row, and return the end of the text."""
    cdef Py_ssize_t column, row
    for row in range(rows):
        end[0] = c',' if row else c'['
        end += 1
        for column in range(len(parts)):
            end[0] = c',' if column else c'{'
            end = _put(end + 1, <bytes>(<tuple>parts[column])[0])
            end = _put_row(end, <tuple>parts[column], &raws[column], row)
        end[0] = c'}'
        end += 1
    end[0] = c']'
    return end + 1


def row_writer(part_of):
    """See `gateway.wire.rows.write_few.row_writer`."""
    return _RowWriter(None, part_of, _python_version("row_writer")).write
