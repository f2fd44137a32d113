# Messages that have a description, read by a table of their fields: wire/protobuf/messages.py.

cdef enum:
    _MOST_NUMBERS = 32
    _MOST_SLOTS = 16
    # The kinds of fields, as FieldKind has them.
    _TEXT_FIELD = 0
    _VIEW_FIELD = 1
    _BOOL_FIELD = 2
    _INT32_FIELD = 3
    _INT64_FIELD = 4
    _CLOSED_FIELD = 5
    _MESSAGE_FIELD = 6
    _MAP_FIELD = 7
    _ELEMENTS_FIELD = 8
    _ABSENT_FIELD = 9

cdef object _unusual = object()  # Python reads such a message
cdef dict _EMPTY_VALUES = {
    _TEXT_FIELD: "", _VIEW_FIELD: memoryview(b""), _BOOL_FIELD: False, _INT32_FIELD: 0, _INT64_FIELD: 0
}


cdef struct _TableField:
    int kind
    int slot
    unsigned int wire_type
    bint repeated


cdef struct _Occurrence:
    uint32_t number
    unsigned int wire_type
    uint64_t value  # of a varint
    _Span span  # of any other


cdef inline Text _read_varint(Text at, Text end, int most, uint64_t* value) noexcept:
    """Read a varint of *most* bytes, and return its end; NULL for one that is longer or damaged."""
    cdef int count
    value[0] = 0
    for count in range(most):
        if at == end:
            return NULL
        value[0] |= <uint64_t>(at[0] & 0x7F) << 7 * count
        at += 1
        if at[-1] < 0x80:
            return at
    return NULL


cdef inline Text _next_field(Text at, Text end, _Occurrence* found) noexcept:
    """Read the field at *at*, and return its end; NULL for a group, and for what is no field."""
    cdef uint64_t value
    at = _read_varint(at, end, 4, &value)
    if at is NULL or value < 8:
        return NULL
    found.number, found.wire_type = <uint32_t>(value >> 3), value & 7
    if found.wire_type == 0:
        return _read_varint(at, end, 10, &found.value)
    if found.wire_type == 2:
        at = _read_varint(at, end, 4, &value)
    elif found.wire_type == 1 or found.wire_type == 5:
        value = 8 if found.wire_type == 1 else 4
    else:
        return NULL
    if at is NULL or value > <uint64_t>(end - at):
        return NULL
    found.span.start, found.span.stop = at, at + value
    return found.span.stop


cdef class _DescribedReader:
    """Reads plain messages of a description; all others, *python* does."""

    cdef object _python, _make
    cdef _TableField _fields[_MOST_NUMBERS]
    cdef list _empty, _lists, _maps, _singles  # the values of an empty message, and slots by kind
    cdef list _nested, _rivals, _text_limits, _most  # by slot
    cdef Py_ssize_t _limit
    cdef str _more
    cdef bint _has_elements

    def __cinit__(self, descriptor, python):
        cdef int slot
        self._python, self._make = python, descriptor.make
        self._limit, self._more, self._has_elements = descriptor.limit, descriptor.more, False
        for slot in range(_MOST_NUMBERS):
            self._fields[slot].kind = _ABSENT_FIELD
        fields = [each for each in descriptor.fields if each.kind != _ELEMENTS_FIELD]
        self._empty = [None if each.choice else _EMPTY_VALUES.get(int(each.kind)) for each in fields]
        self._nested = [None if each.message is None else each.message.read.__self__ for each in fields]
        self._text_limits = [each.text_limit for each in fields]
        self._most = [(slot, each.most[1]) for slot, each in enumerate(fields) if each.most[1]]
        self._rivals, self._lists, self._maps, self._singles = [], [], [], []
        for slot, each in enumerate(fields):
            self._add(each, slot, each.tag & 7)
            rivals = [place for place, other in enumerate(fields) if each.choice and other.choice == each.choice]
            self._rivals.append([place for place in rivals if place != slot])
            if each.kind == _MAP_FIELD:
                self._maps.append(slot)
            elif each.repeated or each.kind == _CLOSED_FIELD and not each.choice:
                self._lists.append(slot)
            elif each.kind == _MESSAGE_FIELD:
                self._singles.append((slot, not each.choice))
        for each in descriptor.fields:
            if each.kind == _ELEMENTS_FIELD:
                self._has_elements = True
                self._add(each, 0, each.element)

    cdef void _add(self, field, int slot, unsigned int wire_type):
        cdef _TableField* entry = &self._fields[<int>field.number]
        entry.kind, entry.slot, entry.wire_type, entry.repeated = field.kind, slot, wire_type, field.repeated

    def read(self, views, limits, counter=None):
        cdef Py_buffer raw
        cdef Py_ssize_t remaining = 1 << 14 if counter is None else counter.remaining
        if len(views) != 1:
            return self._python(views, limits, counter)
        view = views[0]
        PyObject_GetBuffer(view, &raw, PyBUF_SIMPLE)
        try:
            found = self._read(view, <Text>raw.buf, <Text>raw.buf, <Text>raw.buf + raw.len, limits, &remaining)
        finally:
            PyBuffer_Release(&raw)
        if found is _unusual:
            return self._python(views, limits, counter)
        if counter is not None and not self._limit:
            counter.remaining = remaining
        return found

    cdef object _read(self, view, Text start, Text at, Text end, limits, Py_ssize_t* remaining):
        """Read the message from *at* to *end* in the buffer *view*, which begins at *start*."""
        cdef _Occurrence found
        cdef _TableField* field
        cdef _Span nested[_MOST_SLOTS]
        cdef list slots = self._empty[:]
        cdef dict elements = {} if self._has_elements else None
        cdef Py_ssize_t own = self._limit
        cdef int slot
        for slot in self._lists:
            slots[slot] = []
        for slot in self._maps:
            slots[slot] = {}
        for slot in range(len(slots)):
            nested[slot].start = nested[slot].stop = NULL
        if own:
            own += getattr(limits, self._more) if self._more else 0
            remaining = &own
        while at < end:
            at = _next_field(at, end, &found)
            remaining[0] -= 1
            if at is NULL or remaining[0] < 0:
                return _unusual
            if found.number >= _MOST_NUMBERS:
                continue
            field = &self._fields[found.number]
            slot = field.slot
            if field.kind == _ELEMENTS_FIELD:
                _put_element(elements, field, &found, view, start)
            elif field.kind == _ABSENT_FIELD or found.wire_type != field.wire_type:
                continue
            elif field.kind == _MESSAGE_FIELD and not field.repeated:
                if nested[slot].start is not NULL:  # merged in Python
                    return _unusual
                nested[slot] = found.span
            elif not self._put(slots, field, &found, view, start, limits, remaining):
                return _unusual
            for other in <list>self._rivals[slot]:
                slots[other] = None
                nested[<int>other].start = NULL
        for each in self._singles:
            slot = (<tuple>each)[0]
            if nested[slot].start is not NULL or (<tuple>each)[1]:
                slots[slot] = (<_DescribedReader>self._nested[slot])._read(
                    view, start, nested[slot].start, nested[slot].stop, limits, remaining
                )
                if slots[slot] is _unusual:
                    return _unusual
        for each in self._most:
            if len(slots[(<tuple>each)[0]]) > getattr(limits, (<tuple>each)[1]):
                return _unusual
        if elements is not None:
            slots.append(elements)
        return self._make(*slots)

    cdef bint _put(
        self, list slots, _TableField* field, _Occurrence* found, view, Text start, limits, Py_ssize_t* remaining
    ) except -1:
        """Put the value of a field into its slot; return False where Python decides."""
        cdef int slot = field.slot
        cdef object value
        if field.kind == _MAP_FIELD:
            return self._put_entry(slots[slot], slot, &found.span, view, start, limits)
        if field.kind == _TEXT_FIELD:
            value = self._text(slot, &found.span, limits)
        elif field.kind == _BOOL_FIELD:
            value = found.value != 0
        elif field.kind == _INT32_FIELD:
            value = <int><uint32_t>found.value
        elif field.kind == _INT64_FIELD:
            value = <int64_t>found.value
        elif field.kind == _MESSAGE_FIELD:
            value = (<_DescribedReader>self._nested[slot])._read(
                view, start, found.span.start, found.span.stop, limits, remaining
            )
        else:
            value = view[found.span.start - start : found.span.stop - start]
        if value is _unusual:
            return False
        if not (field.repeated or field.kind == _CLOSED_FIELD):
            slots[slot] = value
        elif slots[slot] is None:
            slots[slot] = [value]
        else:
            (<list>slots[slot]).append(value)
        return True

    cdef object _text(self, int slot, _Span* span, limits):
        """Return a plain text, and a plain name where it must be one."""
        cdef str limit = self._text_limits[slot]
        cdef Py_ssize_t size = span.stop - span.start
        if not _is_printable(span.start, size):
            return _unusual
        if limit and (size > getattr(limits, limit) or _is_dots(span)):
            return _unusual
        return PyUnicode_DecodeASCII(<const char*>span.start, size, NULL)

    cdef bint _put_entry(self, dict entries, int slot, _Span* entry, view, Text start, limits) except -1:
        """Put an entry that has its key, its value, and nothing else; return False for another."""
        cdef _Occurrence key, value
        cdef Text at = _next_field(entry.start, entry.stop, &key)
        if at is NULL or key.number != 1 or key.wire_type != 2:
            return False
        if _next_field(at, entry.stop, &value) != entry.stop or value.number != 2 or value.wire_type != 2:
            return False
        name = self._text(slot, &key.span, limits)
        if name is _unusual:
            return False
        entries[name] = view[value.span.start - start : value.span.stop - start]
        return True


cdef int _put_element(dict elements, _TableField* field, _Occurrence* found, view, Text start) except -1:
    """Add an occurrence of a field with elements, packed or not; texts are never packed."""
    cdef object value
    if found.wire_type == 2:
        if found.span.start == found.span.stop and field.wire_type != 2:
            return 0
    elif found.wire_type != field.wire_type:
        return 0
    if found.wire_type == 0:
        value = found.value
    else:
        value = view[found.span.start - start : found.span.stop - start]
    occurrences = elements.get(found.number)
    if occurrences is None:
        elements[found.number] = [value]
    else:
        (<list>occurrences).append(value)
    return 0


def described_reader(descriptor):
    """See `gateway.wire.protobuf.messages.described_reader`."""
    python = _python_version("described_reader")(descriptor)
    numbers = [each.number for each in descriptor.fields]
    if max(numbers) >= _MOST_NUMBERS or len(numbers) > _MOST_SLOTS:
        return python
    return _DescribedReader(descriptor, python).read
