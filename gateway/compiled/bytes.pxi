# Text and bytes: what several of the functions copy and check.


cdef inline char* _put(char* out, bytes part) noexcept:
    memcpy(out, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return out + PyBytes_GET_SIZE(part)


cdef inline char* _put_text(char* out, const char* text, Py_ssize_t size) noexcept:
    memcpy(out, text, size)
    return out + size


cdef char* _put_content(char* out, buffers, Py_ssize_t size) except NULL:
    """Copy buffers of *size* bytes, and return the position after them."""
    cdef Py_ssize_t left = size
    cdef Py_ssize_t length
    cdef Py_buffer raw
    for buffer in buffers:
        if type(buffer) is bytes:
            length = PyBytes_GET_SIZE(<bytes>buffer)
            if length <= left:
                memcpy(out, PyBytes_AS_STRING(<bytes>buffer), length)
        else:
            PyObject_GetBuffer(buffer, &raw, PyBUF_SIMPLE)
            length = raw.len
            if length <= left:
                memcpy(out, raw.buf, length)
            PyBuffer_Release(&raw)
        left -= length  # once it is negative, nothing is copied
        out += length
    if left:
        raise ValueError(f"the content has {size - left} bytes, {size} are announced")
    return out


cdef bint _is_plain(text) noexcept:
    """Return whether a text stands in JSON as it is."""
    cdef Text at
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(text)
    if not PyUnicode_IS_COMPACT_ASCII(text):
        return False
    at = PyUnicode_1BYTE_DATA(text)
    return _is_printable(at, size) and not memchr(at, c'"', size) and not memchr(at, c'\\', size)


cdef inline Py_ssize_t _printable(Text at, Py_ssize_t size) noexcept:
    """Return how many of the first bytes of a text are known to be printable ASCII, in eights."""
    cdef Py_ssize_t index = 0
    cdef uint64_t eight
    while index + 8 <= size:
        memcpy(&eight, at + index, 8)
        # Each byte below 0x20, of 0x7F or above sets its highest bit in one of the three.
        eight |= (eight - 0x2020202020202020ULL) | (eight + 0x0101010101010101ULL)
        if eight & 0x8080808080808080ULL:
            break
        index += 8
    return index


cdef bint _is_printable(Text at, Py_ssize_t size) noexcept:
    """Return whether a text is printable ASCII."""
    cdef Py_ssize_t index
    for index in range(_printable(at, size), size):
        if not 0x20 <= at[index] < 0x7F:
            return False
    return True
