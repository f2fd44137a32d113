# Datatypes, by their objects and by their names in messages of Open Inference.

cdef enum:
    _MOST_DATATYPES = 16
    _DATATYPE_NAME = 8  # the longest name


cdef class _Datatypes:
    """Facts about datatypes, each at the index of its datatype."""

    cdef list _all, _dtypes, _kinds
    cdef dict _indices
    cdef int _count
    cdef char _names[_MOST_DATATYPES * _DATATYPE_NAME]
    cdef Py_ssize_t _lengths[_MOST_DATATYPES]
    cdef Py_ssize_t _sizes[_MOST_DATATYPES]  # of one element; 0 for BYTES

    def __cinit__(self):
        from gateway.ir.tensors.datatypes import Datatype
        from gateway.ir.values.number_lists import CODES

        cdef int index
        cdef bytes name
        self._all = list(Datatype)
        self._count = len(self._all)
        if self._count > _MOST_DATATYPES:
            raise TypeError(f"there are {self._count} datatypes, expected at most {_MOST_DATATYPES}")
        self._indices = {each: place for place, each in enumerate(self._all)}
        self._dtypes = [each.numpy_dtype for each in self._all]
        # What reads and writes its numbers in JSON, where the extension does.
        self._kinds = [_KINDS.get(CODES.get(each)) for each in self._all]
        for index in range(self._count):
            name = self._all[index].value.encode()
            self._lengths[index] = len(name)
            self._sizes[index] = self._all[index].size_bytes
            if len(name) > _DATATYPE_NAME:
                raise TypeError(f"the datatype {name!r} has a longer name than {_DATATYPE_NAME} bytes")
            memcpy(self._names + index * _DATATYPE_NAME, PyBytes_AS_STRING(name), len(name))

    cdef int _named(self, Text start, Py_ssize_t size) noexcept:
        """Return the index of the datatype of this name; -1 for none."""
        cdef int index
        for index in range(self._count):
            if self._lengths[index] == size and not memcmp(self._names + index * _DATATYPE_NAME, start, size):
                return index
        return -1

    cdef int _index(self, datatype) except -2:
        """Return the index of a datatype; -1 for another object."""
        cdef PyObject* found = PyDict_GetItem(self._indices, datatype)
        return -1 if found is NULL else <int>(<object>found)


cdef _Datatypes _datatypes = None


cdef inline _Datatypes _of_datatypes():
    global _datatypes
    if _datatypes is None:
        _datatypes = _Datatypes()
    return _datatypes


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int* overflow) except? -1

cdef Py_ssize_t _MOST_SIZE = 1 << 30


cdef Py_ssize_t _size_of(tuple shape, Py_ssize_t size) except -2:
    """Return the size of a tensor whose elements have *size*; -1 for an odd shape, or a large tensor."""
    cdef Py_ssize_t dim
    cdef int overflow = 0
    if len(shape) > _MOST_RANK:
        return -1
    for each in shape:
        if type(each) is not int:
            return -1
        dim = PyLong_AsLongLongAndOverflow(each, &overflow)
        if overflow or not 0 <= dim <= _MOST_SIZE:
            return -1
        size *= dim
        if size > _MOST_SIZE:
            return -1
    return size
