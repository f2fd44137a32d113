# Metadata of gRPC and the head of an HTTP/1 response: transports/grpc/headers.py, http/response_writer.py.

cdef enum:
    _SHORT_TEXT = 127  # from this length, HPACK writes a length in more than one byte
    _MAX_FIELDS = 64  # more are left to Python

cdef uint8_t _IN_KEY[256]
for _each in b"-_.0123456789abcdefghijklmnopqrstuvwxyz":
    _IN_KEY[_each] = 1

_RESERVED_KEYS = frozenset({"te", "content-type", "user-agent", "host", "connection"})


cdef inline Py_ssize_t _short_text(value, Text* at) noexcept:
    """Return the length of a short ASCII text, and set *at*; -1 for anything else."""
    if not PyUnicode_CheckExact(value) or not PyUnicode_IS_COMPACT_ASCII(value):
        return -1
    at[0] = PyUnicode_1BYTE_DATA(value)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(value)
    return size if size < _SHORT_TEXT else -1


cdef inline bint _is_text_key(key, Text at, Py_ssize_t size) except -1:
    """Return whether *key* is sent, with a text; see `gateway.transports.grpc.metadata.kind_of`."""
    cdef Py_ssize_t index
    for index in range(size):
        if not _IN_KEY[at[index]]:
            return False
    if size >= 4 and not memcmp(at + size - 4, b"-bin", 4):
        return False
    if size >= 5 and not memcmp(at, b"grpc-", 5):
        return False
    return size > 0 and key not in _RESERVED_KEYS


cdef enum:
    _KNOWN_NAMES = 1024  # clients choose the names
    _KNOWN_CHARS = 64


cdef object _known(dict known, function, name):
    """Return what *function* returns for the name of a field, from *known* if it was asked before."""
    cdef PyObject* found = PyDict_GetItem(known, name)
    if found is not NULL:
        return <object>found
    value = function(name)
    if len(known) < _KNOWN_NAMES and len(name) <= _KNOWN_CHARS:
        known[name] = value
    return value


cdef struct _Fields:
    Py_ssize_t count
    Text keys[_MAX_FIELDS]
    Text values[_MAX_FIELDS]
    uint8_t key_sizes[_MAX_FIELDS]
    uint8_t value_sizes[_MAX_FIELDS]


cdef Py_ssize_t _read_fields(metadata, _Fields* fields) except -2:
    """Return how many bytes of a block plain metadata takes; -1 for other metadata."""
    cdef Py_ssize_t index, key_size, value_size
    cdef Py_ssize_t total = 0
    cdef tuple pair
    if type(metadata) is not tuple or len(<tuple>metadata) > _MAX_FIELDS:
        return -1
    fields.count = len(<tuple>metadata)
    for index in range(fields.count):
        if type((<tuple>metadata)[index]) is not tuple:
            return -1
        pair = <tuple>(<tuple>metadata)[index]
        if len(pair) != 2:
            return -1
        key_size = _short_text(pair[0], &fields.keys[index])
        value_size = _short_text(pair[1], &fields.values[index])
        if key_size < 0 or value_size < 0 or not _is_text_key(pair[0], fields.keys[index], key_size):
            return -1
        if not _is_printable(fields.values[index], value_size):
            return -1
        fields.key_sizes[index], fields.value_sizes[index] = key_size, value_size
        total += 3 + key_size + value_size
    return total


cdef char* _put_fields(char* out, _Fields* fields) noexcept:
    """Write metadata as literal fields that are not indexed."""
    cdef Py_ssize_t index
    for index in range(fields.count):
        out[0], out[1] = 0, fields.key_sizes[index]
        out = _put_text(out + 2, <const char*>fields.keys[index], fields.key_sizes[index])
        out[0] = fields.value_sizes[index]
        out = _put_text(out + 1, <const char*>fields.values[index], fields.value_sizes[index])
    return out


def with_metadata(bytes block not None, metadata):
    """See `gateway.transports.grpc.headers.with_metadata`."""
    cdef _Fields fields
    cdef Py_ssize_t total = _read_fields(metadata, &fields)
    if total < 0:
        return _python_version("with_metadata")(block, metadata)
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(block) + total)
    _put_fields(_put(PyBytes_AS_STRING(joined), block), &fields)
    return joined


cpdef bint is_printable_ascii(str text) except -1:
    """See `gateway.wire.http.is_printable_ascii`."""
    return PyUnicode_IS_COMPACT_ASCII(text) and _is_printable(
        PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text)
    )


_is_key = None
cdef dict _keys = {}


def metadata_with_id(tuple pairs not None, str request_id not None):
    """See `gateway.wire.heads.metadata.metadata_with_id`."""
    global _is_key
    cdef list metadata = []
    cdef bint has_id = False
    cdef tuple pair
    if _is_key is None:
        from gateway.wire.heads.metadata import is_key

        _is_key = is_key
    for each in pairs:
        pair = <tuple?>each
        if len(pair) != 2 or not _known(_keys, _is_key, pair[0]) or not is_printable_ascii(pair[1]):
            return _python_version("metadata_with_id")(pairs, request_id)
        metadata.append(pair)
        has_id = has_id or pair[0] == "x-request-id"
    if request_id and not has_id:
        metadata.append(("x-request-id", request_id))
    return tuple(metadata)


_is_header = None
cdef dict _headers = {}


def headers_with_id(tuple pairs not None, str request_id not None, str without not None):
    """See `gateway.wire.heads.metadata.headers_with_id`."""
    global _is_header
    cdef list kept = None
    cdef Py_ssize_t index = 0
    cdef bint has_id = False
    cdef tuple pair
    if _is_header is None:
        from gateway.wire.heads.metadata import is_header

        _is_header = is_header
    for each in pairs:
        pair = <tuple?>each
        if not is_printable_ascii(pair[1]):
            return _python_version("headers_with_id")(pairs, request_id, without)
        if (
            not _known(_headers, _is_header, pair[0])
            or (without and pair[0].startswith(without))
        ):
            if kept is None:
                kept = list(pairs[:index])
        else:
            has_id = has_id or pair[0] == "x-request-id"
            if kept is not None:
                kept.append(pair)
        index += 1
    if kept is not None:
        pairs = tuple(kept)
    return pairs if has_id or not request_id else pairs + (("x-request-id", request_id),)


cdef class _HeadersFields:
    """Where header fields have what is known of them, and what writes them as lines."""

    cdef object _headers, _extended, _begin_of_line, _lines
    cdef Py_ssize_t _pairs, _lowered, _read, _positions, _base, _more

    def __cinit__(self):
        from gateway.transports.http import client_rules
        from gateway.wire.http import ExtendedHeaders, Headers

        self._headers, self._extended = Headers, ExtendedHeaders
        self._begin_of_line, self._lines = client_rules.begin_of_line, client_rules._lines
        self._pairs, self._lowered = _offset(Headers, "pairs"), _offset(Headers, "_lowered")
        self._read, self._positions = _offset(Headers, "_read"), _offset(Headers, "positions")
        self._base, self._more = _offset(ExtendedHeaders, "base"), _offset(ExtendedHeaders, "more")

    cdef object _places(self, headers):
        """Return where the values of a template stand, by name; None for other fields."""
        if type(headers) is not self._headers:
            return None
        places = _field(headers, self._positions)
        return places if type(places) is dict else None

    cdef object _extend(self, base, tuple pairs, tuple more):
        """Return an `ExtendedHeaders`."""
        headers = PyType_GenericAlloc(<PyTypeObject*><void*>self._extended, 0)
        _set_field(headers, self._pairs, pairs + more)
        _set_field(headers, self._lowered, None)
        _set_field(headers, self._read, _UNREAD)
        _set_field(headers, self._positions, None)
        _set_field(headers, self._base, base)
        _set_field(headers, self._more, more)
        return headers

    cdef object _lines_of(self, headers):
        """Return the lines of fields, which are cached with them."""
        cdef tuple read = <tuple?>_field(headers, self._read)
        return read[1] if read[0] is self._lines else headers.parsed_with(self._lines)


cdef _HeadersFields _headers_fields = None


cdef inline _HeadersFields _of_headers():
    global _headers_fields
    if _headers_fields is None:
        _headers_fields = _HeadersFields()
    return _headers_fields


def extended_headers(base, tuple pairs not None, str request_id not None):
    """See `gateway.wire.heads.metadata.extended_headers`."""
    cdef _HeadersFields of = _of_headers()
    if type(base) is not of._headers:
        return _python_version("extended_headers")(base, pairs, request_id)
    return of._extend(base, <tuple?>_field(base, of._pairs), headers_with_id(pairs, request_id, ""))


cdef dict _begins = {}


cdef bytes _LINE_END = b"\r\n"
cdef str _REFUSES_CODINGS = "Accept-Encoding: identity\r\n"


cdef str _text_lines(_HeadersFields of, tuple pairs, str before, str coding, bint* has_coding):
    """Return *before*, the lines of fields, and *coding* if none is there; None for odd fields."""
    cdef list parts = []
    cdef Py_ssize_t total = PyUnicode_GET_LENGTH(before)
    cdef Py_ssize_t index
    cdef tuple pair
    cdef char* out
    has_coding[0] = False
    if not PyUnicode_IS_COMPACT_ASCII(before) or not PyUnicode_IS_COMPACT_ASCII(coding):
        return None
    for each in pairs:
        pair = <tuple?>each
        begin = _known(_begins, of._begin_of_line, pair[0])
        if begin is None:
            continue
        if not is_printable_ascii(pair[1]) or not PyUnicode_IS_COMPACT_ASCII(begin):
            return None
        parts.append(begin)
        parts.append(pair[1])
        total += PyUnicode_GET_LENGTH(begin) + PyUnicode_GET_LENGTH(pair[1]) + 2
        if PyUnicode_GET_LENGTH(pair[0]) == 15 and pair[0].lower() == "accept-encoding":
            has_coding[0] = True
    if not has_coding[0]:
        total += PyUnicode_GET_LENGTH(coding)
    text = PyUnicode_New(total, 127)
    out = _put_ascii(<char*>PyUnicode_1BYTE_DATA(text), before)
    for index in range(0, len(parts), 2):
        out = _put_ascii(_put_ascii(out, <str>parts[index]), <str>parts[index + 1])
        out[0], out[1] = c"\r", c"\n"
        out += 2
    if not has_coding[0]:
        _put_ascii(out, coding)
    return <str>text


cdef inline char* _put_ascii(char* out, text) noexcept:
    """Copy a compact ASCII text, and return the position after it."""
    return _put_text(out, <const char*>PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text))


def field_lines(tuple pairs not None, str coding not None=_REFUSES_CODINGS):
    """See `gateway.transports.http.client_rules.field_lines`."""
    cdef bint has_coding = False
    lines = _text_lines(_of_headers(), pairs, "", coding, &has_coding)
    return _python_version("field_lines")(pairs, coding) if lines is None else lines


def lines_of(headers):
    """See `gateway.transports.http.client_rules.lines_of`."""
    cdef _HeadersFields of = _of_headers()
    cdef bint has_coding = False
    if type(headers) is of._headers:
        return of._lines_of(headers)
    if type(headers) is of._extended:
        base = _field(headers, of._base)
        if type(base) is of._headers:
            lines = _text_lines(of, <tuple?>_field(headers, of._more), <str?>of._lines_of(base), "", &has_coding)
            if lines is not None and not has_coding:
                return lines
    return _python_version("lines_of")(headers)


_prefix_of_field = None
cdef dict _prefixes = {}


cpdef tuple response_lines(tuple pairs):
    """See `gateway.transports.http.response_writer.response_lines`."""
    global _prefix_of_field
    cdef list parts = []
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t index
    cdef tuple prefix
    cdef bint has_date = False
    cdef bytes lines
    cdef char* out
    if _prefix_of_field is None:
        from gateway.transports.http.response_writer import _field_prefix

        _prefix_of_field = _field_prefix
    for name, value in pairs:
        prefix = _known(_prefixes, _prefix_of_field, name)
        begin = prefix[0]
        if not PyUnicode_GET_LENGTH(begin):
            continue
        if not is_printable_ascii(value) or not PyUnicode_IS_COMPACT_ASCII(begin):
            return _python_version("response_lines")(pairs)
        parts.append(begin)
        parts.append(value)
        total += PyUnicode_GET_LENGTH(begin) + PyUnicode_GET_LENGTH(value) + 2
        has_date = has_date or prefix[1] is True
    lines = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(lines)
    for index in range(0, len(parts), 2):
        begin, value = parts[index], parts[index + 1]
        out = _put_text(out, <const char*>PyUnicode_1BYTE_DATA(begin), PyUnicode_GET_LENGTH(begin))
        out = _put_text(out, <const char*>PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value))
        out[0], out[1] = c"\r", c"\n"
        out += 2
    return lines, has_date


def first_value(fields not None, str wanted not None):
    """See `gateway.transports.callers.first_value`."""
    if type(fields) is not tuple:
        return _python_version("first_value")(fields, wanted)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(wanted)
    for pair in <tuple>fields:
        name, value = pair
        if PyUnicode_GET_LENGTH(<str?>name) == size and isinstance(value, str):
            if name == wanted or name.lower() == wanted:
                return value
    return ""


cdef uint64_t _lengths_of(names) except? 0:
    """Return the lengths of names as bits; those of 63 and more share one."""
    cdef uint64_t lengths = 0
    for name in <frozenset>names:
        lengths |= <uint64_t>1 << min(PyUnicode_GET_LENGTH(<str?>name), 63)
    return lengths


cdef inline bint _may_be(str name, uint64_t lengths) noexcept:
    """Return whether a name in lower case can have one of the lengths; only ASCII keeps its own."""
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(name)
    return lengths >> min(size, 63) & 1 or not PyUnicode_IS_COMPACT_ASCII(name)


def texts_among(pairs not None, names not None):
    """See `gateway.wire.heads.fields.texts_among`."""
    if type(pairs) is not tuple or type(names) is not frozenset:
        return _python_version("texts_among")(pairs, names)
    cdef uint64_t lengths = _lengths_of(names)
    cdef list found = []
    for name, value in <tuple>pairs:
        if _may_be(<str?>name, lengths):
            key = (<str>name).lower()
            if key in <frozenset>names and isinstance(value, str):
                found.append((key, value))
    return found


def pairs_without(tuple pairs not None, names not None):
    """See `gateway.wire.heads.fields.pairs_without`."""
    if type(names) is not frozenset:
        return _python_version("pairs_without")(pairs, names)
    cdef uint64_t lengths = _lengths_of(names)
    cdef list kept = None
    cdef Py_ssize_t index = 0
    for pair in pairs:
        name = pair[0]
        if _may_be(<str?>name, lengths) and (<str>name).lower() in <frozenset>names:
            if kept is None:
                kept = list(pairs[:index])
        elif kept is not None:
            kept.append(pair)
        index += 1
    return pairs if kept is None else tuple(kept)


def texts_and_id(tuple metadata not None):
    """See `gateway.wire.heads.metadata.texts_and_id`."""
    cdef str found = ""
    for pair in metadata:
        if len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            return _python_version("texts_and_id")(metadata)
        if PyUnicode_GET_LENGTH(pair[0]) == 12 and pair[0] == "x-request-id":
            found = <str>pair[1]
            if len(found) > 128 or not is_printable_ascii(found):
                found = ""
    return metadata, found


cpdef object sender_metadata(headers):
    """See `gateway.wire.heads.metadata.sender_metadata`."""
    cdef _HeadersFields of = _of_headers()
    cdef PyObject* place
    cdef str found
    places = of._places(headers)
    lowered = None if places is None else _field(headers, of._lowered)
    if type(lowered) is not tuple:
        return _python_version("sender_metadata")(headers)
    place = PyDict_GetItem(places, "x-request-id")
    if place is NULL:
        return lowered, ""
    found = <str?>(<tuple>(<tuple>lowered)[<Py_ssize_t><object>place])[1]
    if PyUnicode_GET_LENGTH(found) > 128 or not is_printable_ascii(found):
        found = ""
    return lowered, found


def json_length(headers):
    """See `gateway.protocols.oip.json.binary_tensors.json_length`."""
    cdef _HeadersFields of = _of_headers()
    cdef int64_t length
    cdef PyObject* place
    places = of._places(headers)
    pairs = None if places is None else _field(headers, of._pairs)
    if type(pairs) is tuple and len(<dict>places) == len(<tuple>pairs):
        place = PyDict_GetItem(places, "inference-header-content-length")
        if place is NULL:
            return None
        text = (<tuple>(<tuple>pairs)[<Py_ssize_t><object>place])[1]
        if PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text) and PyUnicode_GET_LENGTH(text):
            length = _length(PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text))
            if length >= 0:
                return length
    return _python_version("json_length")(headers)


def pairs_named(tuple metadata not None, is_wanted not None):
    """See `gateway.policies.forward_headers.pairs_named`."""
    cdef list found = None
    cdef Py_ssize_t index = 0
    for pair in metadata:
        if is_wanted[pair[0]]:
            if found is not None:
                found.append(pair)
        elif found is None:
            found = list(metadata[:index])
        index += 1
    return metadata if found is None else tuple(found)


cdef bytes _VARIES = b"Vary: Accept-Encoding\r\n"
cdef bytes _REQUEST_ID = b"x-request-id: "
cdef bytes _LENGTH = b"Content-Length: "


def join_response(
    bytes first not None,
    bytes fields not None,
    str request_id not None,
    bint varies,
    Py_ssize_t length,
    bytes end not None,
    body,
):
    """See `gateway.transports.http.response_writer.join_response`."""
    cdef Text text = NULL
    cdef char digits[_WIDEST]
    cdef char* digit = digits + _WIDEST
    cdef Py_ssize_t rest = length
    cdef Py_ssize_t content = length if body else 0
    cdef Py_ssize_t id_size
    cdef Py_ssize_t total = PyBytes_GET_SIZE(first) + PyBytes_GET_SIZE(fields) + PyBytes_GET_SIZE(end)
    cdef bytes joined
    cdef char* out
    id_size = _short_text(request_id, &text)
    if id_size < 0 or content < 0 or not _is_printable(text, id_size):
        python = _python_version("join_response")
        return python(first, fields, request_id, varies, length, end, body)
    if id_size:
        total += PyBytes_GET_SIZE(_REQUEST_ID) + id_size + 2
    if varies:
        total += PyBytes_GET_SIZE(_VARIES)
    if length >= 0:
        while True:
            digit -= 1
            digit[0] = <char>(c"0" + rest % 10)
            rest //= 10
            if not rest:
                break
        total += PyBytes_GET_SIZE(_LENGTH) + (digits + _WIDEST - digit) + 2
    total += content
    joined = PyBytes_FromStringAndSize(NULL, total)
    out = _put(_put(PyBytes_AS_STRING(joined), first), fields)
    if id_size:
        out = _put_text(_put(out, _REQUEST_ID), <const char*>text, id_size)
        out = _put(out, _LINE_END)
    if varies:
        out = _put(out, _VARIES)
    if length >= 0:
        out = _put_text(_put(out, _LENGTH), digit, digits + _WIDEST - digit)
        out = _put(out, _LINE_END)
    _put_content(_put(out, end), body, content)
    return joined
