# The parts of messages that are cached with the description of a tensor.

cdef enum:
    _ENTRIES = 64  # a power of two

cdef extern from *:
    """
    #include "structmember.h"
    """
    ctypedef struct PyObject
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member


cdef Py_ssize_t _offset(struct, str name) except -1:
    """Return where the instances of a class with slots, such as a Struct, have the field *name*."""
    member = getattr(struct, name)
    if type(member) is not MemberDescriptorType:
        raise TypeError(f"{struct} has no slot {name!r}")
    return (<PyMemberDescrObject*><void*>member).d_member.offset


cdef inline object _field(instance, Py_ssize_t offset):
    """Return the field of an instance; a tenth of the instructions of an attribute."""
    cdef PyObject* value = (<PyObject**>(<char*><void*>instance + offset))[0]
    if value is NULL:
        raise AttributeError("a field has no value")
    return <object>value


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        Py_ssize_t tp_basicsize
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t items)
    PyTypeObject* Py_TYPE(object instance)


cdef inline void _set_field(instance, Py_ssize_t offset, value) noexcept:
    """Set the field of an instance that nobody else has."""
    cdef PyObject** place = <PyObject**>(<char*><void*>instance + offset)
    cdef PyObject* before = place[0]
    Py_INCREF(value)
    place[0] = <PyObject*><void*>value
    Py_XDECREF(before)


cdef class _Parts:
    """The parts of messages that depend on a model, or on the description of a tensor.

    Messages of one form usually share the objects of their descriptions.  So the parts are found by
    identity first, and only then by the functions, which cache them by value.
    """

    cdef object _model_part, _tensor_part
    cdef tuple _last
    cdef object _tensor, _raw_data, _array_data
    cdef Py_ssize_t _name, _datatype, _shape, _data, _parameters, _view, _array
    cdef list _found

    def __cinit__(self, model_part, tensor_part, *_others):
        from gateway.ir.tensors.data import ArrayData, RawData
        from gateway.ir.tensors.tensor import Tensor

        self._model_part, self._tensor_part = model_part, tensor_part
        self._tensor, self._raw_data, self._array_data = Tensor, RawData, ArrayData
        self._array = _offset(ArrayData, "array")
        self._name, self._datatype = _offset(Tensor, "name"), _offset(Tensor, "datatype")
        self._shape, self._data = _offset(Tensor, "shape"), _offset(Tensor, "data")
        self._parameters, self._view = _offset(Tensor, "parameters"), _offset(RawData, "view")
        self._found = [None] * _ENTRIES

    cdef bytes _of_model(self, model):
        cdef tuple last = self._last
        if last is None or last[0] is not model:
            last = model, self._model_part(model)
            self._last = last
        return <bytes>last[1]

    cdef object _of_plain(self, tensor):
        """Return the part of a tensor without parameters; None for one with them."""
        if type(tensor) is not self._tensor:
            return None
        parameters = _field(tensor, self._parameters)
        if type(parameters) is not dict or <dict>parameters:
            return None
        name, shape = _field(tensor, self._name), _field(tensor, self._shape)
        datatype = _field(tensor, self._datatype)
        cdef Py_ssize_t at = (<Py_ssize_t><void*>name >> 4 ^ <Py_ssize_t><void*>shape >> 5) & (_ENTRIES - 1)
        cdef object entry = self._found[at]
        if (
            entry is None
            or (<tuple>entry)[0] is not name
            or (<tuple>entry)[1] is not datatype
            or (<tuple>entry)[2] is not shape
        ):
            entry = name, datatype, shape, self._tensor_part(name, datatype, shape)
            self._found[at] = entry
        return (<tuple>entry)[3]

    cdef object _raw(self, tensor, dtype):
        """Return raw data, or a copy of an array of *dtype*; None for other data."""
        data = _field(tensor, self._data)
        if type(data) is self._raw_data:
            return _field(data, self._view)
        if type(data) is not self._array_data:
            return None
        array = _field(data, self._array)
        return array.tobytes() if array.dtype is dtype else None
