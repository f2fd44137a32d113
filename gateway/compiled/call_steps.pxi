# Steps of most calls: concurrency/timeouts.py, telemetry/upstream_metrics.py, ir/tensors/validation.py, backends/validation.py,
# policies/hand_over/pool.py.


cdef class _TimeoutFields:
    """Where timeouts and their wheels have their fields."""

    cdef object _timeout, _wheel, _current_task
    cdef Py_ssize_t _task, _before, _has_expired, _step, _loop, _start, _end, _latest

    def __cinit__(self):
        from asyncio import current_task

        from gateway.concurrency.timeouts import TimerWheel, WheelTimeout

        self._timeout, self._wheel, self._current_task = WheelTimeout, TimerWheel, current_task
        self._task, self._before = _offset(WheelTimeout, "_task"), _offset(WheelTimeout, "_before")
        self._has_expired, self._step = _offset(WheelTimeout, "has_expired"), _offset(WheelTimeout, "_step")
        self._loop, self._latest = _offset(TimerWheel, "loop"), _offset(TimerWheel, "_latest")
        self._start, self._end = _offset(TimerWheel, "_start"), _offset(TimerWheel, "_end")

    cdef object _step_of(self, wheel, double when):
        """Return the step of a deadline, which is the latest one nearly always."""
        if not <double>_field(wheel, self._start) <= when < <double>_field(wheel, self._end):
            wheel.turn_to(when)
        return _field(wheel, self._latest)

    cdef object _new(self, wheel, deadline):
        """Return a `WheelTimeout`; None where Python must make it."""
        cdef double when = deadline
        if type(wheel) is not self._wheel:
            return None
        task = self._current_task(_field(wheel, self._loop))
        if task is None:
            return None
        step = self._step_of(wheel, when)
        timeout = PyType_GenericAlloc(<PyTypeObject*><void*>self._timeout, 0)
        _set_field(timeout, self._task, task)
        _set_field(timeout, self._before, task.cancelling())
        _set_field(timeout, self._has_expired, False)
        _set_field(timeout, self._step, step)
        step.add(timeout)
        return timeout


cdef _TimeoutFields _timeout_fields = None


cdef inline _TimeoutFields _of_timeouts():
    global _timeout_fields
    if _timeout_fields is None:
        _timeout_fields = _TimeoutFields()
    return _timeout_fields


def start_timeout(call, double own_s, double now, wheel):
    """See `gateway.policies.limits.policy.start_timeout`."""
    cdef _InferenceFields at = _of_inferences()
    if type(call) is not at._call:
        return None
    context = _field(call, at._context_at)
    if type(context) is not at._context:
        return None
    origin = _field(context, at._origin)
    if type(origin) is not at._origin_class or not _field(origin, at._has_bytes):
        return None
    deadline = _field(context, at._deadline)
    is_own = deadline is None or now + own_s < <double>deadline
    if is_own:
        deadline = now + own_s
    if <double>deadline <= now:
        return None
    timeout = _of_timeouts()._new(wheel, deadline)
    if timeout is None:
        return _python_version("start_timeout")(call, own_s, now, wheel)
    return at._changed(call, at._deadline, deadline) if is_own else call, timeout, deadline


cdef class _WireFields:
    """Where messages as values have their parts."""

    cdef object _http_request, _http_response, _grpc_request, _grpc_response
    cdef Py_ssize_t _asked, _rest, _answered, _called, _call_rest, _returned

    def __cinit__(self):
        from gateway.wire.grpc import GrpcRequest, GrpcResponse
        from gateway.wire.http import HttpRequest, HttpResponse

        self._http_request, self._http_response = HttpRequest, HttpResponse
        self._grpc_request, self._grpc_response = GrpcRequest, GrpcResponse
        self._asked, self._rest = _offset(HttpRequest, "body"), _offset(HttpRequest, "body_stream")
        self._answered, self._returned = _offset(HttpResponse, "body"), _offset(GrpcResponse, "message")
        self._called, self._call_rest = _offset(GrpcRequest, "message"), _offset(GrpcRequest, "rest")

    cdef object _parts(self, wire):
        """Return the parts of a complete message; None for anything else."""
        if type(wire) is self._http_request:
            return _field(wire, self._asked) if _field(wire, self._rest) is None else None
        if type(wire) is self._http_response:
            return _field(wire, self._answered)
        if type(wire) is self._grpc_request:
            return _field(wire, self._called) if _field(wire, self._call_rest) is None else None
        return _field(wire, self._returned) if type(wire) is self._grpc_response else None


cdef _WireFields _wire_fields = None


def wire_bytes(wire):
    """See `gateway.wire.http.wire_bytes`."""
    global _wire_fields
    if _wire_fields is None:
        _wire_fields = _WireFields()
    parts = _wire_fields._parts(wire)
    if type(parts) is tuple and len(<tuple>parts) == 1:
        return PyObject_Size((<tuple>parts)[0])
    return wire.size_bytes


cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object)


cdef class _ModelFields:
    """Where the tensors of a model and its declarations have their fields."""

    cdef object _tensor, _declared, _array_data, _raw_data, _array, _no_parameters, _matches
    cdef object _streamed_data, _request
    cdef tuple _checked  # datatypes whose bytes must be looked at
    cdef Py_ssize_t _least_large, _inputs
    cdef Py_ssize_t _name, _datatype, _shape, _data, _view
    cdef Py_ssize_t _declared_name, _declared_datatype, _declared_shape

    def __cinit__(self):
        from numpy import ndarray

        from gateway.ir.calls import InferRequest
        from gateway.ir.context import NO_PARAMETERS
        from gateway.ir.tensors.data import ArrayData, RawData, StreamedData
        from gateway.ir.tensors.datatypes import Datatype
        from gateway.ir.metadata import TensorMetadata
        from gateway.ir.tensors.tensor import Tensor
        from gateway.ir.tensors.validation import shape_matches
        from gateway.policies.hand_over.pool import LEAST_BYTES

        self._tensor, self._declared, self._array_data = Tensor, TensorMetadata, ArrayData
        self._array, self._no_parameters, self._matches = ndarray, NO_PARAMETERS, shape_matches
        self._raw_data, self._checked = RawData, (Datatype.BYTES, Datatype.BOOL)
        self._streamed_data, self._least_large = StreamedData, LEAST_BYTES
        self._request, self._inputs = InferRequest, _offset(InferRequest, "inputs")
        self._data, self._view = _offset(Tensor, "data"), _offset(RawData, "view")
        self._name, self._datatype = _offset(Tensor, "name"), _offset(Tensor, "datatype")
        self._shape, self._declared_name = _offset(Tensor, "shape"), _offset(TensorMetadata, "name")
        self._declared_datatype = _offset(TensorMetadata, "datatype")
        self._declared_shape = _offset(TensorMetadata, "shape")


cdef _ModelFields _model_fields = None


cdef inline _ModelFields _of_models():
    global _model_fields
    if _model_fields is None:
        _model_fields = _ModelFields()
    return _model_fields


def are_declared(tensors, declared):
    """See `gateway.ir.tensors.validation.are_declared`."""
    cdef _ModelFields at = _of_models()
    cdef Py_ssize_t index
    if type(tensors) is not tuple or type(declared) is not tuple:
        return _python_version("are_declared")(tensors, declared)
    if len(<tuple>tensors) != len(<tuple>declared):
        return False
    for index in range(len(<tuple>tensors)):
        tensor, one = (<tuple>tensors)[index], (<tuple>declared)[index]
        if type(tensor) is not at._tensor or type(one) is not at._declared:
            return _python_version("are_declared")(tensors, declared)
        if _field(tensor, at._name) != _field(one, at._declared_name):
            return False
        if _field(tensor, at._datatype) is not _field(one, at._declared_datatype):
            return False
        shape, expected = _field(tensor, at._shape), _field(one, at._declared_shape)
        if shape is None or (shape != expected and not at._matches(shape, expected)):
            return False
    return True


def plain_outputs(dict expected not None, arrays, names):
    """See `gateway.backends.validation.plain_outputs`."""
    cdef _ModelFields at = _of_models()
    cdef list tensors = []
    cdef tuple one
    for name in names:
        array, one = arrays.get(name), <tuple?>expected[name]
        if type(array) is not at._array or array.dtype is not one[1]:
            return None
        shape = array.shape
        if shape != one[2] and not at._matches(shape, one[2]):
            return None
        data = at._array_data(array)
        tensors.append(at._tensor(name, one[0], shape, data, at._no_parameters))
    return tuple(tensors)


def has_large_input(call):
    """See `gateway.policies.hand_over.policy.has_large_input`."""
    cdef _ModelFields at = _of_models()
    if type(call) is not at._request:
        return _python_version("has_large_input")(call)
    for tensor in <tuple?>_field(call, at._inputs):
        if type(tensor) is not at._tensor:
            return _python_version("has_large_input")(call)
        data = _field(tensor, at._data)
        if type(data) is at._raw_data:
            if PyMemoryView_GET_BUFFER(<memoryview?>_field(data, at._view)).len >= at._least_large:
                return True
        elif type(data) is at._streamed_data and <Py_ssize_t>data.size_bytes >= at._least_large:
            return True
    return False


def raw_array(tensor):
    """See `gateway.ir.tensors.tensor.raw_array`."""
    cdef _ModelFields at = _of_models()
    if type(tensor) is not at._tensor:
        return None
    datatype, shape, data = _field(tensor, at._datatype), _field(tensor, at._shape), _field(tensor, at._data)
    if datatype is None or shape is None or datatype in at._checked or type(data) is not at._raw_data:
        return None
    view = _field(data, at._view)
    try:
        array = at._array(shape, datatype.numpy_dtype, view)
    except (TypeError, ValueError):
        return None
    return array if array.nbytes == PyObject_Size(view) else None


def address_of(view):
    """See `gateway.policies.hand_over.pool.address_of`."""
    cdef Py_buffer raw
    PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
    cdef Py_ssize_t address = <Py_ssize_t>raw.buf
    PyBuffer_Release(&raw)
    return address
