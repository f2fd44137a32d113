# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True
"""The compiled versions of hot functions, in typed code over raw bytes.

`gateway/accelerator.py` decides whether they are used. Each has the name, the results and the errors
of a Python function that is decorated with `accelerated`. What is unusual is left to that function.

The files of `gateway/compiled` are parts of this one: `bytes.pxi` and `message_parts.pxi` serve the
others, and each of those names the modules with its functions in Python.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject_Size
from cpython.ref cimport Py_INCREF, Py_XDECREF, Py_XINCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from struct import error as StructError
from types import MemberDescriptorType

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    const unsigned char* PyUnicode_1BYTE_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)

ctypedef const unsigned char* Text

cdef int _each  # in the loops that fill tables


cdef object _python_version(str name):
    """Return the Python version of a function."""
    from gateway.accelerator import PYTHON_VERSIONS  # which imports this module

    return PYTHON_VERSIONS[name]


include "compiled/bytes.pxi"
include "compiled/base64.pxi"
include "compiled/json_numbers.pxi"
include "compiled/json_lists.pxi"
include "compiled/message_parts.pxi"
include "compiled/datatypes.pxi"
include "compiled/json_templates.pxi"
include "compiled/message_writers.pxi"
include "compiled/tensor_parts.pxi"
include "compiled/json_requests.pxi"
include "compiled/headers.pxi"
include "compiled/head_templates.pxi"
include "compiled/http2_frames.pxi"
include "compiled/header_blocks.pxi"
include "compiled/protobuf_layouts.pxi"
include "compiled/protobuf_messages.pxi"
include "compiled/described_messages.pxi"
include "compiled/calls.pxi"
include "compiled/call_steps.pxi"
include "compiled/inferences.pxi"
include "compiled/exchanges.pxi"
include "compiled/http1_clients.pxi"
include "compiled/http2_streams.pxi"
include "compiled/grpc_calls.pxi"
