# Messages of protobuf of known layout: wire/message_cache.py and protocols/oip/grpc/decode.py.

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


cdef class _PlainReader:
    """Reads cached messages whose tensors need no check."""

    cdef object _cached, _tensor, _raw_data
    cdef Py_ssize_t _id_bytes

    def __cinit__(self, cached, Py_ssize_t id_bytes):
        from gateway.ir.tensors.data import RawData
        from gateway.ir.tensors.tensor import Tensor

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
