# What every call passes: concurrency/limiter.py, ir/calls.py, policies/complete/policy.py.

cdef Py_ssize_t _OBJECT_BYTES = object.__basicsize__

cdef extern from "Python.h":
    bint PyObject_TypeCheck(object instance, PyTypeObject* kind)


cdef class _LimiterFields:
    """Where a `Limiter` and a `Share` have their fields."""

    cdef object _limiter, _share
    cdef Py_ssize_t _limit, _share_limit, _used, _queued, _waiting, _share_used, _share_waiting

    def __cinit__(self):
        from gateway.concurrency.limiter import Limiter
        from gateway.concurrency.waiters import Share

        self._limiter, self._share = Limiter, Share
        self._limit, self._share_limit = _offset(Limiter, "limit"), _offset(Limiter, "share_limit")
        self._used, self._queued = _offset(Limiter, "used"), _offset(Limiter, "queued")
        self._waiting = _offset(Limiter, "waiting")
        self._share_used, self._share_waiting = _offset(Share, "used"), _offset(Share, "waiting")

    cdef bint _has(self, limiter, share) except -1:
        """Return whether the two are objects of these classes, or *share* is None."""
        if not PyObject_TypeCheck(limiter, <PyTypeObject*><void*>self._limiter):
            return False
        return share is None or type(share) is self._share


cdef object _MOST_UNITS = 1 << 62

cdef _LimiterFields _limiter_fields = None


cdef inline _LimiterFields _of_limiters():
    global _limiter_fields
    if _limiter_fields is None:
        _limiter_fields = _LimiterFields()
    return _limiter_fields


@cython.binding(True)
def try_acquire(self, size=1, share=None, held=0, skip_queue=False):
    """See `gateway.concurrency.limiter.Limiter.try_acquire`."""
    cdef _LimiterFields at = _of_limiters()
    cdef Py_ssize_t units, used, of_client
    if not at._has(self, share) or type(size) is not int or size > _MOST_UNITS:
        return _python_version("try_acquire")(self, size, share, held, skip_queue)
    units, used = size, _field(self, at._used)
    if units > <Py_ssize_t>_field(self, at._limit) - used:
        return False
    if <Py_ssize_t>_field(self, at._queued) and _field(self, at._waiting) and not skip_queue:
        return False
    if share is not None:
        of_client = _field(share, at._share_used)
        if (
            units > <Py_ssize_t>_field(self, at._share_limit) - of_client and of_client > <Py_ssize_t>held
        ) or (_field(share, at._share_waiting) and not skip_queue):
            return False
        _set_field(share, at._share_used, of_client + units)
    _set_field(self, at._used, used + units)
    return True


@cython.binding(True)
def release(self, size=1, share=None):
    """See `gateway.concurrency.limiter.Limiter.release`."""
    cdef _LimiterFields at = _of_limiters()
    cdef Py_ssize_t units
    if not at._has(self, share):
        return _python_version("release")(self, size, share)
    units = size
    _set_field(self, at._used, <Py_ssize_t>_field(self, at._used) - units)
    if share is not None:
        _set_field(share, at._share_used, <Py_ssize_t>_field(share, at._share_used) - units)
        if _field(share, at._share_waiting):
            self._advance(share)
    if <Py_ssize_t>_field(self, at._queued):
        self._grant()


cdef class _InferenceFields:
    """Where an `InferRequest` and its context have the fields that layers change."""

    cdef object _call, _context, _tensor, _origin_class
    cdef Py_ssize_t _context_at, _deadline, _metadata, _origin, _has_bytes, _name, _datatype, _shape

    def __cinit__(self):
        from gateway.ir.calls import InferRequest
        from gateway.ir.context import Context, Origin
        from gateway.ir.tensors.tensor import Tensor

        self._call, self._context, self._tensor = InferRequest, Context, Tensor
        self._context_at = _offset(InferRequest, "context")
        self._deadline, self._metadata = _offset(Context, "deadline"), _offset(Context, "metadata")
        self._origin, self._has_bytes = _offset(Context, "origin"), _offset(Origin, "has_bytes")
        self._origin_class = Origin
        self._name, self._datatype = _offset(Tensor, "name"), _offset(Tensor, "datatype")
        self._shape = _offset(Tensor, "shape")
        for kind in (InferRequest, Context):
            if kind.__basicsize__ != _OBJECT_BYTES + sizeof(void*) * len(kind.__struct_fields__):
                raise TypeError(f"{kind} has more than its fields")

    cdef object _changed(self, call, Py_ssize_t field, value):
        """Return a copy of an inference with another *field* of its context; None for another call."""
        if type(call) is not self._call:
            return None
        context = _field(call, self._context_at)
        if type(context) is not self._context:
            return None
        context = _copy_of(context)
        _set_field(context, field, value)
        changed = _copy_of(call)
        _set_field(changed, self._context_at, context)
        return changed


cdef object _copy_of(instance):
    """Return a copy of a Struct that has nothing but its fields."""
    cdef PyTypeObject* kind = Py_TYPE(instance)
    cdef object copy = PyType_GenericAlloc(kind, 0)
    cdef PyObject** here = <PyObject**>(<char*><void*>instance + _OBJECT_BYTES)
    cdef PyObject** there = <PyObject**>(<char*><void*>copy + _OBJECT_BYTES)
    cdef Py_ssize_t index
    for index in range((kind.tp_basicsize - _OBJECT_BYTES) // sizeof(PyObject*)):
        Py_XINCREF(here[index])
        there[index] = here[index]
    return copy


cdef _InferenceFields _inference_fields = None


cdef inline _InferenceFields _of_inferences():
    global _inference_fields
    if _inference_fields is None:
        _inference_fields = _InferenceFields()
    return _inference_fields


def call_with_deadline(call, deadline):
    """See `gateway.ir.calls.call_with_deadline`."""
    cdef _InferenceFields at = _of_inferences()
    changed = at._changed(call, at._deadline, deadline)
    return _python_version("call_with_deadline")(call, deadline) if changed is None else changed


def call_with_metadata(call, metadata):
    """See `gateway.ir.calls.call_with_metadata`."""
    cdef _InferenceFields at = _of_inferences()
    changed = at._changed(call, at._metadata, metadata)
    return _python_version("call_with_metadata")(call, metadata) if changed is None else changed


def is_incomplete(tensors, needs):
    """See `gateway.policies.complete.policy.is_incomplete`."""
    cdef _InferenceFields at = _of_inferences()
    if type(tensors) is not tuple:
        return _python_version("is_incomplete")(tensors, needs)
    for tensor in <tuple>tensors:
        if (
            type(tensor) is not at._tensor
            or not _field(tensor, at._name)
            or _field(tensor, at._datatype) is None
            or _field(tensor, at._shape) is None
        ):
            return _python_version("is_incomplete")(tensors, needs)
    return False
