# Header blocks of HTTP/2, and heads of calls: transports/http2/hpack.py and transports/grpc/headers.py.

cdef enum:
    _STATIC_FIELDS = 61
    _CODED_BYTES = 4096  # a longer string is left to Python
    _HUFFMAN_STATES = 256
    _OVERHEAD = 32
    _TIMEOUT_DIGITS = 8

# By state and half a byte: the next state in 8 bits, the flags, and the symbol above 16 bits.
cdef uint32_t _huffman[_HUFFMAN_STATES * 16]
cdef enum:
    _COMPLETE = 1 << 8
    _EMIT = 1 << 9
    _FAIL = 1 << 10

# By the next 12 bits of a string: one symbol or two in 8 bits each, their number, the bits of both
# and of the first, in 4 bits each; 0 for a longer code.
cdef uint32_t _pairs[1 << 12]
cdef enum:
    _LOOKED_AT = 12

_static_table = None


cdef int _fill_pairs(codes, lengths) except -1:
    """Fill the table of pairs from the code of each symbol and the number of its bits."""
    cdef uint32_t first, second, bits
    cdef int index, symbol
    cdef list single = [0] * (1 << _LOOKED_AT)
    for symbol in range(256):
        bits = lengths[symbol]
        if bits <= _LOOKED_AT:
            for index in range(1 << (_LOOKED_AT - bits)):
                single[codes[symbol] << (_LOOKED_AT - bits) | index] = symbol | bits << 24
    for index in range(1 << _LOOKED_AT):
        first = single[index]
        bits = first >> 24
        _pairs[index] = first | bits << 20 | 1 << 16 if first else 0
        second = single[index << bits & 0xFFF] if first else 0
        if second and bits + (second >> 24) <= _LOOKED_AT:
            _pairs[index] = first | (second & 0xFF) << 8 | 2 << 16 | (bits + (second >> 24)) << 20
    return 0


cdef Py_ssize_t _decode_pairs(Text here, Text end, char* out) noexcept:
    """Decode a string of symbols with short codes, two at a time; -1 for any other string."""
    cdef uint64_t bits = 0
    cdef int count = 0
    cdef int size
    cdef uint32_t entry
    cdef char* last = out
    while True:
        if count < _LOOKED_AT:
            if end - here >= 4:
                bits = bits << 32 | <uint64_t>here[0] << 24 | here[1] << 16 | here[2] << 8 | here[3]
                count += 32
                here += 4
            else:
                while here < end:
                    bits = bits << 8 | here[0]
                    count += 8
                    here += 1
                if count < _LOOKED_AT:
                    break
        entry = _pairs[bits >> (count - _LOOKED_AT) & 0xFFF]
        if not entry:
            return -1
        last[0], last[1] = <char>entry, <char>(entry >> 8)
        last += entry >> 16 & 15
        count -= entry >> 20 & 15
    while count:
        bits &= (<uint64_t>1 << count) - 1
        if count < 8 and bits == (<uint64_t>1 << count) - 1:
            break  # padding
        entry = _pairs[bits << (_LOOKED_AT - count) | ((1 << (_LOOKED_AT - count)) - 1)]
        size = entry >> 24
        if not entry or size > count:
            return -1
        last[0] = <char>entry
        last += 1
        count -= size
    return last - out


cdef tuple _static():
    """Return the static table; at first, read the code of Huffman, too."""
    global _static_table
    cdef int index
    if _static_table is None:
        from hpack import huffman_constants as constants
        from hpack import huffman_table as code

        from gateway.transports.http2.hpack import STATIC

        for index, (state, flags, symbol) in enumerate(code.HUFFMAN_TABLE):
            _huffman[index] = (
                state | symbol << 16
                | (_COMPLETE if flags & code.HUFFMAN_COMPLETE else 0)
                | (_EMIT if flags & code.HUFFMAN_EMIT_SYMBOL else 0)
                | (_FAIL if flags & code.HUFFMAN_FAIL else 0)
            )
        _fill_pairs(constants.REQUEST_CODES, constants.REQUEST_CODES_LENGTH)
        _static_table = STATIC
    return <tuple>_static_table


cdef Py_ssize_t _prefixed(Text* at, Text end, int prefix) noexcept:
    """Read an integer of few bytes; -1 for another one, or where the block ends."""
    cdef Py_ssize_t value
    cdef int shift = 0
    if at[0] >= end:
        return -1
    value = at[0][0] & prefix
    at[0] += 1
    if value < prefix:
        return value
    while shift <= 14:
        if at[0] >= end:
            return -1
        value += <Py_ssize_t>(at[0][0] & 0x7F) << shift
        at[0] += 1
        if not (at[0] - 1)[0] & 0x80:
            return value
        shift += 7
    return -1


cdef Py_ssize_t _text(Text* at, Text end, char* out, Text* found) noexcept:
    """Read a string into *out*, or find it in the block; return its size.

    The size is -1 for a long string with Huffman codes, a wrong one, or where the block ends.
    """
    cdef char* last = out
    cdef Py_ssize_t size
    cdef Text coded_end
    cdef Text here
    cdef uint32_t step = _COMPLETE
    cdef uint32_t failed = 0
    cdef bint coded
    if at[0] >= end:
        return -1
    coded = at[0][0] & 0x80
    size = _prefixed(at, end, 0x7F)
    if size < 0 or size > end - at[0]:
        return -1
    if not coded:
        found[0] = at[0]
        at[0] += size
        return size
    if size > _CODED_BYTES:
        return -1
    here, coded_end = at[0], at[0] + size
    size = _decode_pairs(here, coded_end, out)
    if size >= 0:
        at[0], found[0] = coded_end, <Text>out
        return size
    while here < coded_end:
        # Half a byte has one symbol at most: it is written anyhow, and kept if it is one.
        step = _huffman[(step & 0xFF) << 4 | here[0] >> 4]
        last[0] = <char>(step >> 16)
        last += (step & _EMIT) >> 9
        failed |= step
        step = _huffman[(step & 0xFF) << 4 | here[0] & 15]
        last[0] = <char>(step >> 16)
        last += (step & _EMIT) >> 9
        failed |= step
        here += 1
    if failed & _FAIL or not step & _COMPLETE:
        return -1
    at[0] = coded_end
    found[0] = <Text>out
    return last - out


cdef bytes _string(Text* at, Text end, char* out):
    """Read a string; None for one that `_text` does not read."""
    cdef Text found = NULL
    cdef Py_ssize_t size = _text(at, end, out, &found)
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>found, size)


def decode_block(bytes block not None, tuple table not None, Py_ssize_t limit_bytes):
    """See `gateway.transports.http2.hpack.decode_block`."""
    found = _decode_block(block, table, limit_bytes)
    if found is None:
        return _python_version("decode_block")(block, table, limit_bytes)
    return found


cdef tuple _decode_block(bytes block, tuple table, Py_ssize_t limit_bytes):
    """Return what `decode_block` does; None for an error, and for what is unusual."""
    cdef Text at = <Text>PyBytes_AS_STRING(block)
    cdef Text end = at + PyBytes_GET_SIZE(block)
    cdef tuple static = _static()
    cdef list entries = <list>table[0]
    cdef Py_ssize_t size = table[1]
    cdef Py_ssize_t table_bytes = table[2]
    cdef Py_ssize_t remaining = limit_bytes
    cdef Py_ssize_t index, field_bytes
    cdef bint changed = False
    cdef bint inserts
    cdef list fields = []
    cdef tuple field
    cdef bytes name, value
    cdef char out[_CODED_BYTES * 2 + 1]
    while at < end:
        inserts = False
        if at[0] & 0x80:
            index = _prefixed(&at, end, 0x7F)
            if index <= 0:
                return None
            field = _indexed_field(index, static, entries)
            if field is None:
                return None
        else:
            inserts = at[0] & 0x40
            if not inserts and at[0] & 0x20:
                return None  # a size update
            index = _prefixed(&at, end, 0x3F if inserts else 0x0F)
            if index < 0:
                return None
            if index:
                field = _indexed_field(index, static, entries)
                if field is None:
                    return None
                name = <bytes>field[0]
            else:
                name = _string(&at, end, out)
                if name is None:
                    return None
            value = _string(&at, end, out)
            if value is None:
                return None
            field = (name, value)
        field_bytes = PyBytes_GET_SIZE(<bytes>field[0]) + PyBytes_GET_SIZE(<bytes>field[1]) + _OVERHEAD
        remaining -= field_bytes
        if remaining < 0:
            return None
        fields.append(field)
        if inserts:
            if not changed:
                entries = list(entries)
                changed = True
            entries.append(field)
            size = _evicted(entries, size + field_bytes, table_bytes)
    return fields, (entries, size, table_bytes) if changed else table


cdef Py_ssize_t _evicted(list entries, Py_ssize_t size, Py_ssize_t table_bytes) except -1:
    """Remove the oldest entries of a table of *size* bytes until it fits; return its size."""
    cdef Py_ssize_t evicted = 0
    cdef tuple field
    while size > table_bytes:
        field = <tuple>entries[evicted]
        size -= PyBytes_GET_SIZE(<bytes>field[0]) + PyBytes_GET_SIZE(<bytes>field[1]) + _OVERHEAD
        evicted += 1
    if evicted:
        del entries[:evicted]
    return size


cdef inline tuple _indexed_field(Py_ssize_t index, tuple static, list entries):
    """Return an entry of the two tables; None if it does not exist."""
    if index <= _STATIC_FIELDS:
        return <tuple>static[index]
    index = len(entries) - (index - _STATIC_FIELDS)
    return <tuple>entries[index] if index >= 0 else None


_call_heads = None
_names = {}  # texts of the names of fields


cdef double _timeout_s(Text at, Py_ssize_t size) noexcept:
    """Return the seconds of a timeout; -1 for one that Python should read."""
    cdef double amount = 0
    cdef Py_ssize_t index
    if not 2 <= size <= _TIMEOUT_DIGITS + 1:
        return -1
    for index in range(size - 1):
        if not c"0" <= at[index] <= c"9":
            return -1
        amount = amount * 10 + (at[index] - c"0")
    if at[size - 1] == c"H":
        return amount * 3600.0
    if at[size - 1] == c"M":
        return amount * 60.0
    if at[size - 1] == c"S":
        return amount
    if at[size - 1] == c"m":
        return amount * 1e-3
    if at[size - 1] == c"u":
        return amount * 1e-6
    if at[size - 1] == c"n":
        return amount * 1e-9
    return -1


cdef inline bint _is(Text at, Py_ssize_t size, const char* text, Py_ssize_t length) noexcept:
    return size == length and not memcmp(at, text, length)


cdef enum:
    _REFUSED_FIELD
    _OWN_FIELD
    _PATH_FIELD
    _CODING_FIELD
    _METADATA_FIELD
    _MOST_RESIZES = 2
    _TABLE_BYTES = 4096


cdef struct _CallFields:
    int seen
    bint is_call
    double timeout_s


cdef int _call_field(Text name, Py_ssize_t name_size, Text value, Py_ssize_t value_size, _CallFields* found) noexcept:
    """Return what a field of a call is; note what is needed of the fields that are no texts."""
    cdef Py_ssize_t index
    cdef int kind = 0
    if not name_size or not _is_printable(value, value_size):
        return _REFUSED_FIELD
    if name[0] == c":":
        if _is(name, name_size, b":method", 7):
            kind = 1 if _is(value, value_size, b"POST", 4) else 0
        elif _is(name, name_size, b":scheme", 7):
            kind = 2
        elif _is(name, name_size, b":path", 5):
            kind = 4 if value_size else 0
        elif _is(name, name_size, b":authority", 10):
            kind = 8
        if not kind or found.seen & kind or found.seen & 16:
            return _REFUSED_FIELD
        found.seen |= kind
        return _PATH_FIELD if kind == 4 else _OWN_FIELD
    found.seen |= 16
    for index in range(name_size):
        if not _IN_KEY[name[index]]:
            return _REFUSED_FIELD
    if name_size >= 5 and not memcmp(name, b"grpc-", 5):
        if _is(name, name_size, b"grpc-timeout", 12):
            found.timeout_s = _timeout_s(value, value_size)
            return _REFUSED_FIELD if found.timeout_s < 0 else _OWN_FIELD
        return _CODING_FIELD if _is(name, name_size, b"grpc-encoding", 13) else _OWN_FIELD
    if name_size >= 4 and not memcmp(name + name_size - 4, b"-bin", 4):
        return _REFUSED_FIELD
    if _is_connection_field(name, name_size):
        return _REFUSED_FIELD
    if name_size == 2 and not memcmp(name, b"te", 2):
        return _OWN_FIELD if _is(value, value_size, b"trailers", 8) else _REFUSED_FIELD
    if name_size == 4 and not memcmp(name, b"host", 4):
        return _OWN_FIELD
    if name_size == 12 and not memcmp(name, b"content-type", 12):
        if found.is_call or value_size < 16 or memcmp(value, b"application/grpc", 16) != 0:
            return _REFUSED_FIELD
        if value_size > 16 and value[16] != c"+" and value[16] != c";" and value[16] != c" ":
            return _REFUSED_FIELD
        found.is_call = True
        return _OWN_FIELD
    if name_size == 14 and not memcmp(name, b"content-length", 14):
        return _REFUSED_FIELD
    return _METADATA_FIELD


cdef class _CallHeads:
    """Makes heads of gRPC calls."""

    cdef object _head
    cdef Py_ssize_t _path, _metadata, _timeout_s, _coding, _oversized

    def __cinit__(self, kind):
        self._head = kind("", (), None, "identity", 200, 0)
        self._path, self._metadata = _offset(kind, "path"), _offset(kind, "metadata")
        self._timeout_s, self._coding = _offset(kind, "timeout_s"), _offset(kind, "coding")
        self._oversized = _offset(kind, "oversized")

    cdef object head(self, path, tuple metadata, timeout_s, coding, oversized):
        """Return the head of a call that has no Content-Length."""
        head = _copy_of(self._head)
        _set_field(head, self._path, path)
        _set_field(head, self._metadata, metadata)
        _set_field(head, self._timeout_s, timeout_s)
        _set_field(head, self._coding, coding)
        _set_field(head, self._oversized, oversized)
        return head


_NO_FIELDS = []


def read_call_block(Py_ssize_t block_bytes, Py_ssize_t limit_bytes, bytes block not None, tuple table not None):
    """See `gateway.transports.grpc.headers.read_call_block`."""
    found = _read_call_block(block, table, block_bytes, limit_bytes, False)
    if found is None:
        return _python_version("read_call_block")(block_bytes, limit_bytes, block, table)
    return found


cdef tuple _read_call_block(
    bytes block, tuple table, Py_ssize_t block_bytes, Py_ssize_t limit_bytes, bint is_own
):
    """Return the head of a usual gRPC call and the table after it; None for any other block.

    One pass reads the fields, checks them, and makes objects of those that are read later. If
    *is_own*, nobody else has the table, and its list becomes that of the new table.
    """
    global _call_heads
    cdef Text at = <Text>PyBytes_AS_STRING(block)
    cdef Text end = at + PyBytes_GET_SIZE(block)
    cdef tuple static = _static()
    cdef list entries = <list>table[0]
    cdef list added = []
    cdef Py_ssize_t evicted = 0
    cdef Py_ssize_t size = table[1]
    cdef Py_ssize_t table_bytes = table[2]
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t index, value_size
    cdef int resizes = 0
    cdef int count = 0
    cdef int kind
    cdef bint changed = False
    cdef bint inserts
    cdef Text value = NULL
    cdef tuple field
    cdef bytes raw_name, raw_value
    cdef char out[_CODED_BYTES * 2 + 1]
    cdef _CallFields head
    cdef list metadata = []
    cdef object path = None
    cdef object coding = "identity"
    if _call_heads is None:
        from gateway.transports.grpc.headers import GrpcRequestHead

        _call_heads = _CallHeads(GrpcRequestHead)
    head.seen, head.is_call, head.timeout_s = 0, False, -1
    while at < end:
        inserts = False
        if at[0] & 0x80:
            index = _prefixed(&at, end, 0x7F)
            if index <= 0:
                return None
            field = _entry(index, static, entries, added, evicted)
            if field is None:
                return None
            raw_name, raw_value = <bytes>field[0], <bytes>field[1]
            value, value_size = <Text>PyBytes_AS_STRING(raw_value), PyBytes_GET_SIZE(raw_value)
        elif at[0] & 0x60 == 0x20:
            resizes += 1
            index = _prefixed(&at, end, 0x1F)
            if count or resizes > _MOST_RESIZES or not 0 <= index <= _TABLE_BYTES:
                return None
            changed = True
            table_bytes = index
            evicted += _count_evicted(entries, added, evicted, &size, table_bytes)
            continue
        else:
            inserts = at[0] & 0x40
            index = _prefixed(&at, end, 0x3F if inserts else 0x0F)
            if index < 0:
                return None
            if index:
                field = _entry(index, static, entries, added, evicted)
                if field is None:
                    return None
                raw_name = <bytes>field[0]
            else:
                raw_name = _string(&at, end, out)
                if raw_name is None:
                    return None
            value_size = _text(&at, end, out, &value)
            if value_size < 0:
                return None
        count += 1
        index = PyBytes_GET_SIZE(raw_name) + value_size + _OVERHEAD
        total += index
        if total > block_bytes:
            return None
        if inserts:
            raw_value = PyBytes_FromStringAndSize(<const char*>value, value_size)
            changed = True
            added.append((raw_name, raw_value))
            size += index
            evicted += _count_evicted(entries, added, evicted, &size, table_bytes)
        kind = _call_field(
            <Text>PyBytes_AS_STRING(raw_name), PyBytes_GET_SIZE(raw_name), value, value_size, &head
        )
        if kind == _METADATA_FIELD:
            metadata.append((_name(raw_name), _ascii(value, value_size)))
        elif kind == _PATH_FIELD:
            path = _ascii(value, value_size)
        elif kind == _CODING_FIELD:
            coding = _ascii(value, value_size).lower()
        elif kind == _REFUSED_FIELD:
            return None
    if not head.is_call or head.seen & 7 != 7:
        return None
    found = (<_CallHeads>_call_heads).head(
        path,
        tuple(metadata),
        head.timeout_s if head.timeout_s >= 0 else None,
        coding,
        limit_bytes if total > limit_bytes else 0,
    )
    if changed:
        if is_own and 0 < evicted < len(entries):  # churns
            del entries[:evicted]
            for each in added:
                entries.append(each)
        else:
            entries = _joined_entries(entries, added, evicted)
        table = (entries, size, table_bytes)
    return found, _NO_FIELDS, table


cdef inline tuple _entry(
    Py_ssize_t index, tuple static, list entries, list added, Py_ssize_t evicted
):
    """Return an entry of the two tables; None if it does not exist."""
    if index <= _STATIC_FIELDS:
        return <tuple>static[index]
    index = len(entries) + len(added) - (index - _STATIC_FIELDS)
    if index < evicted:
        return None
    return <tuple>(entries[index] if index < len(entries) else added[index - len(entries)])


cdef Py_ssize_t _count_evicted(
    list entries, list added, Py_ssize_t evicted, Py_ssize_t* size, Py_ssize_t table_bytes
) except -1:
    """Return how many of the oldest entries, after those evicted before, do not fit; set *size*."""
    cdef Py_ssize_t index = evicted
    cdef tuple field
    while size[0] > table_bytes:
        field = <tuple>(entries[index] if index < len(entries) else added[index - len(entries)])
        size[0] -= PyBytes_GET_SIZE(<bytes>field[0]) + PyBytes_GET_SIZE(<bytes>field[1]) + _OVERHEAD
        index += 1
    return index - evicted


cdef list _joined_entries(list entries, list added, Py_ssize_t evicted):
    """Return what is left of the entries of a table, and those that were added."""
    if evicted >= len(entries):
        return added[evicted - len(entries):]
    cdef Py_ssize_t kept = len(entries) - evicted
    cdef Py_ssize_t index
    cdef list joined = PyList_New(kept + len(added))
    for index in range(kept):
        field = entries[evicted + index]
        Py_INCREF(field)
        PyList_SET_ITEM(joined, index, field)
    for index in range(len(added)):
        field = added[index]
        Py_INCREF(field)
        PyList_SET_ITEM(joined, kept + index, field)
    return joined


cdef bint _is_connection_field(Text name, Py_ssize_t size) noexcept:
    """Return whether a field is that of a connection."""
    return (
        _is(name, size, b"connection", 10)
        or _is(name, size, b"keep-alive", 10)
        or _is(name, size, b"proxy-connection", 16)
        or _is(name, size, b"transfer-encoding", 17)
        or _is(name, size, b"upgrade", 7)
    )


cdef object _name(bytes raw):
    """Return the text of a name of ASCII characters."""
    text = (<dict>_names).get(raw)
    if text is None:
        text = _ascii(<Text>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
        if len(<dict>_names) < 1024 and PyBytes_GET_SIZE(raw) <= 64:  # clients choose the names
            (<dict>_names)[raw] = text
    return text


_grpc_response_head = None
_statuses = ()


def read_response_head(fields not None):
    """See `gateway.transports.grpc.headers.read_response_head`."""
    found = _read_response_head(<list>fields) if type(fields) is list else None
    if found is None:
        return _python_version("read_response_head")(fields)
    return found


cdef object _read_response_head(list fields):
    """Return the usual head, or trailers, of a response; None for any other."""
    global _grpc_response_head, _statuses
    cdef list metadata = []
    cdef tuple field
    cdef bytes raw_name, raw_value
    cdef Text name
    cdef Text value
    cdef Py_ssize_t name_size, value_size, index
    cdef Py_ssize_t number
    cdef bint is_call = False
    cdef object http_status = None
    cdef object status = None
    cdef object details = ""
    cdef object coding = "identity"
    if _grpc_response_head is None:
        from gateway.transports.grpc.headers import GrpcResponseHead
        from gateway.wire.grpc import GrpcStatus

        _grpc_response_head, _statuses = GrpcResponseHead, tuple(GrpcStatus)
    for index, each in enumerate(fields):
        field = <tuple?>each
        raw_name, raw_value = <bytes?>field[0], <bytes?>field[1]
        name, name_size = <Text>PyBytes_AS_STRING(raw_name), PyBytes_GET_SIZE(raw_name)
        value, value_size = <Text>PyBytes_AS_STRING(raw_value), PyBytes_GET_SIZE(raw_value)
        if not name_size or not _is_printable(value, value_size):
            return None
        if name[0] == c":":
            number = _length(value, value_size) if value_size == 3 else -1
            if index or number < 0 or not _is(name, name_size, b":status", 7):
                return None
            http_status = number
            continue
        for number in range(name_size):
            if not _IN_KEY[name[number]]:
                return None
        if name_size >= 5 and not memcmp(name, b"grpc-", 5):
            if _is(name, name_size, b"grpc-status", 11):
                number = 0 if _is(value, value_size, b"0", 1) else _length(value, value_size)
                if not value_size or not 0 <= number < len(<tuple>_statuses):
                    return None
                status = (<tuple>_statuses)[number]
            elif _is(name, name_size, b"grpc-message", 12):
                if memchr(value, c"%", value_size):
                    return None
                details = _ascii(value, value_size)
            elif _is(name, name_size, b"grpc-encoding", 13):
                coding = _ascii(value, value_size).lower()
            elif _is(name, name_size, b"grpc-retry-pushback-ms", 22):
                return None
            elif _is(name, name_size, b"grpc-status-details-bin", 23):
                return None
            continue
        if name_size >= 4 and not memcmp(name + name_size - 4, b"-bin", 4):
            return None
        if _is_connection_field(name, name_size):
            return None
        if _is(name, name_size, b"content-type", 12):
            is_call = value_size >= 16 and not memcmp(value, b"application/grpc", 16) and (
                value_size == 16 or value[16] == c"+" or value[16] == c";" or value[16] == c" "
            )
            continue
        if (
            _is(name, name_size, b"te", 2)
            or _is(name, name_size, b"host", 4)
            or _is(name, name_size, b"content-length", 14)
        ):
            continue
        metadata.append((_name(raw_name), _ascii(value, value_size)))
    return _grpc_response_head(http_status, is_call, status, details, tuple(metadata), coding)
